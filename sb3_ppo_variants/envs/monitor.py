"""Episode statistics of environments that cannot have a ``Monitor`` each."""

import os
from typing import Any

from stable_baselines3.common.vec_env import VecEnv, VecMonitor


def monitored(venv: VecEnv, monitor_dir: str | None, start_index: int, monitor_kwargs: dict[str, Any] | None) -> VecEnv:
    """Put SB3's ``VecMonitor`` around environments.

    :param venv: the environments, with the rewards and the ends of episodes that the statistics are of
    :param monitor_dir: folder for a file ``<start_index>.monitor.csv``; ``None`` writes none
    :param start_index: number of the first environment
    :param monitor_kwargs: further arguments of ``VecMonitor``
    """
    filename = None if monitor_dir is None else os.path.join(monitor_dir, str(start_index))
    return VecMonitor(venv, filename, **(monitor_kwargs or {}))
