"""Rollouts: the rows of SB3's rollout buffers, the distributions they were drawn from, and minibatches of them.

A rollout of ``n_steps`` steps in ``n_envs`` environments has ``n_steps * n_envs`` rows, environment by environment: the
order in which SB3's buffers flatten themselves when they are first read.
"""

import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.type_aliases import PyTorchObs, RolloutBufferSamples

from sb3_ppo_variants.arguments import Values
from sb3_ppo_variants.errors import NonFiniteError
from sb3_ppo_variants.kl import Parameters
from sb3_ppo_variants.layout import map_parts
from sb3_ppo_variants.objectives import Batch

# Enough rows to keep a small network busy, few enough for the activations of a large one to stay in the cache.
ROWS_AT_ONCE = 512
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
OverRollout: TypeAlias = Callable[[Batch], th.Tensor]
# Results for the whole rollout that are kept, because a lambda is another function for each minibatch.
MOST_COMPUTED = 8
# A minibatch as a rollout buffer yields it, of a class of the buffer's own.
Read: TypeAlias = Any


class Samples(NamedTuple):
    """A minibatch: SB3's columns, and what the policy kind needs in addition."""

    observations: PyTorchObs
    actions: th.Tensor
    old_values: th.Tensor
    old_log_prob: th.Tensor
    advantages: th.Tensor
    returns: th.Tensor
    more: object = None
    """Additional data that the policy kind needs."""
    rows: np.ndarray | None = None
    """The indices of the samples in the rollout; ``None`` if the buffer does not say."""


@dataclass(frozen=True)
class OldPolicy:
    """The distributions that the actions of a rollout were drawn from.

    :param parameters: their parameters, one row per row of the rollout
    :param rewards: the buffer's array of rewards, by which the rollout is recognised: each rollout has a new one
    """

    parameters: Parameters
    rewards: np.ndarray

    def of(self, buffer: RolloutBuffer) -> Parameters | None:
        """Return the parameters, if these are the distributions of the rollout in a buffer."""
        return self.parameters if buffer.rewards is self.rewards else None


@contextmanager
def advantages_follow_rewards(buffer: RolloutBuffer) -> Iterator[None]:
    """Warn if rewards change while the context is active, and the advantages that were computed from them do not."""
    rewards, advantages = buffer.rewards.copy(), buffer.advantages.copy()
    yield
    if np.any(buffer.rewards != rewards) and np.array_equal(buffer.advantages, advantages):
        warnings.warn(
            "a callback changed the rewards after the rollout, when advantages and returns were already computed: call "
            "rollout_buffer.compute_returns_and_advantage(...) in it, or change rewards in an environment wrapper"
        )


def draw_minibatches(buffer: RolloutBuffer, batch_size: int) -> Generator[tuple[Read, np.ndarray | None]]:
    """Draw the minibatches of one epoch, as the buffer's ``get`` does, each with its rows in the rollout.

    Buffers do not tell which rows they draw, so the method that reads the rows is watched while they do. Use it in
    :func:`contextlib.closing`.

    :return: the minibatches and their rows, which are ``None`` if the buffer reads them in another way
    """
    read_rows: Callable[..., Read] = buffer._get_samples
    if type(buffer)._get_samples is RolloutBuffer._get_samples:
        read_rows = partial(_take_rows, buffer)
    drawn: list[np.ndarray] = []

    def read_and_note(rows: np.ndarray, *more: Any) -> Any:
        drawn[:] = [rows]
        return read_rows(rows, *more)

    buffer._get_samples = read_and_note  # type: ignore[method-assign, assignment]
    try:
        for minibatch in buffer.get(batch_size):
            yield minibatch, drawn.pop() if drawn else None
    finally:
        del buffer._get_samples


def _take_rows(buffer: RolloutBuffer, rows: np.ndarray) -> RolloutBufferSamples:
    """Read what SB3's buffer of arrays reads, but copy each number once instead of up to three times."""
    taken = []
    for array in (
        buffer.observations, buffer.actions, buffer.values, buffer.log_probs, buffer.advantages, buffer.returns
    ):  # fmt: skip
        taken.append(buffer.to_torch(array.take(rows, axis=0), copy=False))
    observations, actions, *others = taken
    return RolloutBufferSamples(observations, actions.float(), *map(th.flatten, others))


def in_rows(buffer: RolloutBuffer, array: np.ndarray) -> np.ndarray:
    """Arrange one of a buffer's arrays in the order of its rows, whether or not the buffer has flattened itself."""
    # SB3's buffers never flatten the arrays that no minibatch contains, such as rewards.
    is_flat = buffer.generator_ready and len(array) == buffer.buffer_size * buffer.n_envs
    return array if is_flat else buffer.swap_and_flatten(array)


def inputs_at(buffer: RolloutBuffer, rows: np.ndarray) -> tuple[PyTorchObs, np.ndarray | None]:
    """Read the observations in rows of a rollout, and the action masks, if the buffer has any."""
    # SB3's buffers have steps and environments as dimensions until they are first read, and are flat from then on.
    where: Any = rows if buffer.generator_ready else (rows % buffer.buffer_size, rows // buffer.buffer_size)
    masks = getattr(buffer, "action_masks", None)
    masks = None if masks is None else masks[where]
    if isinstance(buffer.observations, dict):
        return {key: buffer.to_torch(array[where]) for key, array in buffer.observations.items()}, masks
    return buffer.to_torch(buffer.observations[where]), masks


class Columns:
    """The columns of a rollout that objectives may read, by row.

    :param buffer: a full buffer, which does not change any more
    :param old_parameters: the parameters of the old distributions in all rows, if they are known
    """

    def __init__(self, buffer: RolloutBuffer, old_parameters: Parameters | None = None):
        self._buffer = buffer
        self._in_rows: Values = {}
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

    def whole(self) -> Batch:
        """Return a batch with all rows, on the CPU."""
        every = np.arange(self._buffer.buffer_size * self._buffer.n_envs)
        return Batch(source=lambda name: self.read(name, every, th.from_numpy))

    def _over_rollout(self, rows: np.ndarray, convert: Callable[[np.ndarray], Any], compute: OverRollout) -> Any:
        found = self._computed.get(compute)
        if found is None:
            found = compute(self.whole()).numpy()
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
    arrays = {"observation": buffer.observations}
    if isinstance(buffer.observations, dict):
        arrays = {f"observation[{key!r}]": array for key, array in buffer.observations.items()}
    arrays |= {
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
    """Raise an error that names the first step with a row that is not finite."""
    finite = np.isfinite(rows).reshape(buffer.n_envs, buffer.buffer_size, -1).all(axis=2)
    step, env_index = (int(i) for i in np.argwhere(~finite.T)[0])
    steps_taken = num_timesteps - (buffer.buffer_size - step) * buffer.n_envs * n_processes
    value = rows[env_index * buffer.buffer_size + step]
    raise NonFiniteError(quantity, f"not finite: {value}", env_index, steps_taken)
