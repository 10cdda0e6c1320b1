"""Data-parallel training: the group of the processes, what they must have in common, and their statistics."""

from sb3_ppo_variants.processes.group import ALONE, Processes, current, init_processes

__all__ = ["ALONE", "Processes", "current", "init_processes"]
