"""Wrappers of single and of vectorised environments: of their actions, lives and rewards."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_ppo_variants.envs.adapter import take_rows
from sb3_ppo_variants.envs.outputs import Info
from sb3_ppo_variants.errors import ArgumentError


class ActionsAsDrawn(gym.Wrapper, RecordConstructorArgs):
    """Passes each action to the environment as the policy sampled it.

    SB3 clips actions to the bounds of ``env.action_space`` before the environment sees them, and requires finite
    bounds. This wrapper sets finite bounds that are too wide to clip anything: the largest values of the space's dtype.
    The environment then decides what to do with an action outside its own bounds. MuJoCo environments limit the torque,
    but compute the control cost from the unclipped action.

    Policies with ``squash_output=True``, and algorithms such as SAC, rescale actions to the bounds, so they cannot be
    used with this wrapper. To sample random actions, call ``env.own_action_space.sample()``.

    :param env: an environment with a ``Box`` of floating-point actions
    :raises ArgumentError: if ``env`` has a different action space
    """

    def __init__(self, env: gym.Env):
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        space = env.action_space
        if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            raise ArgumentError(
                f"ActionsAsDrawn needs a Box of floating-point actions, but the environment has {space}"
            )
        self.own_action_space = space
        widest = np.finfo(space.dtype).max
        self.action_space = spaces.Box(-widest, widest, space.shape, space.dtype.type)


class VecEpisodicLife(VecEnvWrapper):
    """Ends an episode when a life is lost, while the game continues, as SB3's ``EpisodicLifeEnv`` does.

    Wrap it around a ``VecMonitor``, so that its statistics cover whole games.

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
        self._lives = self._lives_in(self.venv.unwrapped.reset_infos)
        return observations

    def _lives_in(self, infos: list[Info]) -> np.ndarray:
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
                infos[i]["terminal_observation"] = take_rows(observations, i)
        self._lives = lives
        if dones.any():
            self._lives = np.where(dones, self._lives_in(self.venv.unwrapped.reset_infos), lives)
        return observations, rewards, dones | lost, infos


class VecClipReward(VecEnvWrapper):
    """Clips rewards to {+1, 0, -1} by their sign, as SB3's ``ClipRewardEnv`` does.

    Wrap it around a ``VecMonitor``, so that its statistics are of unclipped rewards.
    """

    def reset(self) -> VecEnvObs:
        """Reset all environments."""
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        """Step all environments and clip the rewards."""
        observations, rewards, dones, infos = self.venv.step_wait()
        return observations, np.sign(rewards), dones, infos
