"""Random actions respect masks."""

import numpy as np
import pytest
from gymnasium import spaces
from masked_envs import MASKED_SPACES, masked_envs
from stable_baselines3.common.vec_env import DummyVecEnv

from helpers import NoiseEnv
from sb3_ppo_variants.envs.masks import random_actions


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


@pytest.mark.parametrize(
    ("space", "mask", "allowed"),
    [
        (spaces.Discrete(3, start=1), [0, 0, 1], 3),
        (spaces.MultiDiscrete([2, 3], start=[5, 7]), [0, 1, 1, 0, 0], [6, 7]),
    ],
)
def test_random_actions_begin_where_the_space_does(space: spaces.Space, mask: list[int], allowed: object) -> None:
    env = NoiseEnv(space)
    env.action_masks = lambda: np.array(mask, dtype=bool)  # type: ignore[attr-defined]
    (action,) = random_actions(DummyVecEnv([lambda: env]))
    np.testing.assert_array_equal(action, allowed)
    assert space.contains(action)
