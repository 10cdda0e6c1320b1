"""The KL of discrete actions with probabilities that round to 0 or 1, against 60-digit arithmetic, on both paths."""

from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    Distribution,
    MultiCategoricalDistribution,
)

from helpers import collect, noise_envs
from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.engines.native.update import NativeUpdate
from sb3_ppo_variants.kl import divergences_of
from sb3_ppo_variants.rollout import OldPolicy

mpmath.mp.dps = 60
Logits = Sequence[float]

# Logits (old, new). The last pair of each list is that of a policy that hardly changes.
COINS: list[tuple[Logits, Logits]] = [
    ([50.0], [-50.0]),
    ([-50.0], [50.0]),
    ([0.0], [17.0]),
    ([0.0], [-200.0]),
    ([50.0], [49.0]),
    ([-17.0], [-16.0]),
    ([1.0, 50.0, -50.0], [-1.0, 17.0, 50.0]),
    ([40.0], [40.001]),
    ([0.3], [0.3001]),
]
CATEGORIES: list[tuple[Logits, Logits]] = [
    ([50.0, -50.0, 0.0], [-50.0, 50.0, 0.0]),
    ([0.0, -60.0, -80.0], [0.0, -104.0, -80.0]),
    ([0.0, 0.0, 0.0], [0.0, -120.0, -800.0]),
    ([0.0, -120.0, -800.0], [0.0, 0.0, 0.0]),
    ([0.0, -200.0, 1.0], [0.0, -110.0, 1.0]),
    ([50.0, 49.0, -50.0], [50.0, 48.999, -50.0]),
    ([0.3, 0.1, -0.2], [0.3001, 0.1, -0.2]),
]


def _divergence(old: list[Any], new: list[Any]) -> Any:
    """Compute the sum of p log(p / q) in high precision, from the logits of p and q."""
    p, q = ([mpmath.exp(x) for x in logits] for logits in (old, new))
    p, q = ([x / mpmath.fsum(weights) for x in weights] for weights in (p, q))
    return mpmath.fsum(x * (mpmath.log(x) - mpmath.log(y)) for x, y in zip(p, q, strict=True))


def of_categories(old: Logits, new: Logits) -> float:
    return float(_divergence([*map(mpmath.mpf, old)], [*map(mpmath.mpf, new)]))


def of_coins(old: Logits, new: Logits) -> float:
    zero = mpmath.mpf(0)
    return sum(float(_divergence([zero, mpmath.mpf(x)], [zero, mpmath.mpf(y)])) for x, y in zip(old, new, strict=True))


def of_two_parts(old: Logits, new: Logits) -> float:
    return of_categories(old, new) + of_categories(new, old)


CASES: list[tuple[str, Callable[[Logits, Logits], float], Logits, Logits]] = [
    *(("Bernoulli", of_coins, *pair) for pair in COINS),
    *(("Categorical", of_categories, *pair) for pair in CATEGORIES),
    *(("MultiCategorical", of_two_parts, *pair) for pair in CATEGORIES),
]


def sb3s(name: str, n: int) -> Distribution:
    if name == "MultiCategorical":
        return MultiCategoricalDistribution([n, n])
    return BernoulliDistribution(n) if name == "Bernoulli" else CategoricalDistribution(n)


def on_reference_path(name: str, old: Logits, new: Logits, dtype: th.dtype) -> float:
    distribution: Any = sb3s(name, len(old))
    divergences = divergences_of(distribution)
    many = name == "MultiCategorical"  # The second part has old and new exchanged.
    outputs = [[*old, *new], [*new, *old]] if many else [old, new]
    was, now = (
        divergences.parameters(distribution.proba_distribution(th.tensor([logits], dtype=dtype))) for logits in outputs
    )
    return divergences.kl(was, now).item()


def on_native_path(name: str, old: Logits, new: Logits, dtype: th.dtype) -> float:
    """Compute the KL of a policy whose outputs are its biases."""
    n = len(old)
    spaces_of = {"Bernoulli": spaces.MultiBinary(n), "Categorical": spaces.Discrete(n)}
    space = spaces_of.get(name, spaces.MultiDiscrete([n, n]))
    many = name == "MultiCategorical"
    was, now = (th.tensor(logits, dtype=dtype) for logits in (([*old, *new], [*new, *old]) if many else (old, new)))
    model = collect(PPOClip("MlpPolicy", noise_envs(space, n_envs=1), n_steps=2, batch_size=2, device="cpu"))
    model.policy.to(dtype)
    distribution: Any = sb3s(name, n)
    known = divergences_of(distribution).parameters(distribution.proba_distribution(was[None]))
    model.old_policy = OldPolicy(tuple(each.repeat(2, 1) for each in known), model.rollout_buffer.rewards)
    with th.no_grad():
        model.policy.action_net.weight.zero_()
        model.policy.action_net.bias[:] = now
    return NativeUpdate(model._plan()).kl()


@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize(("name", "exactly", "old", "new"), CASES)
def test_in_double_precision(name: str, exactly: Callable[[Logits, Logits], float], old: Logits, new: Logits) -> None:
    expected = pytest.approx(exactly(old, new), rel=1e-9, abs=1e-13)
    assert on_reference_path(name, old, new, th.float64) == expected
    assert on_native_path(name, old, new, th.float64) == expected


@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize(("name", "exactly", "old", "new"), CASES)
def test_in_single_precision(name: str, exactly: Callable[[Logits, Logits], float], old: Logits, new: Logits) -> None:
    old, new = (np.array(logits, np.float32).tolist() for logits in (old, new))
    expected = pytest.approx(exactly(old, new), rel=1e-5, abs=2e-7)
    assert on_reference_path(name, old, new, th.float32) == expected
    assert on_native_path(name, old, new, th.float32) == expected


@pytest.mark.parametrize(("name", "exactly", "old", "new"), CASES)
def test_gradient(name: str, exactly: Callable[[Logits, Logits], float], old: Logits, new: Logits) -> None:
    """d KL / d logits is the new probability minus the old one, finite and the same on both paths."""
    if name == "MultiCategorical":
        return  # The other cases test its parts.
    distribution: Any = sb3s(name, len(old))
    divergences = divergences_of(distribution)
    logits = th.tensor([new], dtype=th.float64, requires_grad=True)
    was = divergences.parameters(distribution.proba_distribution(th.tensor([old], dtype=th.float64)))
    divergences.kl(was, divergences.parameters(distribution.proba_distribution(logits))).sum().backward()
    squash = th.sigmoid if name == "Bernoulli" else lambda values: values.softmax(dim=1)
    expected = squash(th.tensor([new], dtype=th.float64)) - squash(th.tensor([old], dtype=th.float64))
    assert logits.grad is not None
    th.testing.assert_close(logits.grad, expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_the_kl_of_an_update_that_changes_nothing_is_not_negative(seed: int) -> None:
    """Its estimate from single-precision numbers is about -1e-9."""
    model = PPOClip("MlpPolicy", "CartPole-v1", n_steps=64, learning_rate=1e-9, seed=seed, fast=False, device="cpu")
    assert 0 <= model.learn(64).logger.name_to_value["train/kl"] < 1e-8
