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
from stable_baselines3.common.utils import obs_as_tensor

from sb3_ppo_variants.collector import Observations, bounds_of, bring_into_bounds, resample_noise
from sb3_ppo_variants.engines.native import library
from sb3_ppo_variants.engines.native.networks import Architecture, arrays_of, compute_once
from sb3_ppo_variants.envs.masks import Masks
from sb3_ppo_variants.envs.outputs import is_finite
from sb3_ppo_variants.errors import NonFiniteError
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
        policy, n_envs = kind.policy, buffer.n_envs
        self._model, self._policy, self._buffer = model, policy, buffer
        # PyTorch would compute it anew in each step. A callback must not take an older one for it.
        vars(policy.action_dist).pop("distribution", None)
        arrays = arrays_of(dict(policy.named_parameters()))
        architecture = Architecture(policy)
        self._features, self._distribution = architecture.features, architecture.distribution
        self._networks = architecture.structure(arrays)
        self._dtype = arrays["action_net.bias"].dtype
        self._log_std = arrays.get("log_std") if self._distribution.n_stds else None
        # In single precision, observations of the right shape are used as features without conversion.
        self._are_features = self._dtype == np.float32 and isinstance(policy.observation_space, spaces.Box)
        self._masks = Masks(model) if kind.takes_masks else None
        self._allowed: np.ndarray | None = None
        self._acting = self._prepare(n_steps, n_envs)
        name = f"ppo_act_{self._dtype}"
        self._run = library.library_in_use().with_memory(name, self._networks, self._acting)
        # Discrete actions and observations have an additional dimension in the buffer.
        self._actions_in_buffer = _like(buffer.actions, n_envs, policy.action_space)
        self._observations_in_buffer: Any = map_parts(
            lambda steps, space: _like(steps, n_envs, space),
            buffer.observations,
            structure_of(policy.observation_space),
        )
        self._masks_in_buffer: np.ndarray | None = getattr(buffer, "action_masks", None)
        self._step: tuple[Observations, np.ndarray, np.ndarray, np.ndarray]

    def _prepare(self, n_steps: int, n_envs: int) -> library.Acting:
        """Return the structure of a rollout, after making the arrays for all its steps."""
        policy, distribution, dtype = self._policy, self._distribution, self._dtype
        outputs, size, n_stds = distribution.outputs, distribution.action_size, distribution.n_stds
        self._inputs = np.zeros((n_envs, self._features.size), dtype)
        self._outputs = np.zeros((n_steps, n_envs, outputs), dtype)
        self._actions = np.zeros((n_steps, n_envs, size), dtype)
        self._shaped = self._actions.reshape(n_steps, n_envs, *(policy.action_space.shape or ()))
        self._log_probs, self._values = np.zeros((n_steps, n_envs), dtype), np.zeros((n_steps, n_envs, 1), dtype)
        self._mask = None if self._masks is None else np.ones((n_envs, outputs), bool)
        self._std = np.zeros((n_steps, n_envs, n_stds), dtype) if n_stds else None
        # The matrices of gSDE are read at each step, because they are replaced between steps.
        self._noise: np.ndarray | None = None
        self._matrices: th.Tensor | None = None
        if not distribution.has_matrices:
            self._noise = distribution.draw_noise(n_steps, n_envs, policy.action_net.bias.dtype)
            self._first_noise = self._noise.ctypes.data
        # The library bounds actions, unless the policy scales them in its own way or the bounds are of another type,
        # which would change that of the result.
        self._bounds = bounds_of(policy)
        scales = policy.squash_output and type(policy).unscale_action is BoxActions.unscale_action
        bounds = (policy.action_space.low, policy.action_space.high) if scales else self._bounds
        low = high = self._clipped = None
        if bounds is not None and all(each.dtype == dtype and each.size == size for each in bounds):
            low, high = map(np.ravel, bounds)
            self._clipped = np.zeros_like(self._actions)
        return library.Acting(
            self._inputs,
            self._mask,
            self._noise,
            low,
            high,
            self._outputs,
            self._std if distribution.has_matrices else None,
            self._actions,
            self._clipped,
            self._log_probs,
            self._values,
            n_envs,
            size,
            outputs if self._noise is None else self._noise.shape[2],
            scales,
            0,
            1,
        )

    def act(self, step: int, observations: Observations) -> np.ndarray:
        inputs = self._inputs
        resample_noise(self._model, self._policy, step, self._buffer.n_envs)
        if self._are_features and observations.shape == inputs.shape:
            inputs[...] = observations
        else:
            inputs[...] = library.fitting(
                self._features.compute(observations, self._dtype), "features", self._dtype, *inputs.shape
            )
        if self._masks is not None and self._mask is not None:
            self._allowed = self._mask[...] = self._masks.now()
        if self._noise is None:
            self._read_matrices()
        else:
            self._acting.noise = self._first_noise + step * self._noise[0].nbytes
            if self._std is not None and self._log_std is not None:
                self._std[step] = self._log_std  # np.exp would warn before an error names the action.
        self._acting.step = step
        outputs = self._outputs[step]  # Raises IndexError if there is no such step.
        self._run()
        if not self._acting.is_finite:
            _check_finite(outputs)
            _check_finite(self._actions[step])
        actions = self._shaped[step]
        if self._distribution.takes_integers:
            actions = actions.astype(np.int64)
        self._step = observations, actions, self._values[step], self._log_probs[step]
        if self._clipped is None:
            return bring_into_bounds(self._policy, self._bounds, actions)
        clipped: np.ndarray = self._clipped[step].reshape(actions.shape)
        return clipped

    def _read_matrices(self) -> None:
        """Show the library the matrices that gSDE has at the moment."""
        acting, n_envs, distribution = self._acting, self._buffer.n_envs, self._policy.action_dist
        assert isinstance(distribution, StateDependentNoiseDistribution)
        single, of_envs = distribution.exploration_mat, distribution.exploration_matrices
        # As in SB3, all environments share a matrix unless there is one for each.
        matrices = single if n_envs == 1 or n_envs != len(of_envs) else of_envs
        if matrices is not self._matrices:
            self._matrices = matrices
            assert self._log_std is not None
            shape = len(self._log_std), self._distribution.outputs
            wanted = shape if matrices is single else (n_envs, *shape)
            found = np.ascontiguousarray(matrices.detach().numpy())
            self._exploring = library.fitting(found, "noise", self._dtype, *wanted)
            acting.noise = library.as_field(self._exploring)
            acting.noise_size = 0 if matrices is single else shape[0] * shape[1]

    def seen(self) -> dict[str, object]:
        observations, actions, values, log_probs = self._step
        is_array = isinstance(observations, np.ndarray)  # For arrays obs_as_tensor does the same, but slower.
        return {
            "obs_tensor": th.from_numpy(observations) if is_array else obs_as_tensor(observations, self._model.device),
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
        values = np.empty((len(features), 1), self._dtype)
        compute_once(self._networks, self._dtype, features=features, values=values, rows=len(features))
        return values

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

    def drawn_from(self) -> Sequence[Parameters]:
        """Return the parameters of the distributions of each step that was stored."""
        stds: Any = [None] * self._buffer.pos
        if self._std is not None:
            stds = self._std if self._distribution.has_matrices else np.exp(self._std)
        outputs = self._outputs[: self._buffer.pos]
        return [self._distribution.parameters(*of_step) for of_step in zip(outputs, stds, strict=False)]

    def old_parameters(self) -> Parameters:
        stds = self._std
        if stds is not None:
            stds = _in_rows(stds if self._distribution.has_matrices else np.exp(stds))
        return self._distribution.parameters(_in_rows(self._outputs), stds)


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
