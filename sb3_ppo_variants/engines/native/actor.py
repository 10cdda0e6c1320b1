"""Acting with the native library."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.utils import obs_as_tensor

from sb3_ppo_variants.collector import Observations, bounds_of, bring_into_bounds, resample_noise
from sb3_ppo_variants.engines.native import structures
from sb3_ppo_variants.engines.native.library import library_in_use
from sb3_ppo_variants.engines.native.networks import Architecture, Features, arrays_of, values_of
from sb3_ppo_variants.engines.native.structures import as_field, fitting
from sb3_ppo_variants.errors import NonFiniteError
from sb3_ppo_variants.guards.masks import Masks
from sb3_ppo_variants.guards.outputs import is_finite
from sb3_ppo_variants.kl import Parameters
from sb3_ppo_variants.layout import AnySpace, map_parts, structure_of
from sb3_ppo_variants.policies.head import BoxActions
from sb3_ppo_variants.policies.kind import PolicyKind


def compute_returns_and_advantage(buffer: RolloutBuffer, last_values: np.ndarray, dones: np.ndarray) -> None:
    """Compute the same as the buffer's method of this name, with the recursion over time on plain Python floats.

    :param buffer: a full buffer; its ``advantages`` and ``returns`` are filled
    :param last_values: values of the states after the last step, shape ``(n_envs,)``
    :param dones: whether the last step ended an episode, shape ``(n_envs,)``
    """
    next_values = np.concatenate([buffer.values[1:], last_values[None]])
    continues = np.concatenate([1 - buffer.episode_starts[1:], 1 - dones[None].astype(np.float32)])
    deltas = buffer.rewards + buffer.gamma * next_values * continues - buffer.values
    decays = buffer.gamma * buffer.gae_lambda * continues
    for env in range(buffer.n_envs):
        backwards = zip(deltas[::-1, env].tolist(), decays[::-1, env].tolist(), strict=True)
        buffer.advantages[::-1, env] = [*accumulate(backwards, _add_discounted, initial=0.0)][1:]
    buffer.returns = buffer.advantages + buffer.values


def _add_discounted(following: float, step: tuple[float, float]) -> float:
    delta, decay = step
    return delta + decay * following


CPU = th.device("cpu")


class NativeActor:
    """Acts as the policy does, with one call of the library per step.

    It draws all random numbers of a rollout at its start, except for gSDE. It reads the policy's parameters without
    copying them, so that callbacks may change their values.

    :param model: the model
    :param kind: the kind of its policy
    :param buffer: the buffer to fill
    :param n_steps: length of the rollout
    """

    def __init__(self, model: OnPolicyAlgorithm, kind: PolicyKind, buffer: RolloutBuffer, n_steps: int):
        self._model, self._policy = model, kind.policy
        # PyTorch would compute it anew in each step. A callback must not take an older one for it.
        vars(kind.policy.action_dist).pop("distribution", None)
        self._buffer = buffer
        self._masks_in_buffer: np.ndarray | None = getattr(buffer, "action_masks", None)
        arrays = arrays_of(dict(kind.policy.named_parameters()))
        self._architecture = Architecture.of(kind.policy)
        self._drawn = self._architecture.drawn
        self._masks = Masks(model) if kind.takes_masks else None
        self._allowed: np.ndarray | None = None
        self._dtype = arrays["action_net.bias"].dtype
        self._features = Features(kind.policy)
        # In single precision, observations of the right shape are used as features without conversion.
        self._are_features = self._dtype == np.float32 and isinstance(kind.policy.observation_space, spaces.Box)
        self._acting = self._prepared(n_steps, buffer.n_envs, kind.policy.action_net.bias.dtype)
        self._networks = self._architecture.structure(arrays)
        self._run = library_in_use().acting(self._dtype, self._networks, self._acting)
        self._log_std = arrays.get("log_std") if self._drawn.n_stds else None
        # Discrete actions and observations have an additional dimension in the buffer.
        self._actions_in_buffer = _like(buffer.actions, buffer.n_envs, kind.policy.action_space)
        spaces_of_parts = structure_of(kind.policy.observation_space)
        self._observations_in_buffer: Any = map_parts(
            lambda steps, space: _like(steps, buffer.n_envs, space), buffer.observations, spaces_of_parts
        )
        self._step: tuple[Observations, np.ndarray, np.ndarray, np.ndarray]

    def _prepared(self, n_steps: int, n_envs: int, dtype: th.dtype) -> structures.Acting:
        """Return the structure of a rollout, after making the arrays for all its steps."""
        drawn, zeros = self._drawn, self._zeros
        outputs, size = drawn.outputs, drawn.action_size
        self._inputs = zeros(n_envs, self._architecture.inputs)
        self._outputs, self._actions = zeros(n_steps, n_envs, outputs), zeros(n_steps, n_envs, size)
        self._log_probs, self._values = zeros(n_steps, n_envs), zeros(n_steps, n_envs, 1)
        self._shaped = self._actions.reshape(n_steps, n_envs, *(self._policy.action_space.shape or ()))
        self._mask = None if self._masks is None else np.ones((n_envs, outputs), bool)
        self._std = zeros(n_steps, n_envs, drawn.n_stds) if drawn.n_stds else None
        deviations = self._std if drawn.is_state_dependent else None
        # The matrices of gSDE are read at each step, because they are replaced between steps.
        self._noise: np.ndarray | None = None
        self._matrices: th.Tensor | None = None
        if deviations is None:
            self._noise = drawn.draw_noise(n_steps, n_envs, dtype)
            self._first_noise = self._noise.ctypes.data
        self._bounds = bounds_of(self._policy)
        scales = self._scales_in_library()
        low, high = self._bounds_of_library(scales)
        self._clipped = None if low is None else np.zeros_like(self._actions)
        results = (self._outputs, deviations, self._actions, self._clipped, self._log_probs, self._values)
        noise_size = outputs if self._noise is None else self._noise.shape[2]
        return structures.Acting(
            self._inputs, self._mask, self._noise, low, high, *results, n_envs, size, noise_size, scales, 0, 1
        )

    def _zeros(self, *shape: int) -> np.ndarray:
        return np.zeros(shape, self._dtype)

    def _scales_in_library(self) -> bool:
        """Whether the library scales actions from [-1, 1]: not if the policy has its own way to do so."""
        policy = self._policy
        defined = [each for each in (policy, *type(policy).__mro__) if "unscale_action" in vars(each)]
        return policy.squash_output and defined == [BoxActions, BasePolicy]

    def _bounds_of_library(self, scales: bool) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Return the bounds if the library bounds actions. Bounds of another type would change that of the result."""
        space = self._policy.action_space
        bounds = (space.low, space.high) if scales and isinstance(space, spaces.Box) else self._bounds
        size = self._drawn.action_size
        if bounds is None or any(each.dtype != self._dtype or each.size != size for each in bounds):
            return None, None
        low, high = (fitting(np.ravel(bound), "bound of actions", self._dtype, size) for bound in bounds)
        return low, high

    def act(self, step: int, observations: Observations) -> np.ndarray:
        inputs = self._inputs
        resample_noise(self._model, self._policy, step, self._buffer.n_envs)
        features = observations
        if not (self._are_features and observations.shape == inputs.shape):
            features = self._features.compute(observations, self._dtype)
            fitting(features, "features", self._dtype, *inputs.shape)
        inputs[...] = features
        if self._masks is not None and self._mask is not None:
            self._allowed = self._mask[...] = self._masks.now()
        if self._std is not None and self._log_std is not None and not self._drawn.is_state_dependent:
            self._std[step] = self._log_std  # np.exp would warn before an error names the action.
        self._read_noise(step)
        self._acting.step = step
        outputs = self._outputs[step]  # Raises IndexError if there is no such step.
        self._run()
        if not self._acting.is_finite:
            _check_finite(outputs)
            _check_finite(self._actions[step])
        actions = self._shaped[step]
        if self._drawn.takes_integers:
            actions = actions.astype(np.int64)
        self._step = observations, actions, self._values[step], self._log_probs[step]
        if self._clipped is None:
            return bring_into_bounds(self._policy, self._bounds, actions)
        clipped: np.ndarray = self._clipped[step].reshape(actions.shape)
        return clipped

    def _read_noise(self, step: int) -> None:
        """Show the library the random numbers of a step: its own, or the matrices that gSDE has at the moment."""
        acting, n_envs = self._acting, self._buffer.n_envs
        if self._noise is not None:
            acting.noise = self._first_noise + step * self._noise[0].nbytes
            return
        distribution = self._policy.action_dist
        assert isinstance(distribution, StateDependentNoiseDistribution)
        single, of_envs = distribution.exploration_mat, distribution.exploration_matrices
        # As in SB3, all environments share a matrix unless there is one for each.
        matrices = single if n_envs == 1 or n_envs != len(of_envs) else of_envs
        if matrices is not self._matrices:
            self._matrices = matrices
            assert self._log_std is not None
            shape = len(self._log_std), self._drawn.outputs
            wanted = shape if matrices is single else (n_envs, *shape)
            self._exploring = fitting(np.ascontiguousarray(matrices.detach().numpy()), "noise", self._dtype, *wanted)
            acting.noise = as_field(self._exploring)
            acting.noise_size = 0 if matrices is single else shape[0] * shape[1]

    def seen(self) -> dict[str, object]:
        observations, actions, values, log_probs = self._step
        is_array = isinstance(observations, np.ndarray)  # For arrays obs_as_tensor does the same, but slower.
        return {
            "obs_tensor": th.from_numpy(observations) if is_array else obs_as_tensor(observations, CPU),
            "actions": actions,
            "values": th.from_numpy(values),
            "log_probs": th.from_numpy(log_probs),
            **({} if self._allowed is None else {"action_masks": self._allowed}),
        }

    def terminal_value(self, observation: Observations, env_index: int) -> float:
        batch = map_parts(lambda part: np.asarray(part)[None], observation)
        # A number of the networks' type, because a Python float would round the sum with the reward differently.
        value: float = self._values_of(batch)[0, 0]
        return value

    def _values_of(self, observations: Observations) -> np.ndarray:
        features = self._features.compute(observations, self._dtype)
        return values_of(
            self._networks, fitting(features, "features", self._dtype, len(features), self._architecture.inputs)
        )

    def store(self, observations: Observations, rewards: np.ndarray, episode_starts: np.ndarray) -> None:
        """Write the step to the buffer as ``RolloutBuffer.add`` does, but without its copies."""
        buffer, row = self._buffer, self._buffer.pos
        _, self._actions_in_buffer[row], values, buffer.log_probs[row] = self._step
        if isinstance(observations, dict):
            for key, array in observations.items():
                self._observations_in_buffer[key][row] = array
        else:
            self._observations_in_buffer[row] = observations
        if self._allowed is not None and self._masks_in_buffer is not None:
            self._masks_in_buffer[row] = self._allowed
        buffer.rewards[row] = rewards
        buffer.episode_starts[row] = episode_starts
        buffer.values[row] = values[:, 0]
        buffer.pos = row + 1
        buffer.full = buffer.pos == buffer.buffer_size

    def finish(self, observations: Observations, dones: np.ndarray) -> th.Tensor:
        values = self._values_of(observations)
        compute_returns_and_advantage(self._buffer, values[:, 0], dones)
        return th.from_numpy(values)

    def old_parameters(self) -> Parameters:
        stds = self._deviations()
        return self._drawn.parameters(_in_rows(self._outputs), None if stds is None else _in_rows(stds))

    def drawn_from(self) -> Sequence[Parameters]:
        """Return the parameters of the distributions of each step that was stored."""
        stds = self._deviations()
        return [
            self._drawn.parameters(self._outputs[step], None if stds is None else stds[step])
            for step in range(self._buffer.pos)
        ]

    def _deviations(self) -> np.ndarray | None:
        """Return the standard deviations of all steps, shape ``(n_steps, n_envs, n_stds)``, if there are any."""
        return self._std if self._std is None or self._drawn.is_state_dependent else np.exp(self._std)


def _check_finite(array: np.ndarray) -> None:
    """:raises NonFiniteError: if an array computed from the network's output is not finite"""
    if not is_finite(array):
        raise NonFiniteError("output of the policy network", f"not finite: it led to {array}")


def _in_rows(steps: np.ndarray) -> np.ndarray:
    """Arrange the arrays of all steps in the order of a buffer's rows."""
    return np.ascontiguousarray(steps.swapaxes(0, 1)).reshape(-1, steps.shape[-1])


def _like(array: np.ndarray, n_envs: int, space: AnySpace) -> np.ndarray:
    """View a buffer's array with the shape of a space for each step and environment."""
    return array.reshape(-1, n_envs, *(space.shape or ()))
