"""Steps of SB3's ``VecNormalize`` whose observations the library normalises, bit-identical to NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_ppo_variants.backends.native import structures
from sb3_ppo_variants.backends.native.library import library
from sb3_ppo_variants.backends.native.structures import Numbers
from sb3_ppo_variants.guards.outputs import finite_test
from sb3_ppo_variants.rollouts.normalized import FLOATS, NormalizedSteps, Steps, fast_steps


def native_test(array: np.ndarray) -> Callable[[], bool]:
    """Return the fastest test of an array; see :func:`~sb3_ppo_variants.guards.outputs.finite_test`."""
    found = library()
    if found is None or array.dtype not in FLOATS:
        return finite_test(array)
    return found.are_finite(array.dtype, Numbers(array, array.size))


def native_steps(env: VecEnv) -> Steps:
    """Return the fastest way to step an environment; see :func:`~sb3_ppo_variants.rollouts.normalized.fast_steps`."""
    steps = fast_steps(env)
    if library() is None or not isinstance(env, VecNormalize) or not isinstance(steps, NormalizedSteps):
        return steps
    space = env.venv.observation_space
    # NumPy sums a single column in a different order.
    takes = isinstance(space, spaces.Box) and space.dtype in FLOATS and np.prod(space.shape) > 1
    return NativeSteps(env) if takes else steps


class NativeSteps(NormalizedSteps):
    """The steps of a ``VecNormalize`` over observations that are arrays of floating-point numbers."""

    def __init__(self, env: VecNormalize):
        super().__init__(env)
        space: Any = env.venv.observation_space
        # The structure points to these arrays, so every step copies into them.
        self._staged = np.zeros((env.num_envs, *space.shape), space.dtype)
        self._mean, self._variance = np.zeros(space.shape), np.zeros(space.shape)
        self._normalized = np.zeros(self._staged.shape, np.float32)
        arrays = (self._staged, self._mean, self._variance, self._normalized)
        self._structure = structures.Normalizing(*arrays, env.num_envs, self._mean.size, 0, 0.0, 0.0, 0.0)
        found = library()
        assert found is not None
        self._run: Callable[[], int] = found.normalizing(space.dtype, self._structure)

    def _observations(self, observations: Any) -> Any:
        env = self._env
        statistics: Any = env.obs_rms if env.norm_obs else None
        if type(statistics) is not RunningMeanStd or not self._knows(observations, statistics):
            return super()._observations(observations)
        self._staged[...], self._mean[...], self._variance[...] = observations, statistics.mean, statistics.var
        structure = self._structure
        structure.updates, structure.count = bool(env.training), statistics.count
        structure.epsilon, structure.limit = env.epsilon, env.clip_obs
        # For numbers that are not finite, NumPy normalises again and issues its own warnings.
        if not self._run():
            return super()._observations(observations)
        if env.training:
            statistics.mean, statistics.var = self._mean.copy(), self._variance.copy()
            statistics.count += self.num_envs
        return self._normalized.copy()

    def _knows(self, observations: Any, statistics: RunningMeanStd) -> bool:
        """Whether observations, statistics and settings have the types and shapes that the library takes."""
        return (
            _are_alike(observations, self._staged)
            and _are_alike(statistics.mean, self._mean)
            and _are_alike(statistics.var, self._variance)
            and isinstance(statistics.count, float)
            and isinstance(self._env.epsilon, float | int)
            and isinstance(self._env.clip_obs, float | int)
        )


def _are_alike(array: Any, other: np.ndarray) -> bool:
    # NumPy sums arrays of another layout in another order.
    return (
        type(array) is np.ndarray
        and array.dtype is other.dtype
        and array.shape == other.shape
        and array.flags.c_contiguous
    )
