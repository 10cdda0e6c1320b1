"""Step sizes that follow the KL: the rule, plain loops of it, both paths, and the state that it is."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th
from engine_models import collected

from helpers import BOX, LogRecorder, noise_envs, small, update
from sb3_ppo_variants import ArgumentError, ExactKL, KLAdaptive, MissingKLError, PPOAdaptiveKL, PPOClip, PPOCustom
from sb3_ppo_variants.objectives import Clipped

Double = Callable[[Any], None]
IN_MINIBATCHES = KLAdaptive(desired_kl=3e-3, learning_rate=1e-3, every="minibatch")

STOPS = [None, ExactKL(0.01, ends="epoch")]


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (0.0201, 2e-4),  # Above twice the target: divided by 1.5.
        (0.02, 3e-4),
        (0.01, 3e-4),
        (0.005, 3e-4),
        (0.0049, 4.5e-4),  # Below half of it: multiplied by 1.5.
        (0.0, 3e-4),
        (float("nan"), 3e-4),
    ],
)
@pytest.mark.parametrize("every", ["update", "minibatch"])
def test_the_rule(every: Any, kl: float, expected: float) -> None:
    rule = KLAdaptive(desired_kl=0.01, learning_rate=3e-4, every=every)
    assert rule.adapted(3e-4, kl) == pytest.approx(expected)
    after = rule.after_update(3e-4, kl)
    assert after.learning_rate == pytest.approx(expected if every == "update" else 3e-4)
    assert (after.desired_kl, after.every) == (0.01, every)


def test_the_bounds() -> None:
    rule = KLAdaptive(desired_kl=0.01)
    assert rule.adapted(1.2e-5, 1.0) == 1e-5 and rule.adapted(9e-3, 1e-5) == 1e-2
    rule = KLAdaptive(factor=2.0, tolerance=1.1, min_learning_rate=2e-4, max_learning_rate=4e-4)
    assert rule.adapted(3e-4, 0.0111) == 2e-4 and rule.adapted(3e-4, 0.009) == 4e-4


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("cls", [PPOClip, PPOAdaptiveKL, PPOCustom])
def test_every_update_follows_the_logged_kl(cls: Any, fast: bool) -> None:
    log = LogRecorder()
    more = {"objective": Clipped(0.2)} if cls is PPOCustom else {}
    adaptive = KLAdaptive(desired_kl=2e-3, learning_rate=1e-2)
    model = cls("MlpPolicy", noise_envs(BOX), adaptive, n_steps=32, n_epochs=2, seed=1, fast=fast, **more)
    model.learn(64 * 12, callback=log)
    rate, rates = 1e-2, []
    for logged in log.updates:
        assert logged["train/learning_rate"] == rate
        if logged["train/kl"] > 2 * 2e-3:
            rate = max(rate / 1.5, 1e-5)
        elif logged["train/kl"] < 2e-3 / 2:
            rate = min(rate * 1.5, 1e-2)
        rates.append(rate)
    assert len(set(rates)) > 2
    assert model.learning_rate == KLAdaptive(desired_kl=2e-3, learning_rate=rate)


def plain_loop(model: Any, rate: float) -> list[float]:
    """Update a model whose policy is Gaussian with PPO-Clip, and return the step size of each step."""
    policy, buffer, rates = model.policy, model.rollout_buffer, list[float]()
    next(buffer.get())  # Flattens the columns into rows.
    np.random.seed(3)
    observations, actions = th.as_tensor(buffer.observations), th.as_tensor(buffer.actions)
    old_log_probs, advantages, returns = (
        th.as_tensor(array).flatten() for array in (buffer.log_probs, buffer.advantages, buffer.returns)
    )
    with th.no_grad():
        old = policy.get_distribution(observations).distribution
        old_mean, old_std = old.mean.clone(), old.stddev.clone()
    for _ in range(model.n_epochs):
        order = np.random.permutation(len(observations))
        for start in range(0, len(order), model.batch_size):
            rows = order[start : start + model.batch_size]
            values, log_prob, _ = policy.evaluate_actions(observations[rows], actions[rows])
            new = policy.get_distribution(observations[rows]).distribution
            with th.no_grad():
                spread = old_std[rows] ** 2 + (old_mean[rows] - new.mean) ** 2
                kl = (new.stddev / old_std[rows]).log() + spread / (2 * new.stddev**2) - 0.5
                mean = kl.sum(dim=1).mean().item()
            if mean > 2 * 3e-3:
                rate = max(1e-5, rate / 1.5)
            elif rates and 0 < mean < 3e-3 / 2:  # At the first step, the KL is 0 but for rounding.
                rate = min(1e-2, rate * 1.5)
            rates.append(rate)
            policy.optimizer.param_groups[0]["lr"] = rate
            chosen = advantages[rows]
            chosen = (chosen - chosen.mean()) / (chosen.std() + 1e-8)
            ratio = (log_prob - old_log_probs[rows]).exp()
            surrogate = th.min(ratio * chosen, ratio.clamp(0.8, 1.2) * chosen).mean()
            loss = -surrogate + model.vf_coef * ((values.flatten() - returns[rows]) ** 2).mean()
            policy.optimizer.zero_grad()
            loss.backward()
            th.nn.utils.clip_grad_norm_(policy.parameters(), model.max_grad_norm)
            policy.optimizer.step()
    return rates


@pytest.mark.parametrize("fast", [False, True])
def test_an_update_is_rsl_rls(fast: bool, double_precision: Double) -> None:
    model = collected(PPOClip, BOX, learning_rate=IN_MINIBATCHES)
    double_precision(model)
    ours = update(model, fast)
    rates = plain_loop(model, 1e-3)
    assert max(rates) > 1e-3 and len(set(rates)) > 4 and any(np.diff(rates) < 0)
    th.testing.assert_close(ours.policy.state_dict(), model.policy.state_dict(), rtol=1e-5, atol=1e-9)
    assert ours.learning_rate.learning_rate == ours.logger.name_to_value["train/learning_rate"] == rates[-1]
    assert ours.policy.optimizer.param_groups[0]["lr"] == rates[-1]


@pytest.mark.parametrize("every", ["update", "minibatch"])
def test_without_a_known_kl_it_is_refused_at_construction(every: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sb3_ppo_variants.kl._REGISTRY", {})
    with pytest.raises(MissingKLError):
        small(learning_rate=KLAdaptive(every=every))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("desired_kl", value) for value in (0, -1.0, "1", float("inf"))),
        *(("learning_rate", value) for value in (0, 1e-6, 0.1, "1e-3", lambda progress: 1e-3)),
        *(("every", value) for value in ("epoch", None, 1)),
        *((name, value) for name in ("factor", "tolerance") for value in (1.0, 0.5, float("inf"), None)),
        ("min_learning_rate", 0.0),
        ("max_learning_rate", float("inf")),
    ],
)
def test_its_arguments_are_checked(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        KLAdaptive(**{name: value})
    assert str(caught.value).startswith(f"{name}={value!r} is not allowed; allowed: ")
