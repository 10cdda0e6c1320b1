"""A wrapper that keeps SB3 from clipping actions."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

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
