"""Hybrid actions: their layout in rows, and the product distribution with its divergences."""

from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import make_masked_proba_distribution
from torch.distributions import Bernoulli, Categorical, Normal, kl_divergence

from helpers import FORCE, KICK, NESTED
from sb3_ppo_variants import ArgumentError
from sb3_ppo_variants.hybrid import HybridDistribution
from sb3_ppo_variants.kl import divergences_of
from sb3_ppo_variants.layout import HybridLayout, parts_of
from sb3_ppo_variants.policies.masked import MaskableHybridDistribution


def same(first: Any, second: Any) -> bool:
    """Return whether two actions have the same structure, types and numbers."""
    if isinstance(first, dict):
        return [*first] == [*second] and all(same(first[key], second[key]) for key in first)
    if isinstance(first, tuple):
        return isinstance(second, tuple) and len(first) == len(second) and all(map(same, first, second))
    arrays = np.asarray(first), np.asarray(second)
    return type(first) is type(second) and arrays[0].dtype == arrays[1].dtype and np.array_equal(*arrays)


@pytest.mark.parametrize("space", [KICK, NESTED], ids=["Dict", "Tuple"])
def test_rows_become_elements_of_the_space(space: Any) -> None:
    layout = HybridLayout(space)
    space.seed(0)
    actions = [space.sample() for _ in range(50)]
    each = [
        [np.ravel(reduce(getitem, path, action) - getattr(part, "start", 0)) for path, part in parts_of(space)]
        for action in actions
    ]
    back = layout.for_envs(np.stack(list(map(np.concatenate, each))).astype(np.float32))
    assert all(map(space.contains, back))
    for action, again in zip(actions, back, strict=True):
        if space is NESTED:  # Rows are in single precision.
            np.testing.assert_allclose(again[1]["exact"], action[1]["exact"], rtol=1e-6)
            again[1]["exact"] = action[1]["exact"]
        assert same(action, again), (action, again)


def test_continuous_parts_are_clipped_to_their_own_bounds() -> None:
    (action,) = HybridLayout(KICK).for_envs(np.array([[2, -0.5, 9]], np.float32))
    assert same(action, {"choice": np.int64(2), "force": np.array([0, 3], np.float32)})
    row = np.zeros((2, 20), np.float32)
    row[:, 4], row[:, 5], row[:, 9:11] = 0.8, -0.1, [[-3.5, 260], [17.4, 17.6]]
    first, second = HybridLayout(NESTED).for_envs(row)
    # Both bounds are further out in single precision.
    assert first[1]["exact"][0].tolist() == [0.8, -0.1] and NESTED.contains(first)
    assert (first[3].tolist(), second[3].tolist()) == ([0, 255], [17, 18])


PARTS = spaces.Tuple(
    [spaces.Discrete(3), FORCE, spaces.MultiDiscrete([2, 4]), spaces.MultiBinary(2), spaces.Box(-1, 1, (1,))]
)
N_OUTPUTS = 3 + 2 + 6 + 2 + 1


def by_hand(outputs: th.Tensor, log_std: th.Tensor) -> list[th.distributions.Distribution]:
    """Return PyTorch's distributions of each column of an action in ``PARTS``."""
    std = log_std.exp()
    return [
        Categorical(logits=outputs[:, :3]),
        *(Normal(outputs[:, 3 + i], std[i]) for i in range(2)),
        Categorical(logits=outputs[:, 5:7]),
        Categorical(logits=outputs[:, 7:11]),
        *(Bernoulli(logits=outputs[:, 11 + i]) for i in range(2)),
        Normal(outputs[:, 13], std[2]),
    ]


def made(seed: int, **options: Any) -> tuple[HybridDistribution, list[th.distributions.Distribution]]:
    generator = th.Generator().manual_seed(seed)
    outputs, log_std = th.randn(5, N_OUTPUTS, generator=generator), th.randn(3, generator=generator) / 2
    distribution = HybridDistribution(HybridLayout(PARTS), **options)
    return distribution.proba_distribution(outputs, log_std), by_hand(outputs, log_std)


def test_log_probabilities_and_entropies_add() -> None:
    distribution, columns = made(0)
    th.manual_seed(0)
    actions = distribution.sample()
    assert actions.shape == (5, 8) and actions.dtype == th.float32
    expected = [column.log_prob(action) for column, action in zip(columns, actions.T, strict=True)]
    th.testing.assert_close(distribution.log_prob(actions), sum(expected))
    entropies = [column.entropy() for column in columns]
    th.testing.assert_close(distribution.entropy(), sum(entropies))
    weighted, _ = made(0, entropy_weights={"0": 0.5, "1": 0.0, "3": 2})
    h = entropies
    th.testing.assert_close(weighted.entropy(), 0.5 * h[0] + h[3] + h[4] + 2 * (h[5] + h[6]) + h[7])


def test_divergences_add() -> None:
    (old, old_columns), (new, new_columns) = made(1), made(2)
    divergences = divergences_of(old)
    p, q = divergences.parameters(old), divergences_of(new).parameters(new)
    forward: Any = sum(kl_divergence(a, b) for a, b in zip(old_columns, new_columns, strict=True))
    backward = sum(kl_divergence(b, a) for a, b in zip(old_columns, new_columns, strict=True))
    assert (forward - backward).abs().min() > 0.01
    th.testing.assert_close(divergences.kl(p, q), forward)
    th.testing.assert_close(divergences.reverse_kl(p, q), backward)


def test_divergences_are_expectations() -> None:
    """The KL is E_old[log old - log new]."""
    n, layout, outputs = 200_000, HybridLayout(PARTS), th.linspace(-0.3, 0.3, N_OUTPUTS)
    old, new = (
        HybridDistribution(layout).proba_distribution((sign * outputs).expand(n, -1), th.full((3,), log_std))
        for sign, log_std in ((1, 0.0), (-1, 0.2))
    )
    divergences, p = divergences_of(old), divergences_of(old).parameters(old)
    q = divergences.parameters(new)
    p, q = (tuple(tensor[:1] for tensor in each) for each in (p, q))
    th.manual_seed(0)
    drawn, drawn_new = old.sample(), new.sample()
    kl = (old.log_prob(drawn) - new.log_prob(drawn)).mean().item()
    reverse = (new.log_prob(drawn_new) - old.log_prob(drawn_new)).mean().item()
    assert divergences.kl(p, q).item() == pytest.approx(kl, abs=0.006)
    assert divergences.reverse_kl(p, q).item() == pytest.approx(reverse, abs=0.006)
    assert abs(kl - reverse) > 0.03


COUNTED = {"1": ("0", 1), "3": ("0", [0, 2])}


def test_parts_count_only_with_their_outcomes() -> None:
    """Log-probability, entropy and KL are those of the choice and of what follows it, in a loop over outcomes."""
    (old, old_columns), (new, new_columns) = (made(seed, only_if=COUNTED) for seed in (3, 4))
    # The columns that count with each outcome, besides the choice and the last two parts.
    always, of_outcome = [3, 4, 7], {0: [5, 6], 1: [1, 2], 2: [5, 6]}
    choices: Any = old_columns[0], new_columns[0]
    entropy, kl, reverse = choices[0].entropy(), *(kl_divergence(*each) for each in (choices, choices[::-1]))
    actions = th.cat([th.tensor([[0.0], [1], [2], [1], [0]]), old.sample()[:, 1:]], dim=1)
    log_probs = choices[0].log_prob(actions[:, 0])
    for outcome, columns in of_outcome.items():
        for i in always + columns:
            p, q = old_columns[i], new_columns[i]
            entropy = entropy + choices[0].probs[:, outcome] * p.entropy()
            kl = kl + choices[0].probs[:, outcome] * kl_divergence(p, q)
            reverse = reverse + choices[1].probs[:, outcome] * kl_divergence(q, p)
            log_probs = log_probs + (actions[:, 0] == outcome) * p.log_prob(actions[:, i])
    th.testing.assert_close(old.log_prob(actions), log_probs)
    th.testing.assert_close(old.entropy(), entropy)
    divergences = divergences_of(old)
    parameters = divergences.parameters(old), divergences.parameters(new)
    th.testing.assert_close(divergences.kl(*parameters), kl)
    th.testing.assert_close(divergences.reverse_kl(*parameters), reverse)


def test_outcomes_have_the_numbers_of_the_space() -> None:
    space = spaces.Dict({"choice": spaces.Discrete(2, start=5), "force": spaces.Box(-1, 1, (1,))})
    distribution = HybridDistribution(HybridLayout(space), only_if={"force": ("choice", 6)})
    distribution.proba_distribution(th.zeros(2, 3), th.zeros(1))
    rows = np.array([[0, 0.5], [1, 0.5]], np.float32)  # Rows begin at 0.
    chosen, counted = np.log(0.5), -(0.5**2) / 2 - np.log(2 * np.pi) / 2
    np.testing.assert_allclose(distribution.log_prob(th.tensor(rows)), [chosen, chosen + counted], rtol=1e-6)


def test_parts_need_different_names() -> None:
    space = spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(3)})})
    with pytest.raises(ArgumentError, match=r"several parts named 'a\.b': rename their keys"):
        HybridLayout(space)


def split(rows: th.Tensor, masks: th.Tensor) -> list[tuple[Any, th.Tensor | None, slice]]:
    """Return the distributions of the parts of ``PARTS``, with masks, and the columns of their actions."""
    contrib = [
        (spaces.Discrete(3), slice(0, 3), slice(0, 3), slice(0, 1)),
        (spaces.MultiDiscrete([2, 4]), slice(5, 11), slice(3, 9), slice(3, 5)),
        (spaces.MultiBinary(2), slice(11, 15), slice(9, 13), slice(5, 7)),
    ]
    parts: list[Any] = []
    for space, outputs, mask, columns in contrib:
        part = make_masked_proba_distribution(space).proba_distribution(rows[:, outputs])
        part.apply_masking(masks[:, mask])
        parts.append((part, masks[:, mask], columns))
    parts.append((Normal(rows[:, 3:5], rows[:, 16:18].exp()), None, slice(1, 3)))
    parts.append((Normal(rows[:, 15:16], rows[:, 18:].exp()), None, slice(7, 8)))
    return parts


MASKS = th.tensor([[1, 0, 1, 0, 1, 1, 1, 0, 0, 1, 1, 0, 1], [0, 0, 1, 1, 1, 0, 1, 0, 0, 1, 0, 1, 1]] * 3).bool()


def masked(seed: int, **options: Any) -> tuple[MaskableHybridDistribution, list[Any]]:
    rows = th.randn(6, 19, generator=th.Generator().manual_seed(seed))
    distribution = MaskableHybridDistribution(HybridLayout(PARTS), **options)
    distribution.proba_distribution(rows[:, :16], rows[:, 16:])
    distribution.apply_masking(MASKS)
    return distribution, split(rows, MASKS)


def test_parts_are_those_of_sb3_contrib() -> None:
    distribution, parts = masked(0)
    th.manual_seed(0)
    actions = distribution.sample()
    assert actions.shape == (6, 8)
    log_probs, entropies = th.zeros(6), th.zeros(6)
    for part, mask, columns in parts:
        taken = actions[:, columns]
        if mask is None:
            log_probs, entropies = log_probs + part.log_prob(taken).sum(1), entropies + part.entropy().sum(1)
        else:
            log_probs = log_probs + part.log_prob(taken[:, 0] if columns == slice(0, 1) else taken)
            entropies = entropies + part.entropy()
            assert (part.mode().reshape(6, -1) == distribution.mode()[:, columns]).all()
    th.testing.assert_close(distribution.log_prob(actions), log_probs)
    th.testing.assert_close(distribution.entropy(), entropies)
    distribution.apply_masking(None)
    (first, *_) = outcomes(distribution.parts[0])
    assert (first.probs > 0).all()


def outcomes(part: Any) -> list[Any]:
    return [part.distribution] if hasattr(part, "distribution") and part.distribution else part.distributions
