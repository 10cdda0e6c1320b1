"""SB3's rollout buffers with more columns: the parameters of the distributions that the actions were drawn from.

A rollout of ``n_steps`` steps in ``n_envs`` environments has ``n_steps * n_envs`` rows, environment by environment: the
order in which SB3's buffers flatten themselves when they are first read.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch as th
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import DictRolloutBufferSamples, PyTorchObs, RolloutBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppo_variants.kl import Parameters

# Enough rows to keep a small network busy, few enough for the activations of a large one to stay in the cache.
ROWS_AT_ONCE = 128
# An index of the arrays of a buffer, by its rows or by steps and environments.
Where: TypeAlias = np.ndarray | tuple[np.ndarray, np.ndarray]


class Samples(NamedTuple):
    """A minibatch: SB3's, with the old parameters."""

    observations: PyTorchObs
    actions: th.Tensor
    old_values: th.Tensor
    old_log_prob: th.Tensor
    advantages: th.Tensor
    returns: th.Tensor
    old_parameters: Parameters | None = None
    """Of the distributions that the actions were drawn from; ``None`` where the buffer has no such columns."""
    more: object = None
    """What the kind of the policy needs besides."""

    @classmethod
    def of(cls, read: Any) -> "Samples":
        """A minibatch of a buffer without the columns."""
        return cls(*(getattr(read, name) for name in cls._fields[:6]))


class WithParameters(RolloutBuffer):
    """Adds the columns to a rollout buffer, SB3's or a user's."""

    read_as: ClassVar[Mapping[type, type]] = {RolloutBufferSamples: Samples, DictRolloutBufferSamples: Samples}
    """For the types of minibatches that the buffer makes, those with the old parameters as a further field."""
    old_parameters: Parameters | None = None
    """A row for each row of the rollout; ``None`` if the rollout was collected without."""

    def reset(self) -> None:
        """Begin a new rollout."""
        super().reset()
        self.old_parameters = None

    def set_parameters(self, steps: Sequence[Parameters]) -> None:
        """Fill the columns.

        :param steps: for each step of the rollout the parameters of all environments
        """
        columns = (th.stack(tensors, dim=1) for tensors in zip(*steps, strict=True))
        self.old_parameters = tuple(column.flatten(0, 1) for column in columns)

    def _get_samples(self, batch_inds: np.ndarray, env: VecNormalize | None = None) -> Any:
        samples = super()._get_samples(batch_inds, env)
        if self.old_parameters is None or type(samples) not in self.read_as:
            return samples
        rows = th.as_tensor(batch_inds, device=self.old_parameters[0].device)
        return self.read_as[type(samples)](*samples, tuple(column[rows] for column in self.old_parameters))


class ParameterRolloutBuffer(WithParameters):
    """SB3's ``RolloutBuffer`` with the columns."""


class ParameterDictRolloutBuffer(WithParameters, DictRolloutBuffer):
    """SB3's ``DictRolloutBuffer`` with the columns."""


SB3S: dict[type[RolloutBuffer], type[WithParameters]] = {
    RolloutBuffer: ParameterRolloutBuffer,
    DictRolloutBuffer: ParameterDictRolloutBuffer,
}


@cache
def with_parameters(
    buffer_class: type[RolloutBuffer], columns: type[WithParameters] = WithParameters
) -> type[WithParameters]:
    """The class of buffers that adds the columns to SB3's or a user's class.

    :param columns: what adds them, which depends on the kind of the policy
    """
    if issubclass(buffer_class, WithParameters):
        return buffer_class
    return SB3S.get(buffer_class) or type(buffer_class.__name__, (columns, buffer_class), {})


def in_rows(buffer: RolloutBuffer, array: np.ndarray) -> np.ndarray:
    """One of a buffer's arrays in the order of its rows, whether the buffer has flattened itself or not."""
    return array if buffer.generator_ready else buffer.swap_and_flatten(array)


def rollout_observations(buffer: RolloutBuffer, rows_at_once: int = ROWS_AT_ONCE) -> Iterator[PyTorchObs]:
    """All observations of a rollout in the order of their rows, in chunks.

    :param buffer: a full buffer, read before or not
    :param rows_at_once: how many rows a chunk has, the last one maybe fewer
    """
    return (observations_at(buffer, where) for where in chunks(buffer, rows_at_once))


def chunks(buffer: RolloutBuffer, rows_at_once: int = ROWS_AT_ONCE) -> Iterator[Where]:
    """Where the rows of a rollout are in the arrays of its buffer, in order and in chunks.

    :param buffer: a full buffer, read before or not
    :param rows_at_once: how many rows a chunk has, the last one maybe fewer
    """
    n_rows = buffer.buffer_size * buffer.n_envs
    for start in range(0, n_rows, rows_at_once):
        yield where_in(buffer, np.arange(start, min(start + rows_at_once, n_rows)))


def where_in(buffer: RolloutBuffer, rows: np.ndarray) -> Where:
    """Where rows of a rollout are in the arrays of its buffer."""
    # Flat, or as SB3's buffers hold a rollout before they are first read.
    return rows if buffer.generator_ready else (rows % buffer.buffer_size, rows // buffer.buffer_size)


def observations_at(buffer: RolloutBuffer, where: Where) -> PyTorchObs:
    """The observations of some rows."""
    observations: Any = buffer.observations
    if isinstance(observations, dict):
        return {key: buffer.to_torch(array[where]) for key, array in observations.items()}
    return buffer.to_torch(observations[where])
