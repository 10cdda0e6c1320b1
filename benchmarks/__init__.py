"""Measurements: ``python -m benchmarks``."""
