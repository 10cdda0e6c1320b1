"""Keeps the statistics of ``VecNormalize`` the same in all processes that train together."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from sb3_ppo_variants.processes.differences import refuse_differences

# The statistics of all wrappers of an environment, by the name of the attribute that holds them.
Moments: TypeAlias = Mapping[str, RunningMeanStd]


class Told(NamedTuple):
    """What a process tells the others about its statistics."""

    own: Moments
    """The statistics: of the data that all processes have in common, and of its own data."""
    common: Moments | None
    """The statistics of the data in common; ``None`` if there is none, such as for an environment from elsewhere."""


class Statistics:
    """The statistics of a model's ``VecNormalize`` wrappers, and what they were when all processes last had the same.

    What a process has added since is its own data, wherever it comes from: rollouts, resets or callbacks.
    """

    def __init__(self) -> None:
        # Each object is kept together with a copy. If a wrapper has another object, its data is not known.
        self._common: dict[str, tuple[RunningMeanStd, RunningMeanStd]] = {}

    def agree(self, env: VecEnv | None) -> None:
        """Note that all processes have the same statistics now."""
        self._common = {name: (moments, moments.copy()) for name, moments in _moments(env).items()}

    def told(self, env: VecEnv | None) -> Told:
        """Return what to tell the other processes."""
        own = _moments(env)
        if any(name not in self._common or self._common[name][0] is not moments for name, moments in own.items()):
            return Told(own, None)
        return Told(own, {name: self._common[name][1] for name in own})

    def merge(self, env: VecEnv | None, each: Sequence[Told]) -> None:
        """Set the statistics to those of the data of all processes.

        If the processes have had nothing in common before, they take the statistics of rank 0.

        :param each: what each process has told
        :raises ArgumentError: if the processes have different statistics or statistics of different shapes
        """
        shapes = [{name: str(np.shape(moments.mean)) for name, moments in told.own.items()} for told in each]
        refuse_differences(shapes)
        for name, moments in _moments(env).items():
            own = [told.own[name] for told in each]
            common = [None if told.common is None else told.common[name] for told in each]
            before = common[0]
            if before is not None and all(_same(one, before) for one in common) and _has_grown(own, before):
                merge_moments(moments, before, own)
            else:
                moments.mean, moments.var, moments.count = own[0].mean, own[0].var, own[0].count
        self.agree(env)


def normalizations(env: VecEnv | None) -> list[VecNormalize]:
    """Return the ``VecNormalize`` wrappers of an environment, from the outside in."""
    inner = normalizations(env.venv) if isinstance(env, VecEnvWrapper) else []
    return [env, *inner] if isinstance(env, VecNormalize) else inner


def name_of(index: int) -> str:
    """Return the name of a ``VecNormalize`` wrapper in messages, by its index from the outside."""
    return "VecNormalize" if index == 0 else f"VecNormalize number {index + 1}"


def _moments(env: VecEnv | None) -> dict[str, RunningMeanStd]:
    found: dict[str, RunningMeanStd] = {}
    for index, wrapper in enumerate(normalizations(env)):
        name, observations = name_of(index), getattr(wrapper, "obs_rms", None)
        if isinstance(observations, dict):
            found |= {f"{name}.obs_rms[{key!r}]": moments for key, moments in observations.items()}
        elif observations is not None:
            found[f"{name}.obs_rms"] = observations
        found[f"{name}.ret_rms"] = wrapper.ret_rms
    return found


def _same(one: RunningMeanStd | None, other: RunningMeanStd) -> bool:
    return one is not None and all(
        np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True) for name in ("mean", "var", "count")
    )


def _has_grown(each: Sequence[RunningMeanStd], before: RunningMeanStd) -> bool:
    """Return whether there is new data. A smaller count than before belongs to other data."""
    return min(one.count for one in each) >= before.count < max(one.count for one in each)


def merge_moments(moments: RunningMeanStd, before: RunningMeanStd, each: Sequence[RunningMeanStd]) -> None:
    """Set moments to those of the data of all processes, which started from common data.

    :param moments: the moments to set
    :param before: the moments of the common data
    :param each: the moments of each process: of the common data and its own
    """
    # Sum x and x^2 relative to the previous mean, which preserves precision.
    counts = [one.count - before.count for one in each]
    sums = [one.count * (one.mean - before.mean) for one in each]
    squares = [one.count * (one.var + (one.mean - before.mean) ** 2) - before.count * before.var for one in each]
    count = before.count + sum(counts)
    shift = sum(sums) / count
    moments.mean = before.mean + shift
    moments.var = (before.count * before.var + sum(squares)) / count - shift**2
    moments.count = count
