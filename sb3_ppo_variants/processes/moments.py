"""Statistics of the data of all processes: moments of their rollouts, and those of their ``VecNormalize`` wrappers."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch as th
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.losses import ADVANTAGE_EPSILON
from sb3_ppo_variants.processes.group import Processes


def normalize_together(advantages: th.Tensor, processes: Processes) -> th.Tensor:
    """Normalise minibatches distributed over processes as :func:`sb3_ppo_variants.losses.normalize_advantages` does.

    :param advantages: the rows of each minibatch in this process, shape ``(..., rows)``
    """
    rows = advantages.shape[-1]
    mean = advantages.mean(dim=-1)
    squares = ((advantages - mean[..., None]) ** 2).sum(dim=-1)
    means, all_squares = processes.gather(th.stack([mean, squares])).unbind(dim=1)
    mean = means.mean(dim=0)
    variance = (all_squares + rows * (means - mean) ** 2).sum(dim=0) / (processes.size * rows - 1)
    return (advantages - mean[..., None]) / (variance.sqrt()[..., None] + ADVANTAGE_EPSILON)


def mean_and_variance(numbers: th.Tensor, processes: Processes) -> tuple[float, float]:
    """Compute the mean and the variance of the numbers of all processes, each of which has the same number of them."""
    variance, mean = th.var_mean(numbers.double(), correction=0)
    variances, means = processes.gather(th.stack([variance, mean])).unbind(dim=1)
    together = means.mean()
    return together.item(), (variances + (means - together) ** 2).mean().item()


def explained_variance(values: np.ndarray, returns: np.ndarray, processes: Processes) -> float:
    """Compute SB3's ``explained_variance`` for the predictions of all processes, each of which has the same number."""
    expected = th.from_numpy(returns).double()
    _, unexplained = mean_and_variance(expected - th.from_numpy(values), processes)
    _, variance = mean_and_variance(expected, processes)
    return np.nan if variance == 0 else 1 - unexplained / variance


# The statistics of a process by name: those of all its data, and those of the part of it that all processes have in
# common, which are None if they are not known, such as for an environment from elsewhere.
Contribution: TypeAlias = Mapping[str, tuple[RunningMeanStd, RunningMeanStd | None]]


class Statistics:
    """The statistics of a model's ``VecNormalize`` wrappers, and what they were when all processes last had the same.

    What a process has added since is its own data, wherever it comes from: rollouts, resets or callbacks.
    """

    def __init__(self) -> None:
        # Each object is kept together with a copy. If a wrapper has another object, its data is not known.
        self._common: dict[str, tuple[RunningMeanStd, RunningMeanStd]] = {}

    def agree(self, env: VecEnv | None) -> None:
        """Note that all processes have the same statistics now."""
        self._common = {name: (moments, moments.copy()) for name, moments in _get_moments(env).items()}

    def contribution(self, env: VecEnv | None) -> Contribution:
        """Return what this process passes to :meth:`merge` in all processes."""
        own = _get_moments(env)
        are_known = all(name in self._common and self._common[name][0] is moments for name, moments in own.items())
        return {name: (moments, self._common[name][1] if are_known else None) for name, moments in own.items()}

    def merge(self, env: VecEnv | None, each: Sequence[Contribution]) -> None:
        """Set the statistics to those of the data of all processes.

        If the processes have had nothing in common before, they take the statistics of rank 0.

        :param each: the contribution of each process
        :raises ArgumentError: if the processes have different wrappers
        """
        if len({(*one,) for one in each}) > 1:
            names = " and ".join(f"rank {rank} has {[*one]}" for rank, one in enumerate(each))
            raise ArgumentError(f"the processes have different VecNormalize wrappers: {names}")
        for name, moments in _get_moments(env).items():
            own, common = zip(*(one[name] for one in each), strict=True)
            before = common[0]
            if before is not None and all(_is_same(one, before) for one in common) and _has_grown(own, before):
                merge_moments(moments, before, own)
            else:
                moments.mean, moments.var, moments.count = own[0].mean, own[0].var, own[0].count
        self.agree(env)


def find_normalizations(env: VecEnv | None) -> list[VecNormalize]:
    """Find the ``VecNormalize`` wrappers of an environment, from the outside in."""
    inner = find_normalizations(env.venv) if isinstance(env, VecEnvWrapper) else []
    return [env, *inner] if isinstance(env, VecNormalize) else inner


def _get_moments(env: VecEnv | None) -> dict[str, RunningMeanStd]:
    found: dict[str, RunningMeanStd] = {}
    for index, wrapper in enumerate(find_normalizations(env)):
        name, observations = f"VecNormalize {index}", getattr(wrapper, "obs_rms", None)
        if isinstance(observations, dict):
            found |= {f"{name}.obs_rms[{key!r}]": moments for key, moments in observations.items()}
        elif observations is not None:
            found[f"{name}.obs_rms"] = observations
        found[f"{name}.ret_rms"] = wrapper.ret_rms
    return found


def _is_same(one: RunningMeanStd | None, other: RunningMeanStd) -> bool:
    return one is not None and all(
        np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True) for name in ("mean", "var", "count")
    )


def _has_grown(each: Sequence[RunningMeanStd], before: RunningMeanStd) -> bool:
    """Whether there is new data. A smaller count than before belongs to other data."""
    return min(one.count for one in each) >= before.count < max(one.count for one in each)


def merge_moments(moments: RunningMeanStd, before: RunningMeanStd, each: Sequence[RunningMeanStd]) -> None:
    """Set moments to those of the data of all processes, each of which has added data to that of ``before``."""
    # Sum x and x^2 relative to the previous mean, which preserves precision.
    counts = [one.count - before.count for one in each]
    sums = [one.count * (one.mean - before.mean) for one in each]
    squares = [one.count * (one.var + (one.mean - before.mean) ** 2) - before.count * before.var for one in each]
    count = before.count + sum(counts)
    shift = sum(sums) / count
    moments.mean = before.mean + shift
    moments.var = (before.count * before.var + sum(squares)) / count - shift**2
    moments.count = count
