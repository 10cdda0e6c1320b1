"""Where masks come from, and invalid ones from environments, in this process and in workers."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from masked_envs import MASKED_SPACES, MaskedNoiseEnv, sizes_of
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from helpers import NoiseEnv, named, small
from sb3_ppo_variants import ArgumentError, EnvOutputError, ExactCheckpointCallback, PPOClip
from sb3_ppo_variants.envs import SafeSubprocVecEnv
from sb3_ppo_variants.envs.masks import MaskCheck
from sb3_ppo_variants.evaluation import WithMasks

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


VEC_ENVS = pytest.mark.parametrize("vec_env", [DummyVecEnv, partial(SafeSubprocVecEnv, start_method="fork")])


@VEC_ENVS
def test_a_wrong_mask_is_named_in_training(vec_env: Any) -> None:
    class Wrong(MaskedNoiseEnv):
        def action_masks(self) -> Any:
            return np.ones(2) if self._steps == 3 else super().action_masks()

    env = vec_env([partial(MaskedNoiseEnv, DISCRETE), partial(Wrong, DISCRETE)])
    with pytest.raises(EnvOutputError, match=r"the action mask of environment 1 at step 6 is an array of shape \(2,\)"):
        small(env=env, policy="MaskableMlpPolicy").learn(32)
    env.close()


def only_the_second(env: Any) -> np.ndarray:
    return np.array([[False, True, False]] * env.num_envs)


class Narrows(VecMonitor):
    """Allows the action 1 only, and fails at others."""

    def step_async(self, actions: np.ndarray) -> None:
        assert (actions == 1).all(), "the action is masked"
        self.venv.step_async(actions)


class ByMethod(Narrows):
    action_masks = only_the_second


class WhenAsked(Narrows):
    def env_method(self, method_name: str, *args: Any, **arguments: Any) -> Any:
        if method_name == "action_masks":
            return [*only_the_second(self)]
        return super().env_method(method_name, *args, **arguments)


class InABatch(DummyVecEnv):
    action_masks = only_the_second


class Everything(VecMonitor):
    def action_masks(self) -> np.ndarray:
        return np.ones((self.num_envs, 3), bool)


class Open(NoiseEnv):
    def action_masks(self) -> Any:
        return np.ones(3, bool)


WRAPPERS: dict[str, Any] = {
    "method": lambda fns: ByMethod(DummyVecEnv(fns)),
    "env_method": lambda fns: WhenAsked(DummyVecEnv(fns)),
    "inside another": lambda fns: VecMonitor(ByMethod(DummyVecEnv(fns))),
    "outermost method": lambda fns: ByMethod(Everything(DummyVecEnv(fns))),
    "outermost env_method": lambda fns: WhenAsked(Everything(DummyVecEnv(fns))),
    "batch": lambda fns: Narrows(InABatch(fns)),
}


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("single", [NoiseEnv, Open])
@pytest.mark.parametrize("name", WRAPPERS)
def test_the_outermost_masks_win(name: str, single: Any, fast: bool) -> None:
    env = WRAPPERS[name]([partial(single, DISCRETE)] * 2)
    model = small(env=env, policy="MaskableMlpPolicy", fast=fast).learn(64)
    assert (model.rollout_buffer.actions == 1).all()
    evaluate_policy(WithMasks(model, env), env, n_eval_episodes=1, warn=False)


def test_a_wrapper_with_too_few_masks() -> None:
    class One(VecMonitor):
        def action_masks(self) -> np.ndarray:
            return np.ones((1, 3), bool)

    with pytest.raises(EnvOutputError, match=r"action masks at step 0 is .* must be one for each of 2 environments"):
        small(env=One(DummyVecEnv([partial(NoiseEnv, DISCRETE)] * 2)), policy="MaskableMlpPolicy").learn(32)


class AnArray(NoiseEnv):
    action_masks: Any = np.ones(3, bool)


class WithArgument(NoiseEnv):
    def action_masks(self, agent: str) -> Any:
        return np.ones(3, bool)


@VEC_ENVS
@pytest.mark.parametrize("cls", [AnArray, WithArgument])
def test_masks_that_are_no_method_without_arguments(cls: Any, vec_env: Any) -> None:
    env = vec_env([partial(cls, DISCRETE)])
    with pytest.raises(ArgumentError, match=r"^action_masks must be a method without arguments that returns a mask: "):
        small(env=env, policy="MaskableMlpPolicy").learn(32)
    env.close()


class OfAgent(Open):
    """Wraps what is no environment of gymnasium."""

    spec: Any = {"name": "connect four"}  # noqa: RUF012

    @property
    def unwrapped(self) -> Any:
        return vars(self)


class Strict(NoiseEnv):
    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class StrictOpen(Strict, Open):
    """Has masks, and raises an error for other names."""


@pytest.mark.filterwarnings("ignore:the environments have action_masks")
@VEC_ENVS
@pytest.mark.parametrize("cls", [OfAgent, Strict, StrictOpen])
def test_unusual_environments_train_and_write_checkpoints(cls: Any, vec_env: Any, tmp_path: Path) -> None:
    env = vec_env([partial(cls, DISCRETE)] * 2)
    small(env=env).learn(64, ExactCheckpointCallback(32, tmp_path))
    PPOClip.resume(tmp_path, env).learn(32)
    with pytest.raises(ArgumentError, match="needs action masks") if cls is Strict else nullcontext():
        small(env=env, policy="MaskableMlpPolicy").learn(32)
    env.close()
