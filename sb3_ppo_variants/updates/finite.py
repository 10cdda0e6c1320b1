"""Checks that an update reads and writes finite numbers, and a snapshot to restore if it does not."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any, NoReturn

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy

from sb3_ppo_variants.errors import NonFiniteError
from sb3_ppo_variants.guards.outputs import is_finite
from sb3_ppo_variants.rollouts.buffer import in_rows
from sb3_ppo_variants.rollouts.loop import check_is_full


class Snapshot:
    """A copy of the current state of a policy and its optimizers.

    :param policy: the policy
    :param optimizers: the optimizers of its parameters
    """

    def __init__(self, policy: ActorCriticPolicy, optimizers: Iterable[th.optim.Optimizer]):
        owners: list[th.nn.Module | th.optim.Optimizer] = [policy, *optimizers]
        self._states = [(owner, _cloned(owner.state_dict())) for owner in owners]

    def restore(self) -> None:
        """Restore the policy and the optimizers to this state."""
        for owner, state in self._states:
            if isinstance(owner, th.nn.Module):
                for name, buffer in owner.named_buffers():
                    # The update may have changed its shape, which load_state_dict() refuses to change back.
                    if name in state and buffer.shape != state[name].shape:
                        buffer.data = state[name].clone()
            owner.load_state_dict(state)


def _cloned(state: Any) -> Any:
    # The result equals that of deepcopy, which takes many times as long for a tensor, but also copies sparse ones.
    if isinstance(state, th.Tensor) and state.layout is th.strided:
        return state.detach().clone(memory_format=th.contiguous_format)
    if isinstance(state, dict):
        return {key: _cloned(value) for key, value in state.items()}
    return [*map(_cloned, state)] if isinstance(state, list) else deepcopy(state)


def check_parameters(policy: ActorCriticPolicy) -> None:
    """Check that all parameters of the policy are finite.

    :raises NonFiniteError: if a parameter is not finite, naming it
    """
    for name, parameter in policy.named_parameters():
        if not parameter.isfinite().all():
            raise NonFiniteError(f"parameter {name}", "not finite")


def check_rollout(buffer: RolloutBuffer, num_timesteps: int, n_processes: int = 1) -> None:
    """Check that the rollout that an update reads is complete and finite.

    :param buffer: the buffer
    :param num_timesteps: number of steps that all processes had taken at the end of the rollout
    :param n_processes: number of processes
    :raises NonFiniteError: if a number in the buffer is not finite; of several quantities, it names the one that comes
        first, in an order that puts causes before effects
    :raises RuntimeError: if steps are missing
    """
    check_is_full(buffer)
    observations: Any = buffer.observations
    parts = {"observation": observations}
    if isinstance(observations, dict):
        parts = {f"observation[{key!r}]": array for key, array in observations.items()}
    arrays = parts | {
        "action": buffer.actions,
        "reward": buffer.rewards,
        "value": buffer.values,
        "log-probability": buffer.log_probs,
        "advantage": buffer.advantages,
        "return": buffer.returns,
    }
    for quantity, array in arrays.items():
        if array.dtype.kind == "f" and not is_finite(array):
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
