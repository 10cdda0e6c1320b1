"""Invalid outputs of an environment are refused at the step that returns them; outputs that NumPy converts pass."""

from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import TransformReward
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from helpers import BOX, VECTOR, NoiseEnv, small
from sb3_ppo_variants import EnvOutputError, NonFiniteError
from sb3_ppo_variants.envs import SafeSubprocVecEnv

BYTES = spaces.Box(0, 255, (3,), np.uint8)
NUMBER = spaces.Discrete(4)
NUMBERS = spaces.MultiDiscrete([2, 4])
BITS = spaces.MultiBinary(3)
DICT = spaces.Dict({"a": VECTOR, "b": NUMBER})
A = np.zeros(3, np.float32)
AT = 5

# The observation space, the part of a step's output to replace, its replacement, and its name in the error.
WRONG: dict[str, tuple[spaces.Space, str, Any, str]] = {
    "reward a string": (VECTOR, "reward", "1", "reward"),
    "reward None": (VECTOR, "reward", None, "reward"),
    "reward in an array": (VECTOR, "reward", np.ones(1), "reward"),
    "reward a difference of times": (VECTOR, "reward", np.timedelta64(1), "reward"),
    "terminated a string": (VECTOR, "terminated", "no", "terminated"),
    "terminated None": (VECTOR, "terminated", None, "terminated"),
    "terminated NaN": (VECTOR, "terminated", float("nan"), "terminated"),
    "truncated 2": (VECTOR, "truncated", 2, "truncated"),
    "info None": (VECTOR, "info", None, "info"),
    "info an array": (VECTOR, "info", np.zeros(0), "info"),
    "observation a number": (VECTOR, "observation", 0.5, "observation"),
    "observation in a row": (VECTOR, "observation", np.zeros((1, 3), np.float32), "observation"),
    "observation None": (VECTOR, "observation", None, "observation"),
    "observation of strings": (VECTOR, "observation", np.array(["1", "2", "3"]), "observation"),
    "observation ragged": (VECTOR, "observation", [[1.0], 2.0, 3.0], "observation"),
    "observation of fractions for bytes": (BYTES, "observation", np.full(3, 0.5), "observation"),
    "observation too large for bytes": (BYTES, "observation", np.full(3, 256), "observation"),
    "observation NaN for bytes": (BYTES, "observation", np.full(3, np.nan), "observation"),
    "number too large": (NUMBER, "observation", 4, "observation"),
    "number in an array": (NUMBER, "observation", np.ones(1, np.int64), "observation"),
    "numbers too large": (NUMBERS, "observation", np.array([2, 0]), "observation"),
    "bits that are not": (BITS, "observation", np.array([0, 2, 0], np.int8), "observation"),
    "dict without a key": (DICT, "observation", {"a": A}, "observation"),
    "dict with a wrong part": (DICT, "observation", {"a": A[:1], "b": 0}, "observation['a']"),
    "no dict": (DICT, "observation", A, "observation"),
}
# Outputs that SB3 accepts, and changes at most by rounding.
RIGHT: list[tuple[spaces.Space, str, Any]] = [
    *((VECTOR, "reward", reward) for reward in (1, True, np.float64(1), np.float16(1), np.array(1), th.tensor(1.0))),
    *((VECTOR, "terminated", flag) for flag in (0, np.False_, np.array(False), th.tensor(False), 0.0)),
    *((VECTOR, "observation", a) for a in (A.astype(np.float64), A.astype(int), [0.0, 0.0, 0.0], th.zeros(3))),
    *((BYTES, "observation", np.full(3, value)) for value in (255, 255.0, True)),
    *((NUMBER, "observation", number) for number in (3, np.int64(3), np.int32(3), np.array(3), True, 3.0)),
    *((NUMBERS, "observation", np.array([1, 3], dtype)) for dtype in (np.int32, np.float32)),
    *((BITS, "observation", np.ones(3, dtype)) for dtype in (bool, float)),
    (DICT, "observation", {"b": 3, "a": A.astype(np.float64)}),
]
NAMES = ("observation", "reward", "terminated", "truncated", "info")


class Errs(NoiseEnv):
    """Returns a different value at one step."""

    def __init__(self, space: spaces.Space, place: str, value: Any):
        super().__init__(BOX, deepcopy(space))
        self._place, self._value = place, value
        self._taken = 0

    def step(self, action: Any) -> Any:
        self._taken += 1
        returned = list(super().step(action))
        if self._taken == AT:
            returned[NAMES.index(self._place)] = self._value
        return tuple(returned)


def right_and(space: spaces.Space, place: str, value: Any, vec_env: Any = DummyVecEnv, wrap: Any = None) -> VecEnv:
    def made(cls: Any, *arguments: Any) -> gym.Env:
        env: gym.Env = cls(*arguments)
        return env if wrap is None else wrap(env)

    return vec_env([partial(made, NoiseEnv, BOX, deepcopy(space)), partial(made, Errs, space, place, value)])


VEC_ENVS: dict[str, Any] = {"DummyVecEnv": DummyVecEnv, "our workers": partial(SafeSubprocVecEnv, start_method="fork")}


@pytest.mark.sampled(36)
@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
@pytest.mark.parametrize("wrap", [None, Monitor])
@pytest.mark.parametrize("vec_env", VEC_ENVS)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_outputs(name: str, vec_env: str, wrap: Any) -> None:
    space, place, value, quantity = WRONG[name]
    env = right_and(space, place, value, VEC_ENVS[vec_env], wrap)
    with pytest.raises(EnvOutputError) as caught:
        small(env=env).learn(32)
    assert (caught.value.quantity, caught.value.env_index, caught.value.step) == (quantity, 1, 2 * (AT - 1))
    assert "but must be" in str(caught.value) and len(str(caught.value)) < 1000
    env.close()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("space", "place", "value"), RIGHT)
def test_right_outputs(space: spaces.Space, place: str, value: Any) -> None:
    small(env=right_and(space, place, value)).learn(32)


class Returns(NoiseEnv):
    """Returns something other than five values from a step, or two from a reset."""

    def __init__(self, method: str, returned: Any):
        super().__init__(BOX)
        self._method, self._returned = method, returned

    def reset(self, **arguments: Any) -> Any:
        return self._returned if self._method == "reset" else super().reset(**arguments)

    def step(self, action: Any) -> Any:
        returned = super().step(action)
        return self._returned if self._method == "step" and self._steps == AT else returned


@pytest.mark.parametrize("wrap", [Monitor, lambda env: env], ids=["Monitor", "none"])
@pytest.mark.parametrize("vec_env", ["DummyVecEnv", "our workers"])
@pytest.mark.parametrize("returned", [(A, 1.0, False, {}), (A, 1.0, False, False, {}, 1), None, 3])
def test_a_step_that_is_not_of_five_values(returned: Any, vec_env: str, wrap: Any) -> None:
    env: VecEnv = VEC_ENVS[vec_env]([partial(NoiseEnv, BOX), lambda: wrap(Returns("step", returned))])
    message = r"the result of step\(\) of environment 1 at step 8 is .*, but must be \(observation, reward, terminated,"
    with pytest.raises(EnvOutputError, match=message):
        small(env=env).learn(32)
    env.close()


@pytest.mark.parametrize("returned", [A, np.zeros(2, np.float32), (A, None), (A[:1], {})])
def test_a_wrong_reset(returned: Any) -> None:
    with pytest.raises(EnvOutputError, match="of environment 0 at step 0 is"):
        small(env=DummyVecEnv([lambda: Monitor(Returns("reset", returned))])).learn(32)


@pytest.mark.parametrize("value", [A[:1], np.full(3, "1")])
def test_a_wrong_last_observation(value: Any) -> None:
    class Ends(NoiseEnv):
        def step(self, action: Any) -> Any:
            observation, *others = super().step(action)
            return (value if self._steps == 7 else observation), *others

    with pytest.raises(EnvOutputError, match="observation of environment 0 at step 6"):
        small(env=VecNormalize(DummyVecEnv([partial(Ends, BOX)]))).learn(32)


def fails(reward: Any) -> Any:
    raise TypeError("of the wrapper")


def test_an_error_of_an_environment_or_a_wrapper_passes_on() -> None:
    class Breaks(NoiseEnv):
        def step(self, action: Any) -> Any:
            one, two = range(3)
            return one + two

    with pytest.raises(ValueError, match=r"too many values to unpack \(expected 2\)") as caught:
        small(env=DummyVecEnv([lambda: Monitor(Breaks(BOX))])).learn(32)
    assert type(caught.value) is ValueError
    with pytest.raises(TypeError, match="of the wrapper"):
        small(env=DummyVecEnv([lambda: Monitor(TransformReward(NoiseEnv(BOX), fails))])).learn(32)


@pytest.mark.parametrize("reward", [1e39, np.float32("inf"), 10**400])
@pytest.mark.parametrize("vec_env", VEC_ENVS)
def test_a_reward_too_large_for_single_precision(vec_env: str, reward: Any) -> None:
    env = right_and(VECTOR, "reward", reward, VEC_ENVS[vec_env])
    model = small(env=env)
    with pytest.raises(NonFiniteError, match="the reward of environment 1 at step 8 is not finite: "):
        model.learn(32)
    assert model.learn(32).num_timesteps == 32  # Workers go on.
    env.close()
