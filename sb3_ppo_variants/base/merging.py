"""Merges the statistics of processes that train together."""

from collections import deque
from collections.abc import Callable
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common import utils
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from sb3_ppo_variants.backends.native.normalizing import native_steps
from sb3_ppo_variants.processes import Processes
from sb3_ppo_variants.processes.advantages import mean_and_variance
from sb3_ppo_variants.processes.differences import refuse_differences
from sb3_ppo_variants.processes.statistics import Told
from sb3_ppo_variants.rollouts.normalized import Steps
from sb3_ppo_variants.saving import SavedAlgorithm

# The attributes of a model that hold the results of its last episodes.
EPISODES = ("ep_info_buffer", "ep_success_buffer")


class Ended(NamedTuple):
    """What a process tells the others when it ends a rollout."""

    going: bool
    num_timesteps: int
    episodes: list[list[Any]]
    statistics: Told
    settings: dict[str, str]


class Rollout:
    """Combines the statistics of a rollout over all processes, and checks that they agree on the update after it.

    :param model: the model, before the rollout
    :param settings: returns the settings of the next update, which must be the same in all processes, by name
    """

    def __init__(self, model: SavedAlgorithm, settings: Callable[[], dict[str, str]]):
        self._model = model
        self._settings = settings
        self._together = model.processes.size > 1
        if self._together:
            self._merge()  # A checkpoint written before the rollout holds the statistics of all.
            self._episodes = [list(getattr(model, name)) for name in EPISODES]

    def _merge(self) -> None:
        """Add what the other processes have seen since the last rollout, such as when the environments were reset."""
        model = self._model
        told = model.statistics.told(model.env)
        if told.own:
            model.statistics.merge(model.env, model.processes.exchange("merges statistics", told))

    def steps(self, env: VecEnv) -> Steps:
        """Return the object that steps the environments."""
        steps = native_steps(env)
        if self._together:
            steps = self._watched = Watched(steps, self._model._stats_window_size)
        return steps

    def begin(self) -> None:
        """Begin the rollout. Call this after ``on_rollout_start``, where callbacks may reset the environments."""
        if self._together:
            self._merge()

    def end(self, going: bool) -> bool:
        """Add the statistics that the other processes have collected.

        :param going: whether this process continues training
        :return: whether all processes do
        :raises ArgumentError: if they all do, but with different settings
        """
        if not self._together:
            return going
        model = self._model
        if going:
            # SB3 does the same after the rollout, but the schedules of the update are compared now.
            model._update_current_progress_remaining(model.num_timesteps, model._total_timesteps)
        told = model.statistics.told(model.env)
        own = Ended(going, model.num_timesteps, self._watched.episodes(going), told, self._settings() if going else {})
        each = model.processes.exchange("ends a rollout", own)
        all_going = all(ended.going for ended in each)
        if all_going:
            refuse_differences([ended.settings for ended in each])
        # A callback may have stopped some processes early, so that each has counted another number of steps.
        model.num_timesteps = sum(ended.num_timesteps for ended in each) // len(each)
        for i, (name, before) in enumerate(zip(EPISODES, self._episodes, strict=True)):
            in_turn = zip_longest(*(ended.episodes[i] for ended in each), fillvalue=None)
            added = [episode for turn in in_turn for episode in turn if episode is not None]
            setattr(model, name, deque([*before, *added], maxlen=model._stats_window_size))
        model.statistics.merge(model.env, [ended.statistics for ended in each])
        return all_going


class Watched:
    """Steps environments, and collects the episodes of a rollout apart from those that the model has.

    :param steps: steps the environments
    :param size: number of episodes to keep
    """

    def __init__(self, steps: Steps, size: int):
        self.num_envs = steps.num_envs
        self._steps = steps
        self._new: Any = SimpleNamespace(**{name: deque(maxlen=size) for name in EPISODES})
        self._latest: tuple[Any, ...] = ((), None)

    def step(self, actions: np.ndarray) -> VecEnvStepReturn:
        """Step the environments."""
        self._collect()
        observations, rewards, dones, infos = self._steps.step(actions)
        self._latest = (infos, dones)
        return observations, rewards, dones, infos

    def _collect(self) -> None:
        BaseAlgorithm._update_info_buffer(self._new, *self._latest)

    def episodes(self, going: bool) -> list[list[Any]]:
        """Return the results of the episodes that have ended.

        :param going: False if a callback has stopped the rollout, in which case SB3 ignores the last step
        """
        if going:
            self._collect()
        return [list(getattr(self._new, name)) for name in EPISODES]


def explained_variance(values: np.ndarray, returns: np.ndarray, processes: Processes) -> float:
    """Return SB3's ``explained_variance`` for the predictions of all processes, each of which has the same number."""
    if processes.size == 1:
        return utils.explained_variance(values.flatten(), returns.flatten())
    expected = th.from_numpy(returns).double()
    _, unexplained = mean_and_variance(expected - th.from_numpy(values), processes)
    _, variance = mean_and_variance(expected, processes)
    return np.nan if variance == 0 else 1 - unexplained / variance
