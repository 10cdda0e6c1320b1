"""What environments are given as actions."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from sb3_ppo_variants.errors import ArgumentError


class ActionsAsDrawn(gym.Wrapper, RecordConstructorArgs):
    """Passes each action to the environment as the policy drew it.

    SB3 clips actions to the bounds of ``env.action_space`` before the environment sees them, and needs finite bounds.
    The bounds of this wrapper are finite, but so wide that nothing is clipped: the largest numbers of the space's type.
    The environment then decides what to do with an action outside its own bounds. MuJoCo environments limit the torque,
    but compute the control cost from the unclipped action.

    Policies with ``squash_output=True``, and algorithms such as SAC, scale actions to the bounds and cannot be used.
    Random actions come from ``env.own_action_space.sample()``.

    :param env: an environment with a ``Box`` of floating-point actions
    :raises ArgumentError: if it has other actions
    """

    def __init__(self, env: gym.Env[Any, Any]):
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
