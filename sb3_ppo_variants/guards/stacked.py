"""Steps of any ``VecEnv``, what it returns checked."""

from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_ppo_variants.guards.observations import observation_check
from sb3_ppo_variants.guards.outputs import EnvCheck
from sb3_ppo_variants.guards.watch import HUGE_REWARD, Watch


class CheckedStacks:
    """The steps and resets of a vectorised environment that returns the outputs of its environments stacked.

    :param env: the vectorised environment
    :param watch: names where the run is
    """

    def __init__(self, env: VecEnv, watch: Watch):
        self._watch = watch
        self._n_envs = env.num_envs
        self._step_wait, self._reset = env.step_wait, env.reset
        self._checks = [EnvCheck(env.observation_space, i, watch) for i in range(env.num_envs)]
        self._observations = observation_check(env.observation_space, watch, env.num_envs)

    def step_wait(self) -> VecEnvStepReturn:
        """A step of all environments.

        :raises GuardError: if it returns what it must not
        """
        observations, rewards, dones, infos = self._step_wait()
        self._check_rewards(rewards)
        self._check_dones(dones)
        self._check_infos(infos, dones)
        for i in np.flatnonzero(dones) if True in dones.tolist() else ():
            terminal = infos[i].get("terminal_observation")
            if terminal is not None:
                self._checks[i].terminal(terminal)
        return self._checked(observations), rewards, dones, infos

    def reset(self) -> VecEnvObs:
        """A reset of all environments.

        :raises GuardError: if it returns what it must not
        """
        return self._checked(self._reset())

    def _checked(self, observations: Any) -> Any:
        fitted = self._observations.fitted(observations, "observation", None)
        self._observations.check_numbers(fitted, "observation", None)
        return observations

    def _check_rewards(self, rewards: Any) -> None:
        if not _has_shape(rewards, self._n_envs, "biuf"):
            self._watch.refuse("reward", f"{rewards!r}; allowed: an array of {self._n_envs} real numbers", None)
        # Neither is true of NaN.
        if not (rewards.min() > -HUGE_REWARD and rewards.max() < HUGE_REWARD):
            for i, reward in enumerate(rewards.tolist()):
                self._watch.note_reward(reward, i)

    def _check_dones(self, dones: Any) -> None:
        right = _has_shape(dones, self._n_envs, "biu")
        if not right or (dones.dtype.kind != "b" and not np.isin(dones, (0, 1)).all()):
            self._watch.refuse("done", f"{dones!r}; allowed: an array of {self._n_envs} truth values", None)

    def _check_infos(self, infos: Any, dones: np.ndarray) -> None:
        # Where no episode ends, nobody asks for any.
        of_all = len(infos) == self._n_envs or (len(infos) == 0 and not dones.any())
        # Types are looked up faster than instances, of which there may be many.
        right = {*map(type, infos)} == {dict} or all(isinstance(info, dict) for info in infos)
        if not (of_all and right):
            self._watch.refuse("infos", f"{infos!r}; allowed: {self._n_envs} dicts", None)


def _has_shape(array: Any, n_envs: int, kinds: str) -> bool:
    return isinstance(array, np.ndarray) and array.shape == (n_envs,) and array.dtype.kind in kinds
