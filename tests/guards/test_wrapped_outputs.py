"""Wrong outputs are named wherever they are noticed: in a wrapper, when they are stacked, or in the check."""

from collections.abc import Callable
from copy import deepcopy
from fractions import Fraction
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import PassiveEnvChecker, RecordEpisodeStatistics, TimeLimit, TransformReward
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper
from test_env_outputs import AT, BOX, UNSEEN, WRONG, Errs

from helpers import BOX as BOX_ACTIONS
from helpers import DICT, VECTOR, NoiseEnv, named, noise_envs, small
from sb3_ppo_variants import EnvOutputError, WorkerError
from sb3_ppo_variants.envs import SafeSubprocVecEnv

NOT_A_TIME = np.datetime64("NaT")
# Rewards in addition to those of WRONG.
REWARDS: dict[str, Any] = {
    "an object": object(),
    "no time": NOT_A_TIME,
    "no difference": np.timedelta64("NaT"),
    "a difference": np.timedelta64(1),
    "too large": 10**400,
    "too large to be shown": 10**5000,
    "a large fraction": Fraction(10**400),
}
ALL = {**WRONG, **{f"reward {name}": (VECTOR, "reward", value, "reward") for name, value in REWARDS.items()}}


def timed(env: gym.Env) -> gym.Env:
    return TimeLimit(Monitor(env), 1000)


def checked(env: gym.Env) -> gym.Env:
    return Monitor(PassiveEnvChecker(env))


WRAPPERS: dict[str, Callable[[gym.Env], gym.Env]] = {
    "Monitor": Monitor,
    "Monitor and TimeLimit": timed,
    "statistics": RecordEpisodeStatistics,
    "statistics and Monitor": lambda env: Monitor(RecordEpisodeStatistics(env)),
}
IN_PROCESSES = {
    "ours": partial(SafeSubprocVecEnv, start_method="fork"),
    "SB3's": partial(SubprocVecEnv, start_method="fork"),
}


def envs(wrap: Callable[[gym.Env], gym.Env], wrong: Callable[[], gym.Env], right: Any, vec_env: Any) -> VecEnv:
    made: VecEnv = vec_env([lambda: wrap(right()), lambda: wrap(wrong())])
    return made


def errs(name: str, wrap: Any, vec_env: Any) -> tuple[VecEnv, str]:
    space, place, value, quantity = ALL[name]
    return envs(wrap, partial(Errs, space, place, value), partial(NoiseEnv, BOX, space), vec_env), quantity


@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
@pytest.mark.sampled(8)
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", ALL)
def test_under_wrappers(name: str, wrapper: str) -> None:
    env, quantity = errs(name, WRAPPERS[wrapper], DummyVecEnv)
    with pytest.raises(EnvOutputError) as caught:
        small(env=env).learn(32)
    assert (caught.value.quantity, caught.value.env_index, caught.value.step) == (quantity, 1, 2 * (AT - 1))
    assert "but must be" in str(caught.value) and len(str(caught.value)) < 1000


@pytest.mark.sampled(12)
@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
@pytest.mark.parametrize("name", ALL)
def test_under_wrappers_in_a_worker(name: str) -> None:
    env, quantity = errs(name, Monitor, IN_PROCESSES["ours"])
    with pytest.raises(EnvOutputError) as caught:
        small(env=env).learn(32)
    assert (caught.value.quantity, caught.value.env_index, caught.value.step) == (quantity, 1, 2 * (AT - 1))
    env.close()


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", [name for name in ALL if not name.startswith(UNSEEN)])
def test_in_a_worker_of_sb3(name: str) -> None:
    """It is found in the worker's answer, which contains neither terminated nor truncated."""
    env, quantity = errs(name, lambda env: env, IN_PROCESSES["SB3's"])
    with pytest.raises(EnvOutputError) as caught:
        small(env=env).learn(32)
    quantity = "done" if quantity == "truncated" else quantity
    assert (caught.value.quantity, caught.value.env_index, caught.value.step) == (quantity, 1, 2 * (AT - 1))
    env.close()


def test_a_worker_of_sb3_that_a_wrapper_ends() -> None:
    env, _ = errs("reward None", Monitor, IN_PROCESSES["SB3's"])
    with pytest.raises(
        WorkerError, match="the worker of environment 1 exited with code 1 at step 8; SafeSubprocVecEnv"
    ):
        small(env=env).learn(32)


class Returns(NoiseEnv):
    """Returns something other than five values from a step, or two from a reset."""

    def __init__(self, method: str, returned: Any):
        super().__init__(BOX)
        self._method, self._returned = method, returned
        self._taken = 0

    def reset(self, **arguments: Any) -> Any:
        return self._returned if self._method == "reset" else super().reset(**arguments)

    def step(self, action: Any) -> Any:
        self._taken += 1
        returned = super().step(action)
        return self._returned if self._method == "step" and self._taken == AT else returned


RESULTS: list[Any] = [(np.zeros(3), 0.0, False, {}), (np.zeros(3), 0.0, False, False, {}, 1), None, 3]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("returned", RESULTS)
@pytest.mark.parametrize("vec_env", [DummyVecEnv, IN_PROCESSES["ours"]])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_another_number_of_values(wrapper: str, vec_env: Any, returned: Any) -> None:
    env = envs(WRAPPERS[wrapper], partial(Returns, "step", returned), partial(NoiseEnv, BOX), vec_env)
    message = r"the result of step\(\) of environment 1 at step 8 is .*, but must be \(observation, reward, terminated,"
    with pytest.raises(EnvOutputError, match=message):
        small(env=env).learn(32)
    env.close()


@pytest.mark.parametrize("returned", [None, np.zeros(3)])
@pytest.mark.parametrize("wrap", [Monitor, RecordEpisodeStatistics])
def test_a_reset_of_another_number_of_values(wrap: Any, returned: Any) -> None:
    env = envs(wrap, partial(Returns, "reset", returned), partial(NoiseEnv, BOX), DummyVecEnv)
    with pytest.raises(
        EnvOutputError, match=r"the result of reset\(\) of environment 1 at step 0 is .*, but must be \("
    ):
        small(env=env).learn(32)


class EndsWith(NoiseEnv):
    """Returns an info that is not a dict at the end of an episode, where wrappers write into it."""

    def __init__(self, info: Any):
        super().__init__(BOX)
        self._info = info

    def step(self, action: Any) -> Any:
        *others, truncated, info = super().step(action)
        return *others, truncated, self._info if truncated else info


@pytest.mark.parametrize("info", [None, [], np.zeros(0), "", object()], ids=named)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_info_at_the_end_of_an_episode(wrapper: str, info: Any) -> None:
    env = envs(WRAPPERS[wrapper], partial(EndsWith, info), partial(NoiseEnv, BOX), DummyVecEnv)
    with pytest.raises(EnvOutputError, match=r"^the info of environment 1 at step 12 is .*, but must be a dict"):
        small(env=env).learn(32)


class Breaks(NoiseEnv):
    """Has a bug that raises an error."""

    def step(self, action: Any) -> Any:
        one, two = range(action.size + 1)
        return super().step(one + two)


def fails(reward: Any) -> Any:
    raise TypeError("of the wrapper")


@pytest.mark.parametrize("wrap", [Monitor, timed, lambda env: Monitor(TransformReward(env, lambda reward: 0.0))])
def test_an_error_of_the_environment_passes_on(wrap: Any) -> None:
    with pytest.raises(ValueError, match=r"too many values to unpack \(expected 2\)") as caught:
        small(env=DummyVecEnv([lambda: wrap(Breaks(BOX))])).learn(32)
    assert type(caught.value) is ValueError


def test_an_error_of_a_wrapper_passes_on() -> None:
    with pytest.raises(TypeError, match="of the wrapper"):
        small(env=DummyVecEnv([lambda: Monitor(TransformReward(NoiseEnv(BOX), fails))])).learn(32)


# Untyped, because these wrappers are wrong.
Wrapper: Any = gym.Wrapper
Reshape: Any = gym.wrappers.ReshapeObservation
NOTHING: dict[str, Any] = {}


class Fails(Wrapper):
    """Has a bug in its first step, after it has given other values to the variables with the output."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        obs, reward = np.append(obs, 1.0), None
        info["seen"] = NOTHING["no such key"]
        return obs, reward, terminated, truncated, info


class Unpacks(Wrapper):
    """Has a bug that has nothing to do with the output, which has the right number of values."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        one, two = range(3)
        return observation, reward, terminated, truncated, {**info, "one": one + two}


class Loses(Wrapper):
    """Fails before it steps, with variables of the usual names."""

    def step(self, action: Any) -> Any:
        reward, info = None, None
        raise ValueError(f"lost connection with {reward} and {info}")


class Reshapes(Reshape):
    """Calls the ``step`` of a wrapper that changes the observation, and has a bug."""

    def __init__(self, env: gym.Env):
        super().__init__(env, (1, 3))

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, info["no such key"]


OF_WRAPPERS: dict[Any, tuple[type[Exception], str]] = {
    Fails: (KeyError, "no such key"),
    Unpacks: (ValueError, "too many values to unpack"),
    Loses: (ValueError, "lost connection"),
    Reshapes: (KeyError, "no such key"),
}


@pytest.mark.parametrize("wrap", OF_WRAPPERS)
def test_an_error_of_a_wrapper_with_right_outputs(wrap: Any) -> None:
    error, message = OF_WRAPPERS[wrap]
    with pytest.raises(error, match=message) as caught:
        small(env=DummyVecEnv([lambda: wrap(NoiseEnv(BOX))])).learn(32)
    assert type(caught.value) is error
    env = SafeSubprocVecEnv([lambda: wrap(NoiseEnv(BOX))], start_method="fork")
    with pytest.raises(WorkerError, match=f"{error.__name__}: .*{message}"):
        small(env=env).learn(32)
    env.close()


class Receives(Wrapper):
    """Needs a number as the reward, under any name."""

    def step(self, action: Any) -> Any:
        o, r, te, tr, i = self.env.step(action)
        return o, r + 1.0, te, tr, i


@pytest.mark.parametrize("vec_env", [DummyVecEnv, IN_PROCESSES["ours"]])
def test_the_error_of_the_wrapper_is_the_cause(vec_env: Any) -> None:
    env, _ = errs("reward None", Receives, vec_env)
    with pytest.raises(EnvOutputError, match="the reward of environment 1 at step 8 is None") as caught:
        small(env=env).learn(32)
    assert "unsupported operand type" in str(caught.value.__cause__)
    env.close()


class WarmsUp(NoiseEnv):
    """Calls its own ``step``, with an additional argument, in ``reset``."""

    def reset(self, **arguments: Any) -> Any:
        super().reset(**arguments)
        observation, *_, info = self.step(np.zeros(2), warm_up=True)
        return observation, info

    def step(self, action: Any, warm_up: bool = False) -> Any:
        return super().step(action)


def test_additional_arguments_in_a_worker() -> None:
    env = SafeSubprocVecEnv([partial(WarmsUp, BOX)], start_method="fork")
    env.reset()
    env.close()


def test_a_reward_that_wrappers_make_right() -> None:
    space, place, value, _ = WRONG["reward a string"]
    small(env=DummyVecEnv([lambda: Monitor(TransformReward(Errs(space, place, value), float))])).learn(32)


class Plans(gym.Env):
    """Looks ahead in a copy of itself, and takes a step of its own at a reset, whose outputs nobody else sees."""

    observation_space = spaces.Box(0, 100, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.time = -1
        self.reward: float | None = None
        observation = self.step(0)[0]
        self.reward = 1.0
        return observation, {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return np.array([float(self.time)]), self.reward, False, False, {}

    def action_masks(self) -> np.ndarray:
        return np.arange(2) <= self.time

    def plan(self) -> tuple[int, int, list[bool]]:
        copied = deepcopy(self)
        copied.step(0)
        return copied.time, self.time, copied.action_masks().tolist()


@pytest.mark.parametrize("vec_env", [DummyVecEnv, IN_PROCESSES["ours"]])
def test_what_an_environment_does_inside_is_its_own_business(vec_env: Callable[..., VecEnv]) -> None:
    env = vec_env([Plans])
    env.reset()
    env.env_method("action_masks")
    assert env.env_method("plan") == [(1, 0, [True, True])]
    assert env.step(np.zeros(1, int))[0] == 1
    env.close()


class Altered(VecEnvWrapper):
    """Alters one of what the environments return, in a reset or in the second step after it."""

    def __init__(self, env: VecEnv, quantity: str, alter: Callable[[Any], Any]):
        super().__init__(env)
        self._quantity, self._alter, self._taken = quantity, alter, 0

    def reset(self) -> Any:
        observations = self.venv.reset()
        return self._alter(observations) if self._quantity == "reset" else observations

    def step_wait(self) -> Any:
        self._taken += 1
        step = dict(zip(("observation", "reward", "done", "info"), self.venv.step_wait(), strict=True))
        if self._taken == 2 and self._quantity in step:
            step[self._quantity] = self._alter(step[self._quantity])
        return tuple(step.values())


OBSERVATIONS = r"but must be an array of shape \(2, 3\)"
NUMBERS = "but must be an array with a number for each environment"
ALTERED: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "API of gymnasium": (
        "reset",
        lambda array: (array, {}),
        rf"observation at step 0 is \(array.*, {OBSERVATIONS}",
    ),
    "list": ("observation", np.ndarray.tolist, rf"the observation at step 2 is \[\[.*, {OBSERVATIONS}"),
    "tensor": ("observation", th.from_numpy, rf"the observation at step 2 is tensor.*, {OBSERVATIONS}"),
    "columns": ("observation", lambda array: array[:, :2], rf"is an array of shape \(2, 2\), {OBSERVATIONS}"),
    "one reward": ("reward", lambda array: array[:1], rf"the reward at step 2 is array.*, {NUMBERS}"),
    "sum": ("reward", lambda array: float(array.sum()), rf"the reward at step 2 is .*, {NUMBERS}"),
    "one done": ("done", lambda array: array[:1], "the done at step 2 .* an array with True or False for each"),
}


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", ALTERED)
def test_wrappers_of_vectorized_environments(name: str, fast: bool) -> None:
    quantity, alter, message = ALTERED[name]
    env = Altered(noise_envs(BOX_ACTIONS), quantity, alter)
    with pytest.raises(EnvOutputError, match=f"(?s){message}"):  # Arrays take several lines.
        small(env=env, fast=fast).learn(16)


def test_a_wrapper_of_dictionaries() -> None:
    def cut(parts: Any) -> Any:
        return {**parts, "vector": parts["vector"][:, :1]}

    env = Altered(noise_envs(BOX_ACTIONS, DICT), "observation", cut)
    with pytest.raises(EnvOutputError, match=r"an array of shape \(2,\) at 'digit' and an array of shape \(2, 3\) at"):
        small(env=env).learn(16)
