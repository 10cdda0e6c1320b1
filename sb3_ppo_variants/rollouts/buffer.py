"""SB3's rollout buffers with extra columns: the parameters of the distributions that the actions were drawn from.

A rollout of ``n_steps`` steps in ``n_envs`` environments has ``n_steps * n_envs`` rows, environment by environment: the
order in which SB3's buffers flatten themselves when they are first read.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple, NoReturn, TypeAlias
from weakref import WeakSet

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppo_variants.errors import ArgumentError, NonFiniteError
from sb3_ppo_variants.kl import Parameters
from sb3_ppo_variants.layout import map_parts, parts_of
from sb3_ppo_variants.objectives import Batch

# Enough rows to keep a small network busy, few enough for the activations of a large one to stay in the cache.
ROWS_AT_ONCE = 128
# The names of columns that objectives may read, with those that SB3's buffers give them.
BUFFER_NAMES = {
    "observations": "observations",
    "actions": "actions",
    "episodes": "episode_starts",
    "old_log_prob": "log_probs",
    "old_values": "values",
    "returns": "returns",
}
# Computes something for all rows of a rollout.
OverRollout: TypeAlias = Callable[[Batch[np.ndarray]], np.ndarray]
# Results for the whole rollout that are kept, because a lambda is another function for each minibatch.
MOST_COMPUTED = 8
# A minibatch as a rollout buffer yields it, of a class of the buffer's own.
Read: TypeAlias = Any
# An index into a buffer's arrays, either by rows or by steps and environments.
Where: TypeAlias = np.ndarray | tuple[np.ndarray, np.ndarray]


class Samples(NamedTuple):
    """A minibatch: SB3's columns, the parameters of the old policy, and what the policy kind needs in addition."""

    observations: PyTorchObs
    actions: th.Tensor
    old_values: th.Tensor
    old_log_prob: th.Tensor
    advantages: th.Tensor
    returns: th.Tensor
    old_parameters: Parameters | None = None
    """Parameters of the distributions that the actions were drawn from; ``None`` if the buffer has no such columns."""
    more: object = None
    """Additional data that the policy kind needs."""
    rows: np.ndarray | None = None
    """The indices of the samples in the rollout; ``None`` if the buffer does not say."""


class WithParameters(RolloutBuffer):
    """Adds the columns to SB3's, sb3-contrib's or a user's rollout buffer."""

    old_parameters: Parameters | None = None
    """One row per row of the rollout; ``None`` if the rollout was collected without parameters."""

    def reset(self) -> None:
        """Begin a new rollout."""
        super().reset()
        self.old_parameters = None

    def set_parameters(self, steps: Sequence[Parameters]) -> None:
        """Fill the columns.

        :param steps: for each step of the rollout, the parameters in all environments
        """
        columns = (th.stack(tensors, dim=1) for tensors in zip(*steps, strict=True))
        self.old_parameters = tuple(column.flatten(0, 1) for column in columns)

    def _get_samples(self, batch_inds: np.ndarray, env: VecNormalize | None = None) -> Read:
        samples: Read = super()._get_samples(batch_inds, env)
        if not hasattr(samples, "_fields"):
            return samples
        extended = _with_attributes(type(samples))(*samples)  # type: ignore[arg-type]
        extended.rows = batch_inds
        if self.old_parameters is not None:
            rows = th.as_tensor(batch_inds, device=self.old_parameters[0].device)
            extended.old_parameters = tuple(column[rows] for column in self.old_parameters)
        return extended

    def __reduce__(self) -> tuple[object, ...]:
        # Pickle does not find classes that were created on demand by their names.
        return _empty_buffer, type(self).__bases__[1:], *object.__reduce__(self)[2:]


@cache
def with_parameters(buffer_class: type[RolloutBuffer], *mixins: type[RolloutBuffer]) -> type[WithParameters]:
    """Make a class that adds the columns to a class of rollout buffers.

    :param mixins: mixins for the new class
    """
    if issubclass(buffer_class, WithParameters):
        return buffer_class
    return type(buffer_class.__name__, (WithParameters, *mixins, buffer_class), {"__module__": __name__})


def _empty_buffer(*bases: type[RolloutBuffer]) -> WithParameters:
    *mixins, buffer_class = bases
    cls = with_parameters(buffer_class, *mixins)
    return cls.__new__(cls)


@cache
def _with_attributes(samples_class: type[Read]) -> type[Read]:
    """Make a class of named tuples like this one, whose instances take further attributes."""
    return type(samples_class.__name__, (samples_class,), {"__module__": __name__})


def forget_parameters(buffer: RolloutBuffer) -> None:
    """Clear the columns of a buffer, if it has them."""
    if isinstance(buffer, WithParameters):
        buffer.old_parameters = None


def in_rows(buffer: RolloutBuffer, array: np.ndarray) -> np.ndarray:
    """Arrange one of a buffer's arrays in the order of its rows, whether or not the buffer has flattened itself."""
    # SB3's buffers never flatten the arrays that no minibatch contains, such as rewards.
    is_flat = buffer.generator_ready and len(array) == buffer.buffer_size * buffer.n_envs
    return array if is_flat else buffer.swap_and_flatten(array)


def where_in(buffer: RolloutBuffer, rows: np.ndarray) -> Where:
    """Compute the index of rows of a rollout into the arrays of its buffer."""
    # SB3's buffers have steps and environments as dimensions until they are first read, and are flat from then on.
    return rows if buffer.generator_ready else (rows % buffer.buffer_size, rows // buffer.buffer_size)


def inputs_at(buffer: RolloutBuffer, rows: np.ndarray) -> tuple[PyTorchObs, np.ndarray | None]:
    """Read the observations in rows of a rollout, and the action masks, if the buffer has any."""
    where, masks = where_in(buffer, rows), getattr(buffer, "action_masks", None)
    observations = map_parts(lambda array: buffer.to_torch(array[where]), buffer.observations)
    return observations, None if masks is None else masks[where]


class Columns:
    """The columns of a rollout that objectives may read, by row.

    :param buffer: a full buffer, which does not change any more
    :param old_parameters: the parameters of the old distributions in all rows, if they are known
    """

    def __init__(self, buffer: RolloutBuffer, old_parameters: Parameters | None = None):
        self._buffer = buffer
        self._in_rows: dict[str, Any] = {}
        if old_parameters is not None:
            self._in_rows["old_parameters"] = tuple(column.cpu().numpy() for column in old_parameters)
        self._computed: dict[OverRollout, np.ndarray] = {}

    def read(self, name: str, rows: np.ndarray, convert: Callable[[np.ndarray], Any]) -> Any:
        """Read some rows of a column, by the name that objectives give it, or ``None`` if there is no such column.

        :param convert: is applied to each array
        """
        if name == "rows":
            return convert(rows)
        if name == "over_rollout":
            return partial(self._over_rollout, rows, convert)
        if name not in self._in_rows:
            if name not in BUFFER_NAMES:
                return None
            self._in_rows[name] = self._episodes() if name == "episodes" else self._column(name)
        return map_parts(lambda array: convert(array[rows]), self._in_rows[name])

    def whole(self) -> Batch[np.ndarray]:
        """Return a batch with all rows."""
        every = np.arange(self._buffer.buffer_size * self._buffer.n_envs)
        return Batch(source=lambda name: self.read(name, every, np.asarray))

    def _over_rollout(self, rows: np.ndarray, convert: Callable[[np.ndarray], Any], compute: OverRollout) -> Any:
        found = self._computed.get(compute)
        if found is None:
            found = compute(self.whole())
            if len(self._computed) == MOST_COMPUTED:
                self._computed.clear()
            self._computed[compute] = found
        return convert(found[rows])

    def _column(self, name: str) -> object:
        found = map_parts(partial(in_rows, self._buffer), getattr(self._buffer, BUFFER_NAMES[name]))
        return found if name in ("observations", "actions") else found.reshape(len(found))

    def _episodes(self) -> np.ndarray:
        """Number the episodes of the rollout. An episode that the rollout has no beginning of counts as one."""
        starts = in_rows(self._buffer, self._buffer.episode_starts).reshape(self._buffer.n_envs, -1) > 0
        starts[:, 0] = True
        return starts.ravel().cumsum() - 1


# This is not an attribute of the buffers, so that a copy of the model made during a rollout has a free buffer.
_UNDER_WAY: WeakSet[RolloutBuffer] = WeakSet()


@contextmanager
def one_rollout(buffer: RolloutBuffer, n_steps: int) -> Iterator[None]:
    """Reserve the buffer for one rollout while the context is active.

    :param n_steps: length of the rollout
    :raises ArgumentError: if the buffer has a different length
    :raises RuntimeError: if another rollout is under way
    """
    check_is_free(buffer)
    if n_steps != buffer.buffer_size:
        raise ArgumentError(
            f"n_steps={n_steps} is not the length of the rollout buffer, which was created with "
            f"n_steps={buffer.buffer_size}. To change it, save the model and pass n_steps={n_steps} to load()"
        )
    _UNDER_WAY.add(buffer)
    try:
        yield
    finally:
        _UNDER_WAY.discard(buffer)


def check_is_free(buffer: RolloutBuffer) -> None:
    """Check that no rollout is being written to the buffer.

    :raises RuntimeError: if one is
    """
    if buffer in _UNDER_WAY:
        raise RuntimeError(
            "a callback called learn() of the model that is being trained, whose rollout is not complete: train a copy "
            "of the model, or call learn() when this training has ended"
        )


def check_rollout(buffer: RolloutBuffer, num_timesteps: int, n_processes: int = 1) -> None:
    """Check that the rollout that an update reads is complete and finite.

    :param buffer: the buffer
    :param num_timesteps: number of steps that all processes had taken at the end of the rollout
    :param n_processes: number of processes
    :raises NonFiniteError: if a number in the buffer is not finite; of several quantities, it names the one that comes
        first, in an order that puts causes before effects
    :raises RuntimeError: if steps are missing
    """
    if not buffer.full:
        raise RuntimeError(
            f"train() needs a whole rollout, but the buffer has {buffer.pos} of {buffer.buffer_size} steps: "
            "call collect_rollouts() first, or learn(), which calls both"
        )
    parts = parts_of(buffer.observations)
    arrays = {"observation" + "".join(f"[{key!r}]" for key in path): array for path, array in parts} | {
        "action": buffer.actions,
        "reward": buffer.rewards,
        "value": buffer.values,
        "log-probability": buffer.log_probs,
        "advantage": buffer.advantages,
        "return": buffer.returns,
    }
    for quantity, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            _refuse(quantity, in_rows(buffer, array), buffer, num_timesteps, n_processes)


def _refuse(quantity: str, rows: np.ndarray, buffer: RolloutBuffer, num_timesteps: int, n_processes: int) -> NoReturn:
    """Raise an error that names the first step with a row that is not finite.

    :raises NonFiniteError: always
    """
    finite = np.isfinite(rows).reshape(buffer.n_envs, buffer.buffer_size, -1).all(axis=2)
    step, env_index = (int(i) for i in np.argwhere(~finite.T)[0])
    steps_taken = num_timesteps - (buffer.buffer_size - step) * buffer.n_envs * n_processes
    value = rows[env_index * buffer.buffer_size + step]
    raise NonFiniteError(quantity, f"not finite: {value}", env_index, steps_taken)
