"""Steps of SB3's ``VecNormalize`` with bit-identical results and fewer copies."""

from math import sqrt
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from sb3_ppo_variants.collector import Observations, Steps
from sb3_ppo_variants.engines.native.library import FLOATS, Normalizing, library, library_in_use

# Before NumPy 2, an array in single precision divided by a number in double precision stays in single precision.
PROMOTES = (np.ones(1, np.float32) / np.float64(1)).dtype == np.float64


def fast_steps(env: VecEnv) -> Steps:
    """Choose the fastest object that steps an environment.

    For a ``VecNormalize`` over observations that are arrays of floating-point numbers, this is a
    :class:`NormalizedSteps`, if the library was built. All other environments step by themselves.
    """
    if type(env) is not VecNormalize or not PROMOTES or env.returns.dtype != np.float64 or library() is None:
        return env
    space = env.venv.observation_space
    # NumPy sums a single column in a different order.
    takes = isinstance(space, spaces.Box) and space.dtype in FLOATS and np.prod(space.shape) > 1
    return NormalizedSteps(env) if takes else env


class NormalizedSteps:
    """Takes the steps of a ``VecNormalize``. The library normalises the observations.

    Every step reads all state from the wrapper and writes it back. Code that reads or changes this state between two
    steps therefore finds what SB3's own step would leave.
    """

    def __init__(self, env: VecNormalize):
        self._env = env
        self.num_envs = env.num_envs
        space: Any = env.venv.observation_space
        # The structure points to these arrays, so every step copies into them.
        self._staged = np.zeros((env.num_envs, *space.shape), space.dtype)
        self._mean, self._variance = np.zeros(space.shape), np.zeros(space.shape)
        self._normalized = np.zeros(self._staged.shape, np.float32)
        arrays = (self._staged, self._mean, self._variance, self._normalized)
        self._structure = Normalizing(*arrays, env.num_envs, self._mean.size, 0, 0.0, 0.0, 0.0)
        self._run = library_in_use().function(f"ppo_normalize_{space.dtype}", self._structure)

    def step(self, actions: np.ndarray) -> VecEnvStepReturn:
        """Step the environments and normalise what they return."""
        env = self._env
        env.venv.step_async(actions)
        observations, rewards, dones, infos = env.venv.step_wait()
        env.old_obs, env.old_reward = observations, rewards  # type: ignore[assignment]
        normalized = self._observations(observations)
        if env.training:
            _update_returns(env, rewards)
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


def _rewards(env: VecNormalize, rewards: np.ndarray) -> np.ndarray:
    """Normalise rewards as ``normalize_reward`` does."""
    variance = np.float64(env.ret_rms.var + env.epsilon)
    if not env.norm_reward or rewards.dtype not in FLOATS or not variance > 0.0:
        return env.normalize_reward(rewards)
    if len(rewards) == 1:
        # With the arguments in this order, NaN stays NaN.
        reward = min(max(rewards.item() / sqrt(variance), -env.clip_reward), env.clip_reward)
        return np.array([reward], np.float32)
    # np.clip takes twice as long for small arrays.
    scaled = np.minimum(np.maximum(rewards / np.sqrt(variance), -env.clip_reward), env.clip_reward)
    normalized: np.ndarray = scaled.astype(np.float32)
    return normalized
