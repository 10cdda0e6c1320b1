"""Spaces that SB3 would misinterpret are refused or cause a warning, and the message suggests a wrapper."""

import re
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Discrete, MultiDiscrete
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticCnnPolicy, MultiInputActorCriticPolicy

from helpers import BOX, VARIANTS, VECTOR, NoiseEnv, named, save, small
from sb3_ppo_variants import ArgumentError, PPOClip, WorkerError
from sb3_ppo_variants.envs import SafeSubprocVecEnv

SPACES: dict[str, Any] = {
    "after 0": Discrete(3, start=5),
    "before 0": Discrete(3, start=-1),
    "several": MultiDiscrete([2, 3], start=[0, 4]),
}

NUMBER = spaces.Box(-1, 1, (), np.float32)


class Strict(NoiseEnv):
    """Refuses actions that are not in its space."""

    def step(self, action: Any) -> Any:
        assert action in self.action_space, action
        return super().step(action)


def advised(error: ArgumentError, env: gymnasium.Env) -> gymnasium.Env:
    """Return the environment in the wrapper that the error suggests."""
    expression = re.split("wrap the environment in |one: use ", str(error))[1]
    names = {"gymnasium": gymnasium, "np": np, "env": env, "Discrete": Discrete, "MultiDiscrete": MultiDiscrete}
    names["MultiBinary"] = spaces.MultiBinary
    return eval(expression, names)


def test_several_numbers_for_an_lstm() -> None:
    env: gymnasium.Env = NoiseEnv(BOX, MultiDiscrete([2, 3]))
    refused = r"^env.observation_space=MultiDiscrete\(\[2 3\]\) is not supported by sb3-contrib's policies with LSTMs"
    with pytest.raises(ArgumentError, match=refused) as caught:
        PPOClip("MlpLstmPolicy", env)
    PPOClip("MlpLstmPolicy", advised(caught.value, env), n_steps=16, batch_size=16, n_epochs=1).learn(16)
    nested: gymnasium.Env = NoiseEnv(BOX, spaces.Dict({"a": MultiDiscrete([2, 3])}))
    with pytest.raises(ArgumentError, match=r"^env.observation_space\['a'\]=MultiDiscrete"):
        PPOClip("MultiInputLstmPolicy", nested)


def test_a_table_of_actions() -> None:
    env: gymnasium.Env = Strict(MultiDiscrete(np.array([[2, 3], [4, 5]])))
    refused = r"^env.action_space=MultiDiscrete\(.* is not flat, as SB3's policies expect: wrap the environment in "
    with pytest.raises(ArgumentError, match=re.compile(refused, re.DOTALL)) as caught:
        PPOClip("MlpPolicy", env)
    PPOClip("MlpPolicy", advised(caught.value, env), n_steps=64, batch_size=32, n_epochs=1).learn(64)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_actions(variant: Any, name: str, fast: bool) -> None:
    env: gymnasium.Env = Strict(SPACES[name])
    with pytest.raises(ArgumentError, match=r"^env.action_space=.* does not start at 0, as SB3's policies expect: wr"):
        variant("MlpPolicy", env)
    with pytest.raises(ArgumentError) as caught:
        variant("MlpPolicy", make_vec_env(lambda: Strict(SPACES[name]), n_envs=2))
    env = advised(caught.value, env)
    variant("MlpPolicy", env, n_steps=64, batch_size=32, n_epochs=1, fast=fast).learn(64)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", SPACES)
def test_observations(name: str, fast: bool) -> None:
    env: gymnasium.Env = NoiseEnv(BOX, SPACES[name])
    with pytest.raises(ArgumentError, match=r"^env.observation_space=.* does not start at 0") as caught:
        PPOClip("MlpPolicy", env)
    PPOClip("MlpPolicy", advised(caught.value, env), n_steps=64, batch_size=32, n_epochs=1, fast=fast).learn(64)


@pytest.mark.parametrize("fast", [False, True])
def test_observations_without_dimensions(fast: bool) -> None:
    env: gymnasium.Env = NoiseEnv(BOX, NUMBER)
    arguments: dict[str, Any] = {"n_steps": 64, "batch_size": 32, "n_epochs": 1}
    with pytest.raises(ArgumentError, match=r"^env.observation_space=Box\(.*, \(\), .* has no dimensions") as caught:
        PPOClip("MlpPolicy", env, fast=fast, **arguments)
    PPOClip("MlpPolicy", advised(caught.value, env), fast=fast, **arguments).learn(64)


@pytest.mark.parametrize(
    ("actions", "observations", "refused"),
    [
        (spaces.Box(-1, 1, (0,)), VECTOR, r"env.action_space=Box.* has no actions"),
        (spaces.MultiBinary([2, 2]), VECTOR, r"env.action_space=MultiBinary\(\(2, 2\)\) is not flat"),
        (Discrete(2), spaces.Box(-1, 1, (0,)), r"env.observation_space=Box.* has no elements"),
        (Discrete(2), spaces.Box(-1, 1, (3, 0)), r"env.observation_space=Box.* has no elements"),
        (
            Discrete(2),
            MultiDiscrete(np.array([[2, 2], [3, 3]])),
            r"env.observation_space=MultiDiscrete(?s:.*) is not supported by SB3's policies",
        ),
        (Discrete(2), spaces.Dict({}), r"env.observation_space=Dict\(\) has no observations"),
        (
            Discrete(2),
            spaces.Dict({"a": VECTOR, "b": spaces.Box(-1, 1, (0,))}),
            r"env.observation_space\['b'\]=Box.* has no elements .* leave it out",
        ),
    ],
)
def test_empty_spaces_and_several_dimensions(actions: Any, observations: Any, refused: str) -> None:
    policy = "MultiInputPolicy" if isinstance(observations, spaces.Dict) else "MlpPolicy"
    with pytest.raises(ArgumentError, match=f"^{refused}"):
        PPOClip(policy, NoiseEnv(actions, observations))


@pytest.mark.parametrize(
    "policy", ["MlpPolicy", "MultiInputPolicy", "MaskableMultiInputPolicy", MultiInputActorCriticPolicy]
)
def test_tuples_of_observations_are_refused(policy: Any) -> None:
    space = spaces.Tuple([Discrete(2), Discrete(3)])
    with pytest.raises(ArgumentError, match=r"observations in Tuple\(.*: make them a Dict, as with gymnasium.wrapp"):
        PPOClip(policy, NoiseEnv(BOX, space))


UNKNOWN: list[Any] = [
    spaces.Graph(VECTOR, None),
    spaces.Text(5),
    spaces.Sequence(VECTOR),
    spaces.Space((3,), np.float32),
]


@pytest.mark.parametrize("key", ["", "['b']", "[1]"])
@pytest.mark.parametrize("part", UNKNOWN, ids=named)
def test_observations_that_are_no_arrays(part: Any, key: str) -> None:
    inside = {"['b']": spaces.Dict({"a": VECTOR, "b": part}), "[1]": spaces.Tuple([VECTOR, part])}
    env = NoiseEnv(BOX, inside.get(key, part))
    refused = re.escape(f"env.observation_space{key}={part} is not one of the spaces that policies observe, which are ")
    refused += "Box, Discrete, .*: leave it out of a Dict with gymnasium.wrappers.FilterObservation"
    model = small(env=NoiseEnv(BOX))
    for trial in (partial(PPOClip, "MultiInputPolicy"), model.set_env, partial(PPOClip.load, save(model))):
        with pytest.raises(ArgumentError, match=f"^{refused}"):
            trial(env)
    with pytest.raises(WorkerError, match=refused):
        SafeSubprocVecEnv([lambda: env], "fork")


def test_the_advised_wrappers_of_observations() -> None:
    mission = NoiseEnv(BOX, spaces.Dict({"a": VECTOR, "b": spaces.Text(5)}))
    small(env=gymnasium.wrappers.FilterObservation(mission, ["a"]), policy="MultiInputPolicy").learn(16)
    small(env=gymnasium.wrappers.FlattenObservation(NoiseEnv(BOX, spaces.Text(5)))).learn(16)


def test_nested_observations() -> None:
    env: Any = NoiseEnv(BOX, spaces.Dict({"a": VECTOR, "b": spaces.Dict({"c": Discrete(3)})}))
    refused = r"^env.observation_space\['b'\]\['c'\]=Discrete\(3\) is in a space inside another one, which no policy o"
    with pytest.raises(NotImplementedError, match=refused) as caught:
        PPOClip("MultiInputPolicy", env)
    advice = "wrap the environment in gymnasium.wrappers.FlattenObservation(env), and use 'MlpPolicy'"
    assert advice in str(caught.value)
    small(env=gymnasium.wrappers.FlattenObservation(env), policy="MlpPolicy").learn(16)


@pytest.mark.parametrize("policy", ["CnnLstmPolicy", "MaskableCnnPolicy", ActorCriticCnnPolicy, "MultiInputPolicy"])
def test_images_that_are_too_small(policy: Any) -> None:
    def env(height: int) -> gymnasium.Env:
        space = spaces.Box(0, 255, (height, 40, 3), np.uint8)
        nested = policy == "MultiInputPolicy"
        return NoiseEnv(Discrete(2), spaces.Dict({"v": VECTOR, "i": space}) if nested else space)

    refused = r"has images of \(35, 40\) pixels, and SB3's NatureCNN needs 36 x 36 or more"
    with pytest.raises(ArgumentError, match=refused):
        small(env=env(35), policy=policy)
    small(env=env(36), policy=policy)
