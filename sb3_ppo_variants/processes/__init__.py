"""Processes that train one policy together, over ``torch.distributed``."""

from sb3_ppo_variants.processes.group import Group, current, init_processes
from sb3_ppo_variants.processes.processes import ALONE, Processes

__all__ = ["ALONE", "Group", "Processes", "current", "init_processes"]
