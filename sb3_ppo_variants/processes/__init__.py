"""Processes that train one policy together, over ``torch.distributed``."""

from sb3_ppo_variants.processes.group import ALONE, Processes, current, init_processes

__all__ = ["ALONE", "Processes", "current", "init_processes"]
