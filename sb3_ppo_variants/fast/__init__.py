"""The fast path: what the reference path does, over arrays instead of graphs."""
