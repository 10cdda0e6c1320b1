"""Random models and their states after an update."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch as th
from hypothesis import strategies as st
from kinds import KINDS
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    DiagGaussianDistribution,
    StateDependentNoiseDistribution,
)
from stable_baselines3.common.utils import LinearSchedule

from helpers import collect, in_double_precision
from sb3_ppo_variants import NonFiniteError, PPOAdaptiveKL, PPOClip, PPOFixedKL, PPOUnclipped, SeparateUpdates

State = dict[str, Any]
GAUSSIANS = DiagGaussianDistribution | StateDependentNoiseDistribution


def scheduled(low: float, high: float) -> st.SearchStrategy[Any]:
    """Draw a number, or a schedule that starts from one."""
    numbers = st.floats(low, high)
    return numbers | st.builds(lambda start: LinearSchedule(start, low, 1.0), numbers)


# A smaller step than these moves biases from 0 to numbers that are no longer normal. Whether they round to 0 decides on
# which side of its kink a ReLU is.
STEP_SIZES = st.just(0.0) | scheduled(1e-9, 1e-2)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


SEPARATE = st.builds(
    SeparateUpdates,
    policy_epochs=optional(st.integers(1, 3)),
    value_epochs=optional(st.integers(1, 3)),
    value_learning_rate=STEP_SIZES,
    value_max_grad_norm=optional(st.floats(0, 1)),
)
# If advantages are normalised, each minibatch needs at least two rows, except the last one.
SETTINGS = st.fixed_dictionaries(
    {"n_steps": st.integers(2, 9), "batch_size": st.integers(2, 20), "n_epochs": st.integers(1, 3)},
    optional={
        "learning_rate": STEP_SIZES,
        "gamma": st.floats(0, 1),
        "gae_lambda": st.floats(0, 1),
        "clip_range_vf": optional(scheduled(1e-3, 1)),
        "normalize_advantage": st.booleans(),
        "ent_coef": st.floats(-0.1, 0.1),
        "vf_coef": st.floats(0, 2),
        "max_grad_norm": st.sampled_from([0.0, 0.01, 0.5, np.inf]),
        "target_kl": optional(st.sampled_from([1e-6, 1e-3, 0.1])),
        "updates": optional(SEPARATE),
    },
)
SINGLE_ROWS = st.fixed_dictionaries(
    {
        "n_steps": st.integers(1, 3),
        "batch_size": st.just(1),
        "n_epochs": st.integers(1, 2),
        "normalize_advantage": st.just(False),
    }
)
CLIP = st.fixed_dictionaries({}, optional={"clip_range": scheduled(1e-3, 1)})
KL = st.fixed_dictionaries({"kl_coef": st.floats(1e-3, 10)}, optional={"clip_range": optional(st.floats(1e-3, 1))})
OBJECTIVES: st.SearchStrategy[tuple[Any, dict[str, Any]]] = st.one_of(
    st.tuples(st.just(PPOClip), CLIP),
    st.tuples(st.just(PPOUnclipped), st.just({})),
    st.tuples(st.just(PPOFixedKL), KL),
    st.tuples(st.just(PPOAdaptiveKL), KL),
)


@st.composite
def made(draw: st.DrawFn, settings: st.SearchStrategy[Any] = SETTINGS | SINGLE_ROWS, most_envs: int = 3) -> Any:
    """Draw a random model of any kind."""
    cls, own = draw(OBJECTIVES)
    kind = draw(st.sampled_from([*KINDS.values()]))
    observation_space = draw(kind.observation_spaces)
    env = kind.make_envs(draw(kind.action_spaces), observation_space, draw(st.integers(1, most_envs)))
    arguments = draw(settings) | draw(kind.settings) | own | {"policy_kwargs": draw(kind.networks)}
    arguments["seed"] = draw(st.integers(0, 99))
    return cls(kind.policy_of(observation_space), env, fast=False, device="cpu", **arguments)


@st.composite
def collected(draw: st.DrawFn) -> Any:
    """Draw a random model with a full rollout buffer, whose policy has since changed."""
    model = draw(made())
    collect(model)
    moved = draw(st.sampled_from([0.0, 0.01, 0.3, 3.0]))
    for parameter in model.policy.parameters():
        parameter.data += moved * th.randn(parameter.shape)
    if model.use_sde:
        with th.no_grad():  # Exploration matrices that require gradients cannot be deep-copied.
            model.policy.reset_noise(model.n_envs)
    return model


PATHS = ("reference", "native")
"""Not every model supports the fast paths. Policies with LSTMs have a fast path of their own instead."""


@contextmanager
def along(path: str, model: Any) -> Iterator[None]:
    """Run the model on a path, or on the next slower one that supports it, while the context is active."""
    model.fast = path != "reference"
    yield


def in_double(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the model and the old policy compute in double precision."""
    old = model.rollout_buffer.old_parameters
    in_double_precision(monkeypatch, model)
    buffer = model.rollout_buffer
    if old is not None:
        has_probabilities = not isinstance(model.policy.action_dist, GAUSSIANS | BernoulliDistribution)
        # Rounded to single precision, log-probabilities no longer add up to 1, which counts in double precision.
        exact = (column.double().log_softmax(dim=1) if has_probabilities else column.double() for column in old)
        buffer.old_parameters = tuple(exact)
    for name in ("hidden_states_pi", "cell_states_pi", "hidden_states_vf", "cell_states_vf"):
        if hasattr(buffer, name):
            setattr(buffer, name, getattr(buffer, name).astype(np.float64))


def state_of(model: Any) -> State:
    """Return everything that an update changes."""
    optimizers = [model.policy.optimizer, *([model.value_optimizer] if hasattr(model, "value_optimizer") else [])]
    return {
        "policy": {name: tensor.clone() for name, tensor in model.policy.state_dict().items()},
        "optimizers": [deepcopy(optimizer.state_dict()) for optimizer in optimizers],
        "updates": model._n_updates,
        "kl_coef": getattr(model, "_adapted_kl_coef", None),
    }


def updated(model: Any, path: str) -> tuple[State, dict[str, Any] | str]:
    """Update a copy of the model, and return its state and its log, or its state and the error that it raised."""
    model = deepcopy(model)
    np.random.seed(3)
    outcome: dict[str, Any] | str
    try:
        with along(path, model):
            model.train()
        outcome = dict(model.logger.name_to_value)
    except NonFiniteError as error:
        outcome = f"not finite: {error.quantity}"
    return state_of(model), outcome
