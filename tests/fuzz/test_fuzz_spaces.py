"""Spaces that SB3's policies do not support are refused at construction, and all others can be trained with."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from fuzzing import DICTS, NUMBERS, fuzz
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from kinds import KINDS
from models import OBJECTIVES, PATHS, along, made

from helpers import NoiseEnv
from sb3_ppo_variants import ArgumentError
from sb3_ppo_variants.policies.kind import kind_of

STARTED = st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 4), st.sampled_from([-2, 1, 7]))
NESTED = st.builds(lambda key, space: spaces.Dict({key: space}), st.sampled_from("ab"), DICTS)
TUPLES = st.builds(lambda parts: spaces.Tuple(parts), st.lists(NUMBERS, min_size=1, max_size=2))
NO_PARTS = [spaces.Box(-np.inf, np.inf, (2,)), spaces.Text(3)]
NO_ACTIONS = st.one_of(
    STARTED,
    st.sampled_from(NO_PARTS),
    st.sampled_from(NO_PARTS).map(lambda space: spaces.Dict({"a": spaces.Discrete(2), "b": space})),
    st.sampled_from(NO_PARTS).map(lambda space: spaces.Tuple([space])),
)
NO_OBSERVATIONS = st.one_of(
    STARTED,
    STARTED.map(lambda space: spaces.Dict({"a": space})),
    st.just(spaces.Box(-1, 1, ())),
    st.just(spaces.Dict({"a": spaces.Box(-1, 1, ())})),
)


@pytest.mark.filterwarnings("ignore")
@fuzz(examples=15, endless=100)
@given(st.data())
def test_good_spaces_train_and_predict(data: st.DataObject) -> None:
    model = data.draw(made(st.just({"n_steps": 4, "batch_size": 3, "n_epochs": 1}), most_envs=2))
    with along(data.draw(st.sampled_from(PATHS)), model):
        model.learn(16)
    observations, given_masks = model.env.reset(), {}
    if kind_of(model.policy).takes_masks:
        given_masks = {"action_masks": np.stack(model.env.env_method("action_masks"))}
    actions = model.predict(observations, **given_masks)[0]
    if not isinstance(model.action_space, spaces.Dict):
        actions = np.asarray(actions, model.action_space.dtype)
    assert all(action in model.action_space for action in actions)
    assert "train/kl" in model.logger.name_to_value


@fuzz(examples=20, endless=50)
@given(objective=OBJECTIVES, action_space=NO_ACTIONS)
def test_bad_actions_are_refused(objective: Any, action_space: spaces.Space) -> None:
    cls, arguments = objective
    with pytest.raises(ArgumentError, match=r"^env.action_space"):
        cls("MlpPolicy", NoiseEnv(action_space), **arguments)


@fuzz(examples=20, endless=50)
@given(objective=OBJECTIVES, observation_space=NO_OBSERVATIONS)
def test_bad_observations_are_refused(objective: Any, observation_space: spaces.Space) -> None:
    cls, arguments = objective
    env: gym.Env = NoiseEnv(spaces.Discrete(2), observation_space)
    with pytest.raises(ArgumentError, match=r"^env.observation_space"):
        cls(KINDS["plain"].policy_of(observation_space), env, **arguments)


@pytest.mark.filterwarnings("ignore")
@fuzz(examples=10, endless=30)
@given(objective=OBJECTIVES, observation_space=st.one_of(NESTED, TUPLES))
def test_observations_that_sb3_refuses(objective: Any, observation_space: spaces.Space) -> None:
    cls, arguments = objective
    env = NoiseEnv(spaces.Discrete(2), observation_space)
    with pytest.raises((NotImplementedError, ArgumentError, TypeError, ValueError)):
        cls(KINDS["plain"].policy_of(observation_space), env, **arguments)
