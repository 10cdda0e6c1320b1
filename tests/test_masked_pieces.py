"""Random actions respect masks."""

import numpy as np
import pytest
from masked_envs import MASKED_SPACES, masked_envs

from sb3_ppo_variants.guards.masks import random_actions


@pytest.mark.parametrize("name", MASKED_SPACES)
def test_random_actions_are_allowed(name: str) -> None:
    env = masked_envs(MASKED_SPACES[name])
    env.seed(0)
    env.reset()
    env.action_space.seed(0)
    seen = set()
    for _ in range(40):
        actions = random_actions(env)
        env.step(actions)  # Fails if an action is masked.
        seen |= {tuple(np.ravel(action).tolist()) for action in actions}
    assert len(seen) > 2
