"""Steps of SB3's ``VecNormalize`` with bit-identical results and fewer copies."""

from math import sqrt
from typing import Any, Protocol

import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

# The methods that this module reimplements. A wrapper that overrides one of them steps by itself.
REPLACED = (
    "step",
    "step_async",
    "step_wait",
    "normalize_obs",
    "normalize_reward",
    "_normalize_obs",
    "_update_reward",
)
FLOATS = frozenset({np.dtype(np.float32), np.dtype(np.float64)})
# Before NumPy 2, an array in single precision divided by a number in double precision stays in single precision.
PROMOTES = (np.ones(1, np.float32) / np.float64(1)).dtype == np.float64


class Steps(Protocol):
    """Steps environments: a ``VecEnv``, or an object that takes its steps."""

    num_envs: int

    def step(self, actions: np.ndarray) -> VecEnvStepReturn:
        """Step the environments."""


def fast_steps(env: VecEnv) -> Steps:
    """Return the fastest object that steps an environment.

    For an unmodified ``VecNormalize`` this is a :class:`NormalizedSteps`. All other environments, including subclasses
    of ``VecNormalize``, step by themselves.
    """
    if type(env) is not VecNormalize or not PROMOTES or env.returns.dtype != np.float64:
        return env
    if any(getattr(getattr(env, name), "__func__", None) is not getattr(VecNormalize, name) for name in REPLACED):
        return env
    return NormalizedSteps(env)


class NormalizedSteps:
    """Takes the steps of a ``VecNormalize``.

    Every step reads all state from the wrapper and writes it back. Code that reads or changes this state between two
    steps therefore finds what SB3's own step would leave.
    """

    def __init__(self, env: VecNormalize):
        self._env = env
        self.num_envs = env.num_envs

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

    def _observations(self, observations: Any) -> Any:
        env = self._env
        statistics: Any = env.obs_rms if env.norm_obs else None
        of_keys = isinstance(observations, dict) and isinstance(statistics, dict)
        if env.training and env.norm_obs:
            for key, of_key in statistics.items() if of_keys else ():
                _update(of_key, observations[key])
            if not of_keys:
                _update(statistics, observations)
        if type(observations) is np.ndarray and env.norm_obs:
            return _normalized(env, statistics, observations)
        if type(observations) is dict and of_keys and env.norm_obs_keys is not None:
            return {
                key: _normalized(env, statistics[key], array) if key in env.norm_obs_keys else array.copy("K")
                for key, array in observations.items()
            }
        return env.normalize_obs(observations)


def _update(statistics: RunningMeanStd, observations: np.ndarray) -> None:
    """Update the statistics as ``RunningMeanStd.update`` does."""
    usual = type(statistics) is RunningMeanStd and observations.dtype in FLOATS
    if not usual or not np.shape(statistics.mean) == np.shape(statistics.var) == observations.shape[1:]:
        statistics.update(observations)
        return
    n = len(observations)
    if n == 1:
        mean = observations[0]
        variance: Any = mean - mean  # Zero, if the numbers are finite.
    else:
        mean = np.add.reduce(observations, axis=0) / n
        deviations = observations - mean
        variance = np.add.reduce(deviations * deviations, axis=0) / n
    count, delta = statistics.count, mean - statistics.mean
    total = count + n
    second_moment = statistics.var * count + variance * n + delta * delta * count * n / total
    statistics.mean, statistics.var, statistics.count = (
        statistics.mean + delta * n / total,
        second_moment / total,
        total,
    )


def _normalized(env: VecNormalize, statistics: RunningMeanStd, observations: np.ndarray) -> np.ndarray:
    """Normalise an array as ``normalize_obs`` does."""
    scale = np.sqrt(statistics.var + env.epsilon)
    numbers = observations - statistics.mean
    numbers /= scale
    _clip(numbers, env.clip_obs)
    return numbers.astype(np.float32)


def _clip(numbers: np.ndarray, limit: float) -> None:
    """Clip in place. ``np.clip`` takes twice as long for small arrays."""
    np.maximum(numbers, -limit, out=numbers)
    np.minimum(numbers, limit, out=numbers)


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
    scaled = rewards / np.sqrt(variance)
    _clip(scaled, env.clip_reward)
    return scaled.astype(np.float32)
