"""The kinds of policies, with strategies for the environments and arguments of each."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch as th
from fuzzing import (
    ACTION_SPACES,
    BOXES,
    FOR_LSTM,
    MASKABLE_SPACES,
    OBSERVATION_SPACES,
    SEVERAL,
    SHAPES,
    WITHOUT_SEVERAL,
    boxes,
)
from gymnasium import spaces
from hypothesis import strategies as st
from masked_envs import masked_envs
from recurrence import ragged_envs
from stable_baselines3.common.vec_env import VecEnv

from helpers import noise_envs

Arguments = dict[str, Any]
LAYERS = st.lists(st.integers(1, 8), max_size=2)
NETWORK: dict[str, st.SearchStrategy[Any]] = {
    "net_arch": LAYERS | st.fixed_dictionaries({"pi": LAYERS, "vf": LAYERS}),
    "activation_fn": st.sampled_from([th.nn.Tanh, th.nn.ReLU]),
    "ortho_init": st.booleans(),
    "share_features_extractor": st.booleans(),
    # With a smaller beta2 or eps, Adam takes full steps even if a gradient consists only of rounding errors.
    "optimizer_kwargs": st.fixed_dictionaries(
        {"betas": st.tuples(st.floats(0, 0.99), st.floats(0.9, 0.999)), "eps": st.sampled_from([1e-5, 1e-2])}
    ),
}
WITH_DEVIATION = {**NETWORK, "log_std_init": st.floats(-3, 1)}
DEVIATIONS: dict[str, st.SearchStrategy[Any]] = {
    "full_std": st.booleans(),
    "use_expln": st.booleans(),
    "squash_output": st.booleans(),
}
MEMORY = {"lstm_hidden_size": st.integers(1, 6), "n_lstm_layers": st.integers(1, 2)}
MEMORIES: st.SearchStrategy[Arguments] = st.sampled_from(
    [
        {},
        {"enable_critic_lstm": False},
        {"enable_critic_lstm": False, "shared_lstm": True, "share_features_extractor": True},
        {"lstm_kwargs": {"bias": False}},
        {"memory": "gru"},
    ]
)
GSDE = st.fixed_dictionaries({"use_sde": st.just(True)}, optional={"sde_sample_freq": st.sampled_from([-1, 1, 3])})


class Kind(NamedTuple):
    """A kind of policy, with strategies for its environments and arguments."""

    policy: str
    """The names of its policies, with ``{}`` in place of ``Mlp`` or ``MultiInput``."""
    make_envs: Callable[[spaces.Space, spaces.Space, int], VecEnv]
    action_spaces: st.SearchStrategy[spaces.Space]
    networks: st.SearchStrategy[Arguments]
    """The argument ``policy_kwargs``."""
    settings: st.SearchStrategy[Arguments] = st.just({})
    """Other arguments."""
    observation_spaces: st.SearchStrategy[spaces.Space] = OBSERVATION_SPACES

    def policy_of(self, observation_space: spaces.Space) -> str:
        return self.policy.format("MultiInput" if isinstance(observation_space, spaces.Dict) else "Mlp")


def networks(optional: Arguments) -> st.SearchStrategy[Arguments]:
    return st.fixed_dictionaries({}, optional=optional)


BOUNDED: st.SearchStrategy[Arguments] = st.sampled_from(
    [
        {"distribution": "beta"},
        {"distribution": "squashed_gaussian"},
        {"distribution": "squashed_gaussian", "std": "state"},
        {"distribution": "gaussian", "std": "state"},
    ]
)
# With larger numbers, the standard deviations of new networks may be too large or too small for floats.
UP_TO_1 = boxes(SHAPES) | MASKABLE_SPACES
# Actor and critic each see some of these.
FOR_TWO = st.fixed_dictionaries({key: WITHOUT_SEVERAL | SEVERAL for key in "ab"}).map(spaces.Dict)
KEYS = st.sampled_from([["a"], ["b"], ["a", "b"]])
OF_TWO = {name: values for name, values in NETWORK.items() if name != "share_features_extractor"}
# ``log_std_init`` needs a Box.
HYBRID = st.builds(
    lambda box, others: spaces.Dict({"b": box, **dict(zip("ac", others, strict=False))}),
    boxes(SHAPES),
    st.lists(boxes(SHAPES) | MASKABLE_SPACES, max_size=2),
)


def merged(first: st.SearchStrategy[Arguments], second: st.SearchStrategy[Arguments]) -> st.SearchStrategy[Arguments]:
    return st.builds(lambda one, other: {**one, **other}, first, second)


# A Beta distribution has no standard deviation.
OF_BOUNDED = merged(networks(WITH_DEVIATION), BOUNDED).map(
    lambda given: {n: value for n, value in given.items() if (given["distribution"], n) != ("beta", "log_std_init")}
)


def recurrent(optional: Arguments) -> st.SearchStrategy[Arguments]:
    sizes: st.SearchStrategy[Arguments] = st.fixed_dictionaries(MEMORY, optional=optional)
    return merged(sizes, MEMORIES)


KINDS = {
    "plain": Kind("{}Policy", noise_envs, ACTION_SPACES, networks(WITH_DEVIATION)),
    "gSDE": Kind("{}Policy", noise_envs, BOXES, networks({**WITH_DEVIATION, **DEVIATIONS}), GSDE),
    "masks": Kind("Maskable{}Policy", masked_envs, MASKABLE_SPACES, networks(NETWORK)),
    "LSTM": Kind("{}LstmPolicy", ragged_envs, ACTION_SPACES, recurrent(WITH_DEVIATION), observation_spaces=FOR_LSTM),
    "LSTM, gSDE": Kind("{}LstmPolicy", ragged_envs, BOXES, recurrent(WITH_DEVIATION), GSDE, FOR_LSTM),
    "masks, LSTM": Kind(
        "Maskable{}LstmPolicy", masked_envs, MASKABLE_SPACES, recurrent(NETWORK), observation_spaces=FOR_LSTM
    ),
    "bounded": Kind("{}Policy", noise_envs, boxes(SHAPES), OF_BOUNDED, observation_spaces=UP_TO_1),
    "hybrid": Kind("{}Policy", noise_envs, HYBRID, networks(WITH_DEVIATION)),
    "two views": Kind(
        "{}Policy",
        noise_envs,
        ACTION_SPACES,
        st.fixed_dictionaries({"actor_keys": KEYS, "critic_keys": KEYS}, optional=OF_TWO),
        observation_spaces=FOR_TWO,
    ),
}
