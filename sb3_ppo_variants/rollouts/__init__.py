"""Rollouts: the buffer that holds one, and the loop that collects one."""
