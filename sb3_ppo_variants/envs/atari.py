"""SB3's ``EpisodicLifeEnv`` and ``ClipRewardEnv`` for vectorised Atari games.

Wrap them around a ``VecMonitor``, so that its statistics cover whole games and unclipped rewards.
"""

from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_ppo_variants.envs import rows
from sb3_ppo_variants.errors import ArgumentError


class VecEpisodicLife(VecEnvWrapper):
    """Ends an episode when a life is lost, while the game continues.

    :param venv: environments with ``lives`` in the info of every step and reset
    """

    def __init__(self, venv: VecEnv):
        super().__init__(venv)
        self._lives = np.zeros(self.num_envs, np.int64)

    def reset(self) -> VecEnvObs:
        """Reset all games, whether they are over or not.

        :raises ArgumentError: if an info has no ``lives``
        """
        observations = self.venv.reset()
        self._lives = self._lives_at_reset()
        return observations

    def _lives_at_reset(self) -> np.ndarray:
        return self._lives_in(self.venv.unwrapped.reset_infos)

    def _lives_in(self, infos: list[dict[str, Any]]) -> np.ndarray:
        if not all("lives" in info for info in infos):
            raise ArgumentError(f"venv={self.venv} must have 'lives' in the info of every step and reset")
        return np.array([info["lives"] for info in infos])

    def step_wait(self) -> VecEnvStepReturn:
        """Step all games; dones are also True where a life was lost.

        :raises ArgumentError: if an info has no ``lives``
        """
        observations, rewards, dones, infos = self.venv.step_wait()
        lives = self._lives_in(infos)
        # A game may continue for some frames with 0 lives, as Qbert does.
        lost = (lives > 0) & (lives < self._lives)
        for i in np.flatnonzero(lost).tolist():
            # Losing a life terminates the episode, even in a step in which a limit truncates it.
            infos[i]["TimeLimit.truncated"] = False
            if not dones[i]:
                infos[i]["terminal_observation"] = rows.take(observations, i)
        self._lives = np.where(dones, self._lives_at_reset(), lives) if dones.any() else lives
        return observations, rewards, dones | lost, infos


class VecClipReward(VecEnvWrapper):
    """Clips rewards to {+1, 0, -1} by their sign."""

    def reset(self) -> VecEnvObs:
        """Reset all environments."""
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        """Step all environments and clip the rewards."""
        observations, rewards, dones, infos = self.venv.step_wait()
        return observations, np.sign(rewards), dones, infos
