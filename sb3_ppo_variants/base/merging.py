"""Merges the statistics of processes that train together."""

from collections import deque
from collections.abc import Sequence
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common import utils
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from sb3_ppo_variants.backends.native.normalizing import native_steps
from sb3_ppo_variants.processes import Processes
from sb3_ppo_variants.processes.advantages import mean_and_variance
from sb3_ppo_variants.rollouts.normalized import Steps
from sb3_ppo_variants.saving import SavedAlgorithm

# The attributes of a model that hold the results of its last episodes.
EPISODES = ("ep_info_buffer", "ep_success_buffer")


class Rollout:
    """Combines the statistics of a rollout over all processes.

    :param model: the model, before the rollout
    """

    def __init__(self, model: SavedAlgorithm):
        self._model = model
        self._together = model.processes.size > 1
        if self._together:
            self._take_first_moments()  # A checkpoint written before the rollout holds these.
            self._episodes = [list(getattr(model, name)) for name in EPISODES]

    def _take_first_moments(self) -> None:
        moments = _moments(self._model.env)
        if moments:
            for own, first in zip(moments, self._model.processes.exchange("takes statistics", moments)[0], strict=True):
                own.mean, own.var, own.count = first.mean, first.var, first.count

    def steps(self, env: VecEnv) -> Steps:
        """Return the object that steps the environments."""
        steps = native_steps(env)
        if self._together:
            steps = self._watched = Watched(steps, self._model._stats_window_size)
        return steps

    def begin(self) -> None:
        """Begin the rollout. Call this after ``on_rollout_start``, where callbacks may reset the environments."""
        if self._together:
            self._take_first_moments()
            self._before = [moments.copy() for moments in _moments(self._model.env)]

    def end(self, going: bool) -> bool:
        """Add the statistics that the other processes have collected.

        :param going: whether this process continues training
        :return: whether all processes do
        """
        if not self._together:
            return going
        model, all_moments = self._model, _moments(self._model.env)
        own = (going, model.num_timesteps, self._watched.episodes(going), all_moments)
        each = model.processes.exchange("ends a rollout", own)
        # A callback may have stopped some processes early, so that each has counted another number of steps.
        model.num_timesteps = sum(steps for _, steps, _, _ in each) // len(each)
        for i, (name, before) in enumerate(zip(EPISODES, self._episodes, strict=True)):
            in_turn = zip_longest(*(episodes[i] for _, _, episodes, _ in each), fillvalue=None)
            added = [episode for turn in in_turn for episode in turn if episode is not None]
            setattr(model, name, deque([*before, *added], maxlen=model._stats_window_size))
        for i, (moments, first) in enumerate(zip(all_moments, self._before, strict=True)):
            merge_moments(moments, first, [others[i] for _, _, _, others in each])
        return all(going for going, _, _, _ in each)


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


def _moments(env: VecEnv | None) -> list[RunningMeanStd]:
    """Return the statistics of all ``VecNormalize`` wrappers, from the outside in."""
    if not isinstance(env, VecEnvWrapper):
        return []
    own: list[RunningMeanStd] = []
    if isinstance(env, VecNormalize):
        observations = getattr(env, "obs_rms", None)
        own = [*(observations.values() if isinstance(observations, dict) else [observations]), env.ret_rms]
    return [*(moments for moments in own if moments is not None), *_moments(env.venv)]


def merge_moments(moments: RunningMeanStd, before: RunningMeanStd, each: Sequence[RunningMeanStd]) -> None:
    """Set moments to those of the data of all processes, which started from common data.

    :param moments: the moments to set
    :param before: the moments of the common data
    :param each: the moments of each process: of the common data and its own
    """
    if all(one.count == before.count for one in each):
        return  # There is no new data.
    # Sum x and x^2 relative to the previous mean, which preserves precision.
    counts = [one.count - before.count for one in each]
    sums = [one.count * (one.mean - before.mean) for one in each]
    squares = [one.count * (one.var + (one.mean - before.mean) ** 2) - before.count * before.var for one in each]
    count = before.count + sum(counts)
    shift = sum(sums) / count
    moments.mean = before.mean + shift
    moments.var = (before.count * before.var + sum(squares)) / count - shift**2
    moments.count = count


def explained_variance(values: np.ndarray, returns: np.ndarray, processes: Processes) -> float:
    """Return SB3's ``explained_variance`` for the predictions of all processes, each of which has the same number."""
    if processes.size == 1:
        return utils.explained_variance(values.flatten(), returns.flatten())
    expected = th.from_numpy(returns).double()
    _, unexplained = mean_and_variance(expected - th.from_numpy(values), processes)
    _, variance = mean_and_variance(expected, processes)
    return np.nan if variance == 0 else 1 - unexplained / variance
