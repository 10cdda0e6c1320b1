"""Invalid masks from environments, in this process and in workers."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from gymnasium import spaces
from masked_envs import MASKED_SPACES, ChangingMaskEnv, MaskedNoiseEnv, sizes_of

from helpers import NoiseEnv, named
from sb3_ppo_variants import EnvOutputError
from sb3_ppo_variants.envs import SafeSubprocVecEnv
from sb3_ppo_variants.guards.masks import MaskCheck
from sb3_ppo_variants.guards.outputs import Watch

DISCRETE, MULTI, BINARY = (MASKED_SPACES[name] for name in ("Discrete", "MultiDiscrete", "MultiBinary"))
SQUARE = spaces.MultiDiscrete([2, 2])


def stacked(space: spaces.Space, *masks: object) -> np.ndarray:
    return MaskCheck(space, Watch(cast(Any, SimpleNamespace(num_timesteps=40)))).stack(masks)


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
    assert str(raised.value).startswith("the action mask of environment 1 at step 40 is ")
    assert problem in str(raised.value)


class Wrong(MaskedNoiseEnv):
    def action_masks(self) -> Any:
        return np.ones(2)


def test_a_mask_that_changes_in_a_worker() -> None:
    env = SafeSubprocVecEnv([lambda: ChangingMaskEnv(spaces.Discrete(40))])
    env.seed(0)
    env.reset()
    (mask,) = env.env_method("action_masks")
    with pytest.raises(EnvOutputError, match=r"environment 0 is different at .*, but must be unchanged until"):
        env.step(np.array([np.argmax(mask)]))
    env.close()


def test_a_wrong_mask_in_a_worker() -> None:
    env = SafeSubprocVecEnv([lambda: Wrong(DISCRETE)])
    env.reset()
    with pytest.raises(EnvOutputError, match="the action mask of environment 0 is an array of shape"):
        env.env_method("action_masks")
    env.close()


def test_workers_step_with_masks_that_stay() -> None:
    env = SafeSubprocVecEnv([lambda: MaskedNoiseEnv(DISCRETE)] * 2)
    env.seed(0)
    env.reset()
    for _ in range(20):  # This includes the ends of episodes.
        env.step(np.array([np.argmax(mask) for mask in env.env_method("action_masks")]))
    env.env_method("action_masks")
    env.reset()  # The mask requested before belongs to another state.
    env.step(np.array([np.argmax(mask) for mask in env.get_attr("masks")]))
    env.close()


class AsksItself(NoiseEnv):
    """Looks at its own masks, before its state changes. Another action is masked in each step."""

    def action_masks(self) -> np.ndarray:
        return np.arange(3) != self._steps % 3

    def step(self, action: Any) -> Any:
        self.action_masks()
        return super().step(action)

    def reset(self, **arguments: Any) -> Any:
        self.action_masks()
        return super().reset(**arguments)


def test_an_environment_may_ask_for_its_own_masks() -> None:
    """The policy that acts has not received them, so it does not matter how they change."""
    env = SafeSubprocVecEnv([lambda: AsksItself(DISCRETE)])
    env.seed(0)
    env.reset()
    for _ in range(20):
        env.step(np.zeros(1, int))
    env.env_method("action_masks")
    env.step(np.zeros(1, int))
    env.close()
