"""Invalid masks from environments, in this process and in workers."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from masked_envs import MASKED_SPACES, MaskedNoiseEnv, sizes_of
from stable_baselines3.common.vec_env import DummyVecEnv

from helpers import named, small
from sb3_ppo_variants import EnvOutputError
from sb3_ppo_variants.envs import SafeSubprocVecEnv
from sb3_ppo_variants.envs.masks import MaskCheck

DISCRETE, MULTI, BINARY = (MASKED_SPACES[name] for name in ("Discrete", "MultiDiscrete", "MultiBinary"))
SQUARE = spaces.MultiDiscrete([2, 2])


def stacked(space: spaces.Space, *masks: object) -> np.ndarray:
    return MaskCheck(space).stack(masks)


ACCEPTED: list[tuple[spaces.Space, Any]] = [
    (DISCRETE, [True, False, True]),
    (DISCRETE, np.array([1, 0, 1], np.int8)),
    (DISCRETE, np.array([1.0, 0.0, 1.0], np.float32)),
    (DISCRETE, np.array([[True, False, True]])),
    (MULTI, [1, 0, 0, 0, 0, 1]),
    (BINARY, [1, 0, 0, 1, 1, 1]),
    (BINARY, [[1, 0], [0, 1], [1, 1]]),
    (SQUARE, [[0, 1], [1, 1]]),
]


@pytest.mark.parametrize(("space", "mask"), ACCEPTED, ids=named)
def test_what_sb3_contrib_takes_is_accepted(space: spaces.Space, mask: Any) -> None:
    everything = np.ones(np.size(mask), bool)
    masks = stacked(space, mask, everything)
    assert masks.dtype == bool
    np.testing.assert_array_equal(masks, [np.ravel(mask).astype(bool), everything])


REFUSED: list[tuple[spaces.Space, Any, str]] = [
    (DISCRETE, np.ones(4, bool), r"an array of shape (4,), but must be of shape (3,) or (1, 3)"),
    (MULTI, np.ones((2, 3), bool), r"an array of shape (2, 3), but must be of shape (6,)"),
    (BINARY, np.ones((2, 3), bool), r"an array of shape (2, 3), but must be of shape (6,) or (3, 2)"),
    (DISCRETE, True, r"an array of shape (), but must be"),
    (DISCRETE, None, "None, but must be an array of booleans"),
    (DISCRETE, ["a", "b", "c"], "['a', 'b', 'c'], but must be an array of booleans"),
    (DISCRETE, [0.5, 1.0, 0.0], "[0.5, 1.0, 0.0], but must be an array of booleans"),
    (DISCRETE, [np.nan, 1.0, 0.0], "but must be an array of booleans"),
    (DISCRETE, [[1], [1, 0]], "but must be an array of booleans"),
    (DISCRETE, np.zeros(3, bool), "False for every action, but must be True for at least one"),
    (MULTI, [1, 1, 0, 0, 0, 0], "False for every action in dimension 1, but must be True for at least one"),
    (BINARY, [0, 0, 1, 1, 1, 1], "False for every action in dimension 0, but"),
]


@pytest.mark.parametrize(("space", "mask", "problem"), REFUSED, ids=named)
def test_others_are_refused(space: spaces.Space, mask: Any, problem: str) -> None:
    right = np.ones(sum(sizes_of(space)), bool)
    with pytest.raises(EnvOutputError) as raised:
        stacked(space, right, mask)
    assert str(raised.value).startswith("the action mask of environment 1 is ")
    assert problem in str(raised.value)


@pytest.mark.parametrize("vec_env", [DummyVecEnv, partial(SafeSubprocVecEnv, start_method="fork")])
def test_a_wrong_mask_is_named_in_training(vec_env: Any) -> None:
    class Wrong(MaskedNoiseEnv):
        def action_masks(self) -> Any:
            return np.ones(2) if self._steps == 3 else super().action_masks()

    env = vec_env([partial(MaskedNoiseEnv, DISCRETE), partial(Wrong, DISCRETE)])
    with pytest.raises(EnvOutputError, match=r"the action mask of environment 1 at step 6 is an array of shape \(2,\)"):
        small(env=env, policy="MaskableMlpPolicy").learn(32)
    env.close()
