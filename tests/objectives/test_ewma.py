"""PPO-EWMA: the decoupled objective with a moving average of the weights, against a plain loop."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch as th
from engine_models import OWN, assert_same_update
from masked_envs import MULTI, masked_envs
from torch.distributions import Categorical, kl_divergence
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from helpers import ACTION_SPACES, BOX, VECTOR, LogRecorder, collect, flat_weights, noise_envs, save, small, update
from sb3_ppo_variants import ArgumentError, ExactKL, NonFiniteError, PPOClip, PPOCustom, RatioDeviation, SeparateUpdates
from sb3_ppo_variants.engines.choice import choose
from sb3_ppo_variants.losses import SquaredError
from sb3_ppo_variants.objectives import (
    CISPO,
    DPO,
    EWMA,
    SPO,
    TRGPPO,
    AdaptiveKL,
    ClipHigher,
    Clipped,
    DualClip,
    KLPenalized,
    Rollback,
)

DECAY = 0.6


def make(objective: Any, space: Any = BOX, **arguments: Any) -> Any:
    return small(PPOCustom, noise_envs(space), objective=objective, learning_rate=0.01, **arguments)


def by_a_plain_loop(model: Any, kl_coef: float) -> th.Tensor:
    """Return the weights after an update with the decoupled objective, E[r A] clipped at 0.2 or with a penalty."""
    policy, buffer = deepcopy(model.policy), deepcopy(model.rollout_buffer)
    proximal, weights = deepcopy(policy), [parameters_to_vector(policy.parameters()).detach()]
    np.random.seed(3)
    for _ in range(model.n_epochs):
        for batch in buffer.get(model.batch_size):
            decayed = [DECAY**age for age in range(len(weights))][::-1]
            average = th.stack([w * v for w, v in zip(decayed, weights, strict=True)]).sum(dim=0) / sum(decayed)
            vector_to_parameters(average, proximal.parameters())
            actions = batch.actions.long().flatten()
            with th.no_grad():
                near = proximal.evaluate_actions(batch.observations, actions)[1]
            values, log_prob, _ = policy.evaluate_actions(batch.observations, actions)
            advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
            surrogate = th.exp(log_prob - batch.old_log_prob) * advantages
            if kl_coef == 0:
                clipped = th.exp(near - batch.old_log_prob) * th.exp(log_prob - near).clamp(0.8, 1.2) * advantages
                surrogate = th.minimum(surrogate, clipped)
            else:
                logits = [each.get_distribution(batch.observations).distribution.logits for each in (proximal, policy)]
                p, q = (Categorical(logits=each) for each in logits)
                surrogate = surrogate - kl_coef * kl_divergence(p, q)
            loss = -surrogate.mean() + 0.5 * ((values.flatten() - batch.returns) ** 2).mean()
            policy.optimizer.zero_grad()
            loss.backward()
            th.nn.utils.clip_grad_norm_(policy.parameters(), model.max_grad_norm)
            policy.optimizer.step()
            weights.append(parameters_to_vector(policy.parameters()).detach())
    return weights[-1]


@pytest.mark.parametrize("kl_coef", [0.0, 3.0])
def test_an_update_is_that_of_a_plain_loop(kl_coef: float) -> None:
    within = Clipped(0.2) if kl_coef == 0 else KLPenalized(kl_coef=kl_coef)
    model = collect(make(EWMA(within, DECAY), ACTION_SPACES["Discrete"], n_epochs=6))
    updated = update(model, fast=False)
    th.testing.assert_close(flat_weights(updated), by_a_plain_loop(model, kl_coef), rtol=2e-4, atol=1e-6)
    plain = collect(make(within, ACTION_SPACES["Discrete"], n_epochs=6))
    assert not th.allclose(flat_weights(updated), flat_weights(update(plain, fast=False)), rtol=1e-3)


def test_the_average_goes_on_over_updates() -> None:
    model = make(EWMA(Clipped(0.2), DECAY))
    first = flat_weights(model)
    model.learn(model.n_steps * model.n_envs * 3)
    assert float(model.proximal_policy.total_weight) == pytest.approx((1 - DECAY**13) / (1 - DECAY))  # 12 steps.
    average = model.proximal_policy.average
    assert 0 < th.dist(average, flat_weights(model)) < th.dist(first, flat_weights(model))


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(
    ("n", "arguments"),
    [
        (20, dict(n_steps=16, batch_size=10, n_epochs=5)),  # 32 rows, so the last of four minibatches has two.
        (8, dict(n_steps=16, batch_size=8, updates=SeparateUpdates(policy_epochs=2, value_epochs=3))),
        (3, dict(n_steps=4, batch_size=64, n_epochs=3)),
    ],
)
def test_the_default_decay_follows_the_minibatches_of_an_update(n: int, arguments: dict[str, Any], fast: bool) -> None:
    """8 / 9, the paper's value, belongs to 8 minibatches."""
    for objective, decay in ((EWMA(Clipped(10.0)), n / (n + 1)), (EWMA(Clipped(10.0), 0.889), 0.889)):
        model, log = make(objective, fast=fast, **arguments), LogRecorder()
        model.learn(2 * model.n_steps * model.n_envs, callback=log)
        assert [logged["train/proximal_decay"] for logged in log.updates] == [decay] * 2
        total = sum(decay**age for age in range(2 * n + 1))
        assert float(model.proximal_policy.total_weight) == pytest.approx(total)
        assert model.objective == objective


@pytest.mark.parametrize("within", [Clipped(0.2), AdaptiveKL(kl_coef=1.0, desired_kl=0.01)])
def test_saved_and_resumed(within: Any) -> None:
    n = 32
    whole = make(EWMA(within, DECAY)).learn(4 * n)
    half = make(EWMA(within, DECAY)).learn(2 * n)
    loaded: Any = PPOCustom.load(save(half), env=noise_envs(BOX))
    for name in ("average", "total_weight"):
        assert th.equal(getattr(loaded.proximal_policy, name), getattr(half.proximal_policy, name))
    assert not th.equal(whole.proximal_policy.average, half.proximal_policy.average)
    assert loaded.objective == half.objective


def test_a_failed_update_leaves_the_average_alone() -> None:
    model = collect(make(EWMA(Clipped(0.2), DECAY)))
    before = model.proximal_policy.average.clone()
    weights = flat_weights(model)
    model.rollout_buffer.returns[0] = 3e38  # The squared error overflows.
    with pytest.raises(NonFiniteError):
        model.train()
    assert th.equal(model.proximal_policy.average, before) and float(model.proximal_policy.total_weight) == 0
    assert th.equal(flat_weights(model), weights)


def average_in_training(model: Any) -> th.Tensor:
    """Return the average with which the first update of a model begins."""
    average: th.Tensor = collect(model).proximal_policy.average
    return average


def test_an_average_begins_with_the_loaded_weights_if_the_file_has_none() -> None:
    clipped, other = make(Clipped(0.2)).learn(64), make(EWMA(Clipped(0.2)), seed=7)
    loaded = PPOCustom.load(save(clipped), env=noise_envs(BOX), objective=EWMA(Clipped(0.2)))
    assert th.equal(average_in_training(loaded), flat_weights(clipped))
    converted = PPOCustom.from_ppo(small(PPOClip).learn(32), objective=EWMA(Clipped(0.2)))
    assert th.equal(average_in_training(converted), flat_weights(converted))
    other.set_parameters(clipped.get_parameters())
    assert th.equal(average_in_training(other), flat_weights(clipped))


class OwnError(SquaredError):
    """A value loss that Python computes."""


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize(
    ("within", "arguments"),
    [
        *((objective, {}) for objective in (SPO(0.2), DPO(), CISPO(), ClipHigher(), DualClip(), Rollback())),
        (Clipped(0.2), {"updates": SeparateUpdates(policy_epochs=3, value_epochs=2)}),
        (Clipped(0.2), {"target_kl": 0.001, "n_epochs": 8}),
        (Clipped(0.2), {"stop": RatioDeviation(0.03), "n_epochs": 8}),
        (Clipped(0.1), {"batch_size": 150, "n_steps": 75, "normalize_advantage": "rollout"}),
        (Clipped(0.1), {"value_loss": OwnError()}),
    ],
    ids=str,
)
def test_the_native_library_does_the_same(within: Any, arguments: dict[str, Any], double_precision: Any) -> None:
    model = collect(make(EWMA(within, DECAY), fast=False, **{"n_epochs": 6, **arguments}))
    double_precision(model)
    model.proximal_policy.double()
    assert_same_update(model)
    assert update(model, True).proximal_policy.total_weight > 1


KL = "an EWMA is combined with a KL of each minibatch"


@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize(
    ("within", "arguments", "why"),
    [
        (KLPenalized(kl_coef=3.0), {}, KL),
        (Clipped(0.2), {"stop": ExactKL(0.1)}, KL),
        (TRGPPO(), {}, "an EWMA is around TRGPPO"),
        (OWN["of states"], {}, "an EWMA is around OfStates"),
    ],
    ids=str,
)
def test_what_pytorch_computes(within: Any, arguments: dict[str, Any], why: str) -> None:
    model = small(PPOCustom, noise_envs(BOX, VECTOR), objective=EWMA(within), **arguments)
    assert choose(model._plan(), "auto").why == why


@pytest.mark.parametrize(
    "arguments",
    [
        {"use_sde": True},
        {"updates": SeparateUpdates(policy_epochs=3, value_epochs=2)},
        {"stop": RatioDeviation(0.03)},
        {"policy": "MaskableMlpPolicy"},
        {"policy_kwargs": {"distribution": "beta"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("within", [Clipped(1e-6), KLPenalized(kl_coef=3.0, clip_range=1e-6)])
def test_with_other_settings(within: Any, arguments: dict[str, Any]) -> None:
    """With a decay of 0, the average is the policy itself, and r is 1."""
    env = masked_envs(MULTI, n_envs=2) if "policy" in arguments else noise_envs(BOX)
    model = small(PPOCustom, env, objective=EWMA(within, 0.0), **arguments)
    first = flat_weights(model)
    model.learn(64)
    assert not th.equal(flat_weights(model), first)
    assert model.logger.name_to_value["train/clip_fraction"] == 0


@pytest.mark.parametrize(
    ("within", "decay", "name"),
    [(None, 0.5, "objective"), (Clipped(0.2), 1.5, "decay"), (EWMA(SPO(0.2)), 0.5, "objective")],
)
def test_refused(within: Any, decay: float, name: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{name}="):
        EWMA(within, decay)
