"""Invalid outputs of an environment are refused at the step that returns them; outputs that NumPy converts pass."""

from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper, VecNormalize

from helpers import BOX, VECTOR, NoiseEnv, flat_weights, small
from sb3_ppo_variants import EnvOutputError, NonFiniteError, PPOClip
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
    "reward bytes": (VECTOR, "reward", b"1", "reward"),
    "reward a NumPy string": (VECTOR, "reward", np.str_("1"), "reward"),
    "reward None": (VECTOR, "reward", None, "reward"),
    "reward complex": (VECTOR, "reward", 1j, "reward"),
    "reward a list": (VECTOR, "reward", [1.0], "reward"),
    "reward in an array": (VECTOR, "reward", np.ones(1), "reward"),
    "rewards of two": (VECTOR, "reward", np.ones(2), "reward"),
    "reward a dict": (VECTOR, "reward", {"r": 1.0}, "reward"),
    "reward an array of an object": (VECTOR, "reward", np.array(None), "reward"),
    "terminated a string": (VECTOR, "terminated", "no", "terminated"),
    "terminated an empty string": (VECTOR, "terminated", "", "terminated"),
    "terminated None": (VECTOR, "terminated", None, "terminated"),
    "terminated NaN": (VECTOR, "terminated", float("nan"), "terminated"),
    "terminated 2": (VECTOR, "terminated", 2, "terminated"),
    "terminated 0.5": (VECTOR, "terminated", 0.5, "terminated"),
    "terminated a list": (VECTOR, "terminated", [], "terminated"),
    "terminated an array": (VECTOR, "terminated", np.zeros(1, bool), "terminated"),
    "truncated a string": (VECTOR, "truncated", "no", "truncated"),
    "truncated None": (VECTOR, "truncated", None, "truncated"),
    "truncated -1": (VECTOR, "truncated", -1, "truncated"),
    "info None": (VECTOR, "info", None, "info"),
    "info a list": (VECTOR, "info", [], "info"),
    "observation a number": (VECTOR, "observation", 0.5, "observation"),
    "observation of one number": (VECTOR, "observation", np.zeros(1, np.float32), "observation"),
    "observation in a row": (VECTOR, "observation", np.zeros((1, 3), np.float32), "observation"),
    "observation too long": (VECTOR, "observation", np.zeros(4, np.float32), "observation"),
    "observation None": (VECTOR, "observation", None, "observation"),
    "observation of strings": (VECTOR, "observation", np.array(["1", "2", "3"]), "observation"),
    "observation of objects": (VECTOR, "observation", np.array([None, 1, 2]), "observation"),
    "observation complex": (VECTOR, "observation", A + 1j, "observation"),
    "observation ragged": (VECTOR, "observation", [[1.0], 2.0, 3.0], "observation"),
    "observation of fractions for bytes": (BYTES, "observation", np.full(3, 0.5), "observation"),
    "observation too large for bytes": (BYTES, "observation", np.full(3, 256), "observation"),
    "observation negative for bytes": (BYTES, "observation", np.full(3, -1), "observation"),
    "observation too large for bytes, in floats": (BYTES, "observation", np.full(3, 256.0), "observation"),
    "observation NaN for bytes": (BYTES, "observation", np.full(3, np.nan), "observation"),
    "number too large in a float": (NUMBER, "observation", 4.0, "observation"),
    "bits that are not, in floats": (BITS, "observation", np.array([0.0, 2.0, 0.0]), "observation"),
    "number that is not": (NUMBER, "observation", 1.5, "observation"),
    "number too large": (NUMBER, "observation", 4, "observation"),
    "number negative": (NUMBER, "observation", np.int64(-1), "observation"),
    "number in an array": (NUMBER, "observation", np.ones(1, np.int64), "observation"),
    "numbers too large": (NUMBERS, "observation", np.array([2, 0]), "observation"),
    "bits that are not": (BITS, "observation", np.array([0, 2, 0], np.int8), "observation"),
    "dict without a key": (DICT, "observation", {"a": A}, "observation"),
    "dict with another key": (DICT, "observation", {"a": A, "b": 0, "c": A}, "observation"),
    "dict with a wrong part": (DICT, "observation", {"a": A[:1], "b": 0}, "observation['a']"),
    "no dict": (DICT, "observation", A, "observation"),
}
# Outputs that SB3 accepts, and changes at most by rounding.
RIGHT: list[tuple[spaces.Space, str, Any]] = [
    *((VECTOR, "reward", reward) for reward in (1, True, np.float64(1), np.float32(1), np.float16(1), np.int8(1))),
    *((VECTOR, "reward", reward) for reward in (np.array(1.0), np.array(1), th.tensor(1.0))),
    *((VECTOR, "terminated", flag) for flag in (0, np.False_, np.array(False), np.int64(0), th.tensor(False))),
    *((VECTOR, "terminated", flag) for flag in (0.0, np.float32(0))),
    *((VECTOR, "observation", a) for a in (A.astype(np.float64), A.astype(int), [0.0, 0.0, 0.0], th.zeros(3))),
    (BYTES, "observation", np.full(3, 255)),
    (BYTES, "observation", np.ones(3, bool)),
    (BYTES, "observation", np.full(3, 255.0)),
    *((NUMBER, "observation", number) for number in (3, np.int64(3), np.int32(3), np.array(3), True)),
    (NUMBER, "observation", 3.0),
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


def right_and(space: spaces.Space, place: str, value: Any, vec_env: Any = DummyVecEnv) -> VecEnv:
    env: VecEnv = vec_env([partial(NoiseEnv, BOX, deepcopy(space)), partial(Errs, space, place, value)])
    return env


@pytest.mark.parametrize("name", WRONG)
def test_wrong_outputs(name: str) -> None:
    space, place, value, quantity = WRONG[name]
    with pytest.raises(EnvOutputError) as caught:
        small(env=right_and(space, place, value)).learn(32)
    assert (caught.value.quantity, caught.value.env_index, caught.value.step) == (quantity, 1, 2 * (AT - 1))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_outputs_of_another_process(name: str) -> None:
    space, place, value, quantity = WRONG[name]
    env = right_and(space, place, value, partial(SafeSubprocVecEnv, start_method="fork"))
    with pytest.raises(EnvOutputError) as caught:
        small(env=env).learn(32)
    assert (caught.value.quantity, caught.value.env_index, caught.value.step) == (quantity, 1, 2 * (AT - 1))
    env.close()


# These cannot be detected: SB3's worker converts them to valid values, or NumPy raises an error when it stacks them.
UNSEEN = ("terminated", "info", "dict", "no dict", "observation ragged")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [name for name in WRONG if not name.startswith(UNSEEN)])
def test_wrong_outputs_of_a_worker_of_sb3(name: str) -> None:
    space, place, value, quantity = WRONG[name]
    env = SubprocVecEnv([partial(Errs, space, place, value)], start_method="fork")
    with pytest.raises(EnvOutputError, match=f"the {quantity if place != 'truncated' else 'done'}"):
        small(env=env).learn(32)
    env.close()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("space", "place", "value"), RIGHT)
def test_right_outputs(space: spaces.Space, place: str, value: Any) -> None:
    small(env=right_and(space, place, value)).learn(32)


@pytest.mark.parametrize("returned", [(A, 1.0, False, {}), None, A])
def test_a_step_that_is_not_of_five_values(returned: Any) -> None:
    class Old(NoiseEnv):
        def step(self, action: Any) -> Any:
            return returned

    with pytest.raises(EnvOutputError, match=r"result of step\(\) of environment 0 at step 0 is .*, but must be \(obs"):
        small(env=DummyVecEnv([partial(Old, BOX)])).learn(32)


@pytest.mark.parametrize("returned", [A, np.zeros(2, np.float32), (A, None), (A[:1], {})])
def test_a_wrong_reset(returned: Any) -> None:
    class Old(NoiseEnv):
        def reset(self, **_: Any) -> Any:
            return returned

    with pytest.raises(EnvOutputError, match="of environment 0 at step 0 is"):
        small(env=DummyVecEnv([partial(Old, BOX)])).learn(32)


@pytest.mark.parametrize("value", [A[:1], np.full(3, "1")])
def test_a_wrong_last_observation(value: Any) -> None:
    class Ends(NoiseEnv):
        def step(self, action: Any) -> Any:
            observation, *others = super().step(action)
            return (value if self._steps == 7 else observation), *others

    with pytest.raises(EnvOutputError, match="observation of environment 0 at step 6"):
        small(env=VecNormalize(DummyVecEnv([partial(Ends, BOX)]))).learn(32)


@pytest.mark.parametrize("wrapper", [lambda env: env, VecNormalize])
def test_a_last_observation_too_large_for_the_type_of_the_space(wrapper: Any) -> None:
    class Ends(NoiseEnv):
        def step(self, action: Any) -> Any:
            observation, *others = super().step(action)
            return (np.array([0, 1e39, 0]) if self._steps == 7 else observation), *others

    with pytest.raises(NonFiniteError, match="terminal observation of environment 0 at step 6 is not finite"):
        small(env=wrapper(DummyVecEnv([partial(Ends, BOX)]))).learn(32)


class InFloats(NoiseEnv):
    """Returns all observations in floats."""

    def reset(self, **arguments: Any) -> Any:
        observation, info = super().reset(**arguments)
        return np.asarray(observation, float), info

    def step(self, action: Any) -> Any:
        observation, *others = super().step(action)
        return np.asarray(observation, float), *others


@pytest.mark.parametrize("space", [BYTES, NUMBER, NUMBERS, BITS])
def test_integers_in_floats_of_a_worker_of_sb3(space: spaces.Space) -> None:
    rollouts = []
    for cls in (NoiseEnv, InFloats):
        env = SubprocVecEnv([partial(cls, BOX, space)], start_method="fork")
        env.seed(0)
        rollouts.append(small(env=env).learn(16).rollout_buffer.observations)
        env.close()
    np.testing.assert_array_equal(*rollouts)


class TellsNothing(DummyVecEnv):
    """Returns no infos."""

    def __init__(self, ends: bool):
        super().__init__([partial(NoiseEnv, BOX)] * 2)
        self._ends = ends

    def step_wait(self) -> Any:
        observations, rewards, dones, _ = super().step_wait()
        return observations, rewards, dones & self._ends, []


@pytest.mark.parametrize("ends", [False, True])
def test_infos_are_missed_where_an_episode_ends(ends: bool) -> None:
    model = small(env=TellsNothing(ends))
    if not ends:
        model.learn(32)
        return
    with pytest.raises(EnvOutputError, match=r"the info at step 12 is \[\], but must be a list with a dict for each"):
        model.learn(32)


class OtherTypes(DummyVecEnv):
    """Returns a list of rewards, and dones that are floats."""

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = super().step_wait()
        return observations, rewards.tolist(), dones.astype(np.float32), infos


def test_rewards_in_a_list_and_dones_that_are_floats() -> None:
    weights = []
    for vec_env in (DummyVecEnv, OtherTypes):
        env = vec_env([partial(NoiseEnv, BOX, deepcopy(VECTOR))] * 2)
        model = PPOClip("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, seed=0, device="cpu").learn(32)
        weights.append(flat_weights(model))
    assert th.equal(*weights)


class InHalfPrecision(DummyVecEnv):
    """Returns rewards in half precision, whose largest number is 65504."""

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = super().step_wait()
        return observations, rewards.astype(np.float16), dones, infos


def test_rewards_in_half_precision_raise_no_warning() -> None:
    env = InHalfPrecision([partial(NoiseEnv, BOX, deepcopy(VECTOR))] * 2)
    small(env=env).learn(32)  # A warning of this package is an error in the tests.


class Flattened(VecEnvWrapper):
    """Joins the two parts of tuples."""

    def __init__(self, env: VecEnv):
        super().__init__(env, spaces.Box(-1, 1, (6,)))

    def reset(self) -> Any:
        observations: Any = self.venv.reset()
        return np.concatenate(observations, axis=1)

    def step_wait(self) -> Any:
        observations: Any
        observations, rewards, dones, infos = self.venv.step_wait()
        for info in infos:
            if "terminal_observation" in info:
                info["terminal_observation"] = np.concatenate(info["terminal_observation"])
        return np.concatenate(observations, axis=1), rewards, dones, infos


VEC_ENVS = [DummyVecEnv, *(partial(cls, start_method="fork") for cls in (SubprocVecEnv, SafeSubprocVecEnv))]


@pytest.mark.parametrize("vec_env", VEC_ENVS)
def test_tuples_under_a_wrapper(vec_env: Any) -> None:
    pair = spaces.Tuple([VECTOR, VECTOR])
    env = right_and(pair, "reward", 0.0, vec_env)
    small(env=Flattened(env)).learn(32)
    env.close()
    env = right_and(pair, "observation", (A, np.array([0, np.nan, 0], np.float32)), vec_env)
    with pytest.raises(NonFiniteError, match=r"the observation\[1\] of environment 1 at step 8 is not finite"):
        small(env=Flattened(env)).learn(32)
    env.close()


def test_a_part_of_a_tuple_of_another_shape() -> None:
    env = right_and(spaces.Tuple([VECTOR, VECTOR]), "observation", (A, A[:1]), VEC_ENVS[2])
    with pytest.raises(EnvOutputError, match=r"the observation\[1\] of environment 1 at step 8 is an array of shape"):
        small(env=Flattened(env)).learn(32)
    env.close()


# Infos of the last step of an episode, and the name of the wrong statistic.
STATISTICS: list[tuple[dict[str, Any], str]] = [
    ({"is_success": "no"}, r'info\["is_success"\] of environment 1 at step 14 is \'no\', but must be a number'),
    ({"is_success": {}}, r'info\["is_success"\]'),
    ({"episode": {"r": "1.5", "l": 7}}, r'info\["episode"\]\[\'r\'\]'),
    ({"episode": {"r": 1.5, "l": None}}, r'info\["episode"\]\[\'l\'\]'),
    ({"episode": {"r": 1.5}}, r'info\["episode"\] of environment 1 at step 14 is .*a dict with the keys'),
    ({"episode": "none"}, r'info\["episode"\]'),
]


class Tells(NoiseEnv):
    """Has statistics of its own in the info of the last step of an episode."""

    def __init__(self, statistics: dict[str, Any]):
        super().__init__(BOX)
        self._statistics = statistics

    def step(self, action: Any) -> Any:
        *returned, truncated, _ = super().step(action)
        return *returned, truncated, self._statistics if truncated else {}


@pytest.mark.parametrize("vec_env", [DummyVecEnv, pytest.param(SubprocVecEnv, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("info", "named"), STATISTICS)
def test_statistics_of_episodes(info: dict[str, Any], named: str, vec_env: Any) -> None:
    env = vec_env([partial(Tells, {}), partial(Tells, info)])
    with pytest.raises(EnvOutputError, match=named):
        small(env=env).learn(32)
    env.close()


@pytest.mark.parametrize("info", [{"is_success": np.bool_(True)}, {"episode": {"r": np.ones(1), "l": 7, "t": "now"}}])
def test_right_statistics_of_episodes(info: dict[str, Any]) -> None:
    model = small(env=DummyVecEnv([partial(Tells, info)])).learn(32)
    assert len(model.ep_info_buffer) + len(model.ep_success_buffer) == 4
