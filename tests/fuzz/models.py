"""Random models and their states after an update."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch as th
from hypothesis import assume
from hypothesis import strategies as st
from kinds import KINDS
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    DiagGaussianDistribution,
    StateDependentNoiseDistribution,
)
from stable_baselines3.common.utils import LinearSchedule

from helpers import collect, in_double_precision
from sb3_ppo_variants import (
    ApproximateKL,
    Batch,
    ExactKL,
    KLAdaptive,
    NonFiniteError,
    Objective,
    PPOAdaptiveKL,
    PPOClip,
    PPOCustom,
    PPOFixedKL,
    PPOUnclipped,
    RatioDeviation,
    SeparateUpdates,
)
from sb3_ppo_variants.distributions import (
    BetaDistribution,
    SquashedStateGaussianDistribution,
    StateGaussianDistribution,
)
from sb3_ppo_variants.hybrid import HybridDistribution
from sb3_ppo_variants.losses import ClippedError, Huber, ValueLoss
from sb3_ppo_variants.objectives import EWMA, TRGPPO, ReverseKL, list_objectives, surrogates
from sb3_ppo_variants.rollout import OldPolicy

State = dict[str, Any]
WITHOUT_PROBABILITIES = (
    DiagGaussianDistribution
    | StateDependentNoiseDistribution
    | BernoulliDistribution
    | BetaDistribution
    | SquashedStateGaussianDistribution
    | StateGaussianDistribution
)


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


@dataclass(frozen=True)
class Quartic(ValueLoss):
    """A value loss as a user writes it."""

    def loss(self, values: th.Tensor, old_values: th.Tensor, returns: th.Tensor) -> th.Tensor:
        return ((values - returns) ** 4 + 0.1 * (values - old_values) ** 2).mean()


@dataclass(frozen=True)
class Everything(Objective):
    """Reads what an objective may know of most policies."""

    needs_kl = True

    def loss(self, batch: Batch) -> th.Tensor:
        penalty = batch.kl + 0.5 * batch.reverse_kl - 0.01 * batch.entropy
        return (penalty - batch.ratio * batch.advantages).mean()


SMALL = st.sampled_from([1e-6, 1e-3, 0.1])
STOPS = st.one_of(
    st.builds(ApproximateKL, SMALL), st.builds(ExactKL, SMALL), st.builds(RatioDeviation, st.sampled_from([1e-3, 0.3]))
)
VALUE_LOSSES = st.one_of(
    st.builds(Huber, st.floats(1e-2, 10)),
    st.builds(ClippedError, st.floats(1e-3, 1), st.booleans()),
    st.just(Quartic()),
)
# The step size can only fall: it may rise because of a KL that consists of rounding errors.
ADAPTIVE = st.builds(
    KLAdaptive,
    desired_kl=st.sampled_from([1e-4, 0.01]),
    every=st.sampled_from(["update", "minibatch"]),
    max_learning_rate=st.just(3e-4),
)
# If advantages are normalised, each minibatch needs at least two rows, except the last one.
SETTINGS = st.fixed_dictionaries(
    {"n_steps": st.integers(2, 9), "batch_size": st.integers(2, 20), "n_epochs": st.integers(1, 3)},
    optional={
        "learning_rate": STEP_SIZES | ADAPTIVE,
        "gamma": st.floats(0, 1),
        "gae_lambda": st.floats(0, 1),
        "clip_range_vf": optional(scheduled(1e-3, 1)),
        "normalize_advantage": st.sampled_from([False, True, "rollout"]),
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
OTHERS = [name for name, found in list_objectives().items() if found.__module__ != surrogates.__name__]
CUSTOM = st.sampled_from(
    [
        *(found() for found in list_objectives().values() if found.__module__ != surrogates.__name__),
        EWMA(ReverseKL()),
        Everything(),
    ]
)
OBJECTIVES: st.SearchStrategy[tuple[Any, dict[str, Any]]] = st.one_of(
    st.tuples(st.just(PPOClip), CLIP),
    st.tuples(st.just(PPOUnclipped), st.just({})),
    st.tuples(st.just(PPOFixedKL), KL),
    st.tuples(st.just(PPOAdaptiveKL), KL),
    st.tuples(st.just(PPOCustom), st.builds(lambda objective: {"objective": objective}, CUSTOM)),
)
# Of each pair, one excludes the other.
ONE_OF_TWO = {"value_loss": ("clip_range_vf", VALUE_LOSSES), "stop": ("target_kl", STOPS)}


@st.composite
def made(draw: st.DrawFn, settings: st.SearchStrategy[Any] = SETTINGS | SINGLE_ROWS, most_envs: int = 3) -> Any:
    """Draw a random model of any kind."""
    cls, own = draw(OBJECTIVES)
    name = draw(st.sampled_from([*KINDS]))
    # It does not know the distributions of actions that are squashed, bounded or of several kinds.
    assume(not (isinstance(own.get("objective"), TRGPPO) and ("gSDE" in name or name in ("bounded", "hybrid"))))
    kind = KINDS[name]
    observation_space = draw(kind.observation_spaces)
    env = kind.make_envs(draw(kind.action_spaces), observation_space, draw(st.integers(1, most_envs)))
    arguments = draw(settings) | draw(kind.settings) | own | {"policy_kwargs": draw(kind.networks)}
    for name, (excluded, values) in ONE_OF_TWO.items():
        if excluded not in arguments:
            arguments[name] = draw(optional(values))
    arguments["seed"] = draw(st.integers(0, 99))
    return cls(kind.policy_of(observation_space), env, fast=False, device="cpu", **arguments)


@st.composite
def collected(draw: st.DrawFn) -> Any:
    """Draw a random model with a full rollout buffer, whose policy has since changed."""
    model = draw(made())
    collect(model)
    # Large weights would make standard deviations that are outputs of the network too large or too small for floats.
    moved = draw(st.sampled_from([0.0, 0.01, 0.3, *([] if "std" in model.policy_kwargs else [3.0])]))
    for parameter in model.policy.parameters():
        parameter.data += moved * th.randn(parameter.shape)
    if model.use_sde:
        with th.no_grad():  # Exploration matrices that require gradients cannot be deep-copied.
            model.policy.reset_noise(model.n_envs)
    return model


PATHS = ("reference", "native")
"""Policies with LSTMs have a fast path of their own instead."""


@contextmanager
def along(path: str, model: Any) -> Iterator[None]:
    """Run the model on a path while the context is active. With some settings, an EWMA has no fast one."""
    fast = "auto" if isinstance(getattr(model, "objective", None), EWMA) else True
    model.fast = path != "reference" and fast
    yield


def in_double(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the model and the old policy compute in double precision."""
    old = None if model.old_policy is None else model.old_policy.of(model.rollout_buffer)
    in_double_precision(monkeypatch, model)
    buffer = model.rollout_buffer
    if old is not None:
        model.old_policy = OldPolicy(tuple(exact(model.policy.action_dist, list(old))), buffer.rewards)
    for name in ("hidden_states_pi", "cell_states_pi", "hidden_states_vf", "cell_states_vf"):
        if hasattr(buffer, name):
            setattr(buffer, name, getattr(buffer, name).astype(np.float64))


def exact(distribution: Any, columns: list[th.Tensor]) -> Iterator[th.Tensor]:
    """Yield parameters that were rounded to single precision as valid parameters in double precision."""
    if isinstance(distribution, HybridDistribution):
        for part in distribution.parts:
            yield from exact(part, columns)
    elif isinstance(distribution, WITHOUT_PROBABILITIES):
        yield from [columns.pop(0).double() for _ in range(1 if isinstance(distribution, BernoulliDistribution) else 2)]
    else:
        for _ in range(len(getattr(distribution, "action_dims", [0]))):
            # Rounded, log-probabilities no longer add up to 1, which counts in double precision.
            yield columns.pop(0).double().log_softmax(dim=1)


def state_of(model: Any) -> State:
    """Return everything that an update changes."""
    optimizers = [model.policy.optimizer, *([model.value_optimizer] if hasattr(model, "value_optimizer") else [])]
    proximal = model.proximal_policy
    return {
        "policy": {name: tensor.clone() for name, tensor in model.policy.state_dict().items()},
        "optimizers": [deepcopy(optimizer.state_dict()) for optimizer in optimizers],
        "updates": model._n_updates,
        "kl_coef": model.kl_coef if isinstance(getattr(model, "kl_coef", None), float) else None,
        "objective": getattr(getattr(model, "objective", None), "kl_coef", None),
        "step size": getattr(model.learning_rate, "learning_rate", None),
        # A new one is made anew, with the weights of the moment.
        "proximal": None if proximal is None or float(proximal.total_weight) == 1 else deepcopy(proximal.state_dict()),
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
