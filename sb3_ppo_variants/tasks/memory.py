"""Tasks that need memory: gymnasium's tasks without velocities, which can be inferred from several observations.

They are named as in the RL Zoo, such as ``CartPoleNoVel-v1`` for ``CartPole-v1``.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb3_ppo_variants.errors import ArgumentError

# Indices of the velocities in each observation, as in the RL Zoo.
VELOCITIES = {
    "CartPole-v1": [1, 3],
    "Pendulum-v1": [2],
    "LunarLander-v3": [2, 3, 5],
    "LunarLanderContinuous-v3": [2, 3, 5],
}


class HiddenNumbers(gym.ObservationWrapper[np.ndarray, Any, np.ndarray]):
    """Sets some entries of each observation to 0.

    :param env: an environment whose observations are vectors
    :param hidden: indices of the entries
    :raises ArgumentError: if the observations are not vectors
    """

    def __init__(self, env: gym.Env, hidden: Sequence[int]):
        super().__init__(env)
        if not isinstance(env.observation_space, spaces.Box) or len(env.observation_space.shape) != 1:
            raise ArgumentError(
                f"env.observation_space={env.observation_space} is not a Box of vectors, so it has no entries to hide"
            )
        self._hidden = list(hidden)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Return the observation with the hidden entries set to 0."""
        observation = observation.copy()
        observation[self._hidden] = 0
        return observation


def without_velocities(env_id: str, **arguments: Any) -> gym.Env:
    """Create one of the tasks of ``VELOCITIES`` with the given arguments, but without its velocities."""
    # The time limit of the new task, which users may change, is the only one.
    return HiddenNumbers(gym.make(env_id, max_episode_steps=-1, **arguments), VELOCITIES[env_id])


for _env_id in VELOCITIES:
    _name, _version = _env_id.split("-v")
    # The RL Zoo registers tasks with the same ids.
    if (_new_id := f"{_name}NoVel-v{_version}") not in gym.registry:
        gym.register(
            _new_id,
            f"{__name__}:without_velocities",
            reward_threshold=gym.spec(_env_id).reward_threshold,
            max_episode_steps=gym.spec(_env_id).max_episode_steps,
            kwargs={"env_id": _env_id},
        )
