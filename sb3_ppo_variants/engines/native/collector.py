"""Rollouts with the native library: acting, and the steps of SB3's ``VecNormalize``."""

from itertools import accumulate
from math import sqrt
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from sb3_ppo_variants.collector import Observations, Steps, bounds_of, bring_into_bounds, resample_noise
from sb3_ppo_variants.engines.native import library
from sb3_ppo_variants.engines.native.networks import Architecture, arrays_of, compute_once
from sb3_ppo_variants.envs.masks import MaskCheck
from sb3_ppo_variants.envs.outputs import is_finite
from sb3_ppo_variants.errors import NonFiniteError
from sb3_ppo_variants.kl import Parameters
from sb3_ppo_variants.layout import AnySpace, map_parts, structure_of
from sb3_ppo_variants.policies.head import BoxActions
from sb3_ppo_variants.update import UpdatePlan

# Before NumPy 2, an array in single precision divided by a number in double precision stays in single precision.
PROMOTES = (np.ones(1, np.float32) / np.float64(1)).dtype == np.float64
# From so many environments on, one step of NumPy is faster than as many of Python.
MANY_ENVS = 48


@np.errstate(all="ignore")
def compute_returns_and_advantage(buffer: RolloutBuffer, last_values: np.ndarray, dones: np.ndarray) -> None:
    """Compute the same as the buffer's method of this name, for few environments on plain Python floats.

    :param buffer: a full buffer; its ``advantages`` and ``returns`` are filled
    :param last_values: values of the states after the last step, shape ``(n_envs,)``
    :param dones: whether the last step ended an episode, shape ``(n_envs,)``
    """
    if buffer.n_envs >= MANY_ENVS:
        buffer.compute_returns_and_advantage(th.from_numpy(last_values), dones)
        return
    if buffer.n_envs >= MANY_ENVS:
        buffer.compute_returns_and_advantage(th.from_numpy(last_values), dones)
        return
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


class NativeCollector:
    """Acts as the policy does, with one call of the library per step.

    It draws all random numbers of a rollout at its start, except for gSDE. It reads the policy's parameters without
    copying them, so that callbacks may change their values.

    :param model: the model
    :param plan: its policy
    :param buffer: the buffer to fill
    :param n_steps: length of the rollout
    """

    def __init__(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int):
        policy, arrays, n_envs = plan.kind.policy, arrays_of(plan.parameters), buffer.n_envs
        self._model, self._policy, self._buffer = model, policy, buffer
        # PyTorch would compute it anew in each step. A callback must not take an older one for it.
        vars(policy.action_dist).pop("distribution", None)
        architecture = Architecture(policy, arrays)
        self._features, self._distribution = architecture.features, architecture.distribution
        self._networks, self._dtype = architecture.structure, arrays["action_net.bias"].dtype
        # In single precision, observations of the right shape are used as features without conversion.
        self._are_features = self._dtype == np.float32 and isinstance(policy.observation_space, spaces.Box)
        self._masks = MaskCheck(model.action_space) if plan.kind.takes_masks else None
        self._allowed: np.ndarray | None = None

        # The arrays for all steps.
        outputs, size, n_stds = self._distribution.outputs, self._distribution.action_size, self._distribution.n_stds
        has_matrices, dtype = self._distribution.has_matrices, self._dtype
        self._inputs = np.zeros((n_envs, self._features.size), dtype)
        self._outputs = np.zeros((n_steps, n_envs, outputs), dtype)
        self._actions = np.zeros((n_steps, n_envs, size), dtype)
        self._shaped = self._actions.reshape(n_steps, n_envs, *(policy.action_space.shape or ()))
        self._log_probs, self._values = np.zeros((n_steps, n_envs), dtype), np.zeros((n_steps, n_envs, 1), dtype)
        self._mask = None if self._masks is None else np.ones((n_envs, outputs), bool)
        self._log_std = arrays.get("log_std") if n_stds else None
        self._std = np.zeros((n_steps, n_envs, n_stds), dtype) if n_stds else None
        # The matrices of gSDE are read at each step, because they are replaced between steps.
        self._matrices: th.Tensor | None = None
        noise = None if has_matrices else self._distribution.draw_noise(n_steps, n_envs, policy.action_net.bias.dtype)
        self._noise = noise
        # The library bounds actions, unless the policy scales them in its own way or the bounds are of another type,
        # which would change that of the result.
        self._bounds = bounds_of(policy)
        scales = policy.squash_output and type(policy).unscale_action is BoxActions.unscale_action
        bounds = (policy.action_space.low, policy.action_space.high) if scales else self._bounds
        low = high = self._clipped = None
        if bounds is not None and all(each.dtype == dtype and each.size == size for each in bounds):
            low, high = map(np.ravel, bounds)
            self._clipped = np.zeros_like(self._actions)
        self._acting = library.Acting(
            features=self._inputs, masks=self._mask, noise=noise, low=low, high=high, outputs=self._outputs,
            deviations=self._std if has_matrices else None, actions=self._actions, clipped=self._clipped,
            log_probs=self._log_probs, values=self._values, rows=n_envs, action_size=size, scales=scales,
            noise_size=outputs if noise is None else noise.shape[2],
        )  # fmt: skip
        self._first_noise = self._acting.noise
        self._run = library.with_memory(f"ppo_act_{dtype}", self._networks, self._acting)

        if buffer.actions.dtype.kind == "f":  # Updates evaluate what it keeps, as far as its type can hold it.
            buffer.actions = buffer.actions.astype(np.promote_types(buffer.actions.dtype, dtype), copy=False)
        # Discrete actions and observations have an additional dimension in the buffer.
        self._actions_in_buffer = _like(buffer.actions, n_envs, policy.action_space)
        self._observations_in_buffer: Any = map_parts(
            lambda steps, space: _like(steps, n_envs, space),
            buffer.observations,
            structure_of(policy.observation_space),
        )
        self._masks_in_buffer: np.ndarray | None = getattr(buffer, "action_masks", None)
        self._step: tuple[Observations, np.ndarray, np.ndarray, np.ndarray]

    def act(self, step: int, observations: Observations) -> np.ndarray:
        inputs, acting = self._inputs, self._acting
        resample_noise(self._model, self._policy, step, self._buffer.n_envs)
        if self._are_features and observations.shape == inputs.shape:
            if observations.dtype == inputs.dtype:
                inputs[...] = observations
            else:
                with np.errstate(all="ignore"):  # It takes time in each step.
                    inputs[...] = observations
        else:
            features = self._features.compute(observations, self._dtype)
            inputs[...] = library.fitting(features, "features", self._dtype, *inputs.shape)
        if self._masks is not None and self._mask is not None:
            self._allowed = self._mask[...] = self._masks.now(self._model.env)
        if self._noise is None:
            self._read_matrices()
        else:
            acting.noise = self._first_noise + step * self._noise[0].nbytes
            if self._std is not None and self._log_std is not None:
                self._std[step] = self._log_std  # np.exp would warn before an error names the action.
        acting.step = step
        outputs = self._outputs[step]  # Raises IndexError if there is no such step.
        self._run()
        if not acting.is_finite:
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
        assert isinstance(distribution, StateDependentNoiseDistribution) and self._log_std is not None
        single, of_envs = distribution.exploration_mat, distribution.exploration_matrices
        # As in SB3, all environments share a matrix unless there is one for each.
        matrices = single if n_envs == 1 or n_envs != len(of_envs) else of_envs
        if matrices is not self._matrices:
            self._matrices = matrices
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

    def old_parameters(self) -> Parameters:
        std = None if self._std is None else th.from_numpy(_in_rows(self._std))
        if std is not None and not self._distribution.has_matrices:
            std = std.exp()
        return self._distribution.parameters(th.from_numpy(_in_rows(self._outputs)), std)


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


def fast_steps(env: VecEnv) -> Steps:
    """Choose the fastest object that steps an environment.

    For a ``VecNormalize`` over observations that are arrays of floating-point numbers, this is a
    :class:`NormalizedSteps`, if the library was built. All other environments step by themselves.
    """
    if type(env) is not VecNormalize or not PROMOTES or env.returns.dtype != np.float64 or library.library() is None:
        return env
    space = env.venv.observation_space
    # NumPy sums a single column in a different order.
    takes = isinstance(space, spaces.Box) and space.dtype in library.FLOATS and np.prod(space.shape) > 1
    return NormalizedSteps(env) if takes else env


class NormalizedSteps:
    """Takes the steps of a ``VecNormalize`` with bit-identical results. The library normalises the observations.

    Every step reads all state from the wrapper and writes it back. Code that reads or changes this state between two
    steps therefore finds what SB3's own step would leave.
    """

    def __init__(self, env: VecNormalize):
        self._env, self.num_envs = env, env.num_envs
        space: Any = env.venv.observation_space
        # The structure points to these arrays, so every step copies into them.
        self._staged = np.zeros((env.num_envs, *space.shape), space.dtype)
        self._mean, self._variance = np.zeros(space.shape), np.zeros(space.shape)
        self._normalized = np.zeros(self._staged.shape, np.float32)
        self._structure = library.Normalizing(
            observations=self._staged, mean=self._mean, variance=self._variance, normalized=self._normalized,
            rows=env.num_envs, columns=self._mean.size,
        )  # fmt: skip
        self._run = library.function_of(f"ppo_normalize_{space.dtype}", self._structure)

    def step(self, actions: np.ndarray) -> VecEnvStepReturn:
        """Step the environments and normalise what they return."""
        env = self._env
        env.venv.step_async(actions)
        observations, rewards, dones, infos = env.venv.step_wait()
        env.old_obs, env.old_reward = observations, rewards  # type: ignore[assignment]
        normalized = self._observations(observations)
        normalized_rewards = _rewards(env, rewards)
        # Flags that are not booleans index the returns in a different way, as they do in SB3.
        if dones.dtype != np.bool_ or True in dones.tolist():
            for done, info in zip(dones, infos, strict=False):
                if done and "terminal_observation" in info:
                    info["terminal_observation"] = env.normalize_obs(info["terminal_observation"])
            env.returns[dones] = 0
        return normalized, normalized_rewards, dones, infos

    def _observations(self, observations: Observations) -> Observations:
        env, staged = self._env, self._staged
        statistics: Any = env.obs_rms if env.norm_obs else None
        # NumPy sums arrays of another layout in another order.
        alike = type(observations) is np.ndarray and observations.flags.c_contiguous
        alike = alike and observations.dtype is staged.dtype and observations.shape == staged.shape
        if alike and type(statistics) is RunningMeanStd:
            staged[...], self._mean[...], self._variance[...] = observations, statistics.mean, statistics.var
            structure = self._structure
            structure.updates, structure.count = bool(env.training), statistics.count
            structure.epsilon, structure.limit = env.epsilon, env.clip_obs
            # Where numbers are not finite, SB3 normalises again, and NumPy issues its warnings.
            if self._run():
                if env.training:
                    statistics.mean, statistics.var = self._mean.copy(), self._variance.copy()
                    statistics.count += self.num_envs
                return self._normalized.copy()
        if env.training and env.norm_obs:
            env.obs_rms.update(observations)
        return env.normalize_obs(observations)


def _update_returns(env: VecNormalize, rewards: np.ndarray) -> None:
    """Update the returns and their statistics as ``VecNormalize`` does during training."""
    n = len(rewards)
    if n == 1:
        mean = env.returns.item() * float(env.gamma) + rewards.item()
        variance = mean - mean
        returns = np.array([mean])
    else:
        returns = env.returns * env.gamma
        returns += rewards
        mean = float(np.add.reduce(returns)) / n
        deviations = returns - mean
        deviations *= deviations
        variance = float(np.add.reduce(deviations)) / n
    env.returns = returns
    statistics = env.ret_rms
    if type(statistics) is not RunningMeanStd:
        statistics.update(returns)
        return
    # Arithmetic with Python's floats is faster than with NumPy's scalars.
    old_mean, old_variance, count = float(statistics.mean), float(statistics.var), float(statistics.count)
    delta, total = mean - old_mean, count + n
    second_moment = old_variance * count + variance * n + delta * delta * count * n / total
    statistics.mean = np.float64(old_mean + delta * n / total)  # type: ignore[assignment]
    statistics.var = np.float64(second_moment / total)  # type: ignore[assignment]
    statistics.count = total


@np.errstate(all="ignore")
def _rewards(env: VecNormalize, rewards: np.ndarray) -> np.ndarray:
    """Normalise rewards as ``normalize_reward`` does, after the update of their statistics."""
    if env.training:
        _update_returns(env, rewards)
    variance = np.float64(env.ret_rms.var + env.epsilon)
    if not env.norm_reward or rewards.dtype not in library.FLOATS or not variance > 0.0:
        return env.normalize_reward(rewards)
    if len(rewards) == 1:
        # With the arguments in this order, NaN stays NaN.
        reward = min(max(rewards.item() / sqrt(variance), -env.clip_reward), env.clip_reward)
        return np.array([reward], np.float32)
    # np.clip takes twice as long for small arrays.
    scaled = np.minimum(np.maximum(rewards / np.sqrt(variance), -env.clip_reward), env.clip_reward)
    normalized: np.ndarray = scaled.astype(np.float32)
    return normalized
