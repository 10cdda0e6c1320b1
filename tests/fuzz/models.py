"""Random models, and what an update makes of them."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch as th
from fuzzing import ACTION_SPACES, OBSERVATION_SPACES, policy_of
from hypothesis import strategies as st
from stable_baselines3.common.utils import LinearSchedule

from helpers import in_double_precision, noise_envs
from sb3_ppo_variants import NonFiniteError, PPOAdaptiveKL, PPOClip, PPOFixedKL, PPOUnclipped, SeparateUpdates

State = dict[str, Any]


def scheduled(low: float, high: float) -> st.SearchStrategy[Any]:
    """A number or a schedule that begins with it."""
    numbers = st.floats(low, high)
    return numbers | st.builds(lambda start: LinearSchedule(start, low, 1.0), numbers)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


LAYERS = st.lists(st.integers(1, 8), max_size=2)
NETWORKS = st.fixed_dictionaries(
    {},
    optional={
        "net_arch": LAYERS | st.fixed_dictionaries({"pi": LAYERS, "vf": LAYERS}),
        "activation_fn": st.sampled_from([th.nn.Tanh, th.nn.ReLU]),
        "ortho_init": st.booleans(),
        "share_features_extractor": st.booleans(),
        "log_std_init": st.floats(-3, 1),
        # Adam with a smaller beta2 or eps makes steps of gradients that are nothing but rounding.
        "optimizer_kwargs": st.fixed_dictionaries(
            {"betas": st.tuples(st.floats(0, 0.99), st.floats(0.9, 0.999)), "eps": st.sampled_from([1e-5, 1e-2])}
        ),
    },
)
SEPARATE = st.builds(
    SeparateUpdates,
    policy_epochs=optional(st.integers(1, 3)),
    value_epochs=optional(st.integers(1, 3)),
    value_learning_rate=scheduled(0, 1e-2),
    value_max_grad_norm=optional(st.floats(0, 1)),
)
# At least two rows in a minibatch are needed where advantages are normalised, unless the last one has fewer.
SETTINGS = st.fixed_dictionaries(
    {"n_steps": st.integers(2, 9), "batch_size": st.integers(2, 20), "n_epochs": st.integers(1, 3)},
    optional={
        "learning_rate": scheduled(0, 1e-2),
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
def collected(draw: st.DrawFn) -> Any:
    """A random model with a full rollout buffer, that the policy has moved away from."""
    cls, own = draw(OBJECTIVES)
    observation_space = draw(OBSERVATION_SPACES)
    env = noise_envs(draw(ACTION_SPACES), observation_space, draw(st.integers(1, 3)))
    arguments = draw(SETTINGS | SINGLE_ROWS) | own | {"policy_kwargs": draw(NETWORKS), "seed": draw(st.integers(0, 99))}
    model = cls(policy_of(observation_space), env, fast=False, device="cpu", **arguments)
    _, callback = model._setup_learn(100)
    model.collect_rollouts(env, callback, model.rollout_buffer, model.n_steps)
    moved = draw(st.sampled_from([0.0, 0.01, 0.3, 3.0]))
    for parameter in model.policy.parameters():
        parameter.data += moved * th.randn(parameter.shape)
    return model


def in_double(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model and the old policy compute in double precision."""
    old = model.rollout_buffer.old_parameters
    in_double_precision(monkeypatch, model)
    model.rollout_buffer.old_parameters = None if old is None else tuple(column.double() for column in old)


def state_of(model: Any) -> State:
    """All that an update changes."""
    optimizers = [model.policy.optimizer, *([model.value_optimizer] if hasattr(model, "value_optimizer") else [])]
    return {
        "policy": {name: tensor.clone() for name, tensor in model.policy.state_dict().items()},
        "optimizers": [deepcopy(optimizer.state_dict()) for optimizer in optimizers],
        "updates": model._n_updates,
        "kl_coef": getattr(model, "_adapted_kl_coef", None),
    }


def updated(model: Any, fast: bool) -> tuple[State, dict[str, Any] | str]:
    """What an update makes of a copy: its state, and its log or the error that it ended in."""
    model = deepcopy(model)
    model.fast = fast
    np.random.seed(3)
    outcome: dict[str, Any] | str
    try:
        model.train()
        outcome = dict(model.logger.name_to_value)
    except NonFiniteError as error:
        outcome = f"not finite: {error.quantity}"
    return state_of(model), outcome
