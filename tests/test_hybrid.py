"""Hybrid actions: their layout in rows, and the product distribution with its divergences."""

from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from torch.distributions import Bernoulli, Categorical, Normal, kl_divergence

from sb3_ppo_variants import ArgumentError
from sb3_ppo_variants.hybrid import HybridDistribution
from sb3_ppo_variants.kl import MissingKLError, divergences_of
from sb3_ppo_variants.layout import HybridLayout, layout_of

FORCE = spaces.Box(np.array([0, -2], np.float32), np.array([1, 3], np.float32))
KICK = spaces.Dict({"choice": spaces.Discrete(3), "force": FORCE})
NESTED = spaces.Tuple(
    [
        spaces.MultiBinary(2),
        spaces.Dict({"dials": spaces.MultiDiscrete([2, 4]), "exact": spaces.Box(-0.1, 0.8, (2, 2), np.float64)}),
        spaces.Discrete(3, start=-1),
        spaces.Box(0, 255, (2,), np.uint8),
        spaces.Tuple(
            [
                spaces.Box(-1, 1, (), np.float32),
                spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 1], [0, 9]])),
            ]
        ),
        spaces.MultiBinary([2, 2]),
    ]
)


def same(first: Any, second: Any) -> bool:
    """Return whether two actions have the same structure, types and numbers."""
    if isinstance(first, dict):
        return [*first] == [*second] and all(same(first[key], second[key]) for key in first)
    if isinstance(first, tuple):
        return isinstance(second, tuple) and len(first) == len(second) and all(map(same, first, second))
    arrays = np.asarray(first), np.asarray(second)
    return type(first) is type(second) and arrays[0].dtype == arrays[1].dtype and np.array_equal(*arrays)


@pytest.mark.parametrize("space", [KICK, NESTED], ids=["Dict", "Tuple"])
def test_rows_become_elements_of_the_space_and_back(space: Any) -> None:
    layout = HybridLayout(space)
    space.seed(0)
    actions = [space.sample() for _ in range(50)]
    rows = layout.to_rows(actions)
    assert rows.shape == (50, 3 if space is KICK else 20) and rows.dtype == np.float32
    back = layout.for_envs(rows)
    assert all(map(space.contains, back))
    for action, again in zip(actions, back, strict=True):
        if space is NESTED:  # Rows are in single precision.
            np.testing.assert_allclose(again[1]["exact"], action[1]["exact"], rtol=1e-6)
            again[1]["exact"] = action[1]["exact"]
        assert same(action, again), (action, again)


def test_parts_have_names_and_columns() -> None:
    parts = HybridLayout(NESTED).parts
    assert [part.name for part in parts] == ["0", "1.dials", "1.exact", "2", "3", "4.0", "4.1", "5"]
    assert [(part.columns.start, part.columns.stop) for part in parts] == [
        (0, 2), (2, 4), (4, 8), (8, 9), (9, 11), (11, 12), (12, 16), (16, 20)
    ]  # fmt: skip


def test_continuous_parts_are_clipped_to_their_own_bounds() -> None:
    (action,) = HybridLayout(KICK).for_envs(np.array([[2, -0.5, 9]], np.float32))
    assert same(action, {"choice": np.int64(2), "force": np.array([0, 3], np.float32)})
    row = np.zeros((2, 20), np.float32)
    row[:, 4], row[:, 5], row[:, 9:11] = 0.8, -0.1, [[-3.5, 260], [17.4, 17.6]]
    first, second = HybridLayout(NESTED).for_envs(row)
    # Both bounds are further out in single precision.
    assert first[1]["exact"][0].tolist() == [0.8, -0.1] and NESTED.contains(first)
    assert (first[3].tolist(), second[3].tolist()) == ([0, 255], [17, 18])


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(-(2**63), 2**63 - 1, np.int64), (0, 2**64 - 1, np.uint64), (1 - 2**62, 2**62 + 1, np.int64)],
)
def test_bounds_that_are_no_floats_are_reached(low: int, high: int, dtype: Any, bounded: bool) -> None:
    space = spaces.Tuple([spaces.Box(low, high, (2,), dtype)])
    rows = np.array([[-1, 1]] if bounded else [[-1e30, 1e30]], np.float32)
    ((action,),) = HybridLayout(space, ["0"] if bounded else []).for_envs(rows)
    assert action.dtype == dtype and action.tolist() == [low, high]


def test_other_spaces_stay_as_they_are() -> None:
    layout, rows = layout_of(FORCE), np.ones((2, 2))
    assert layout.rows is FORCE and layout.for_envs(rows) is rows


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


def mean_of(distribution: th.distributions.Distribution) -> th.Tensor:
    if isinstance(distribution, Categorical):
        return (distribution.probs * th.arange(distribution.probs.shape[1])).sum(dim=1)
    return distribution.mean


def test_samples_follow_the_distribution() -> None:
    outputs = th.tensor([[0.0, 1, -1, 0.3, -0.7, 1, 0, 0, 1, 2, 3, 0.5, -0.5, 2]]).expand(40_000, -1)
    log_std = th.tensor([-1.0, 0.5, 0])
    distribution = HybridDistribution(HybridLayout(PARTS)).proba_distribution(outputs, log_std)
    th.manual_seed(1)
    samples = distribution.sample()
    means = [mean_of(column)[0] for column in by_hand(outputs, log_std)]
    th.testing.assert_close(samples.mean(dim=0), th.stack(means), atol=0.03, rtol=0)
    th.testing.assert_close(samples[:, [1, 2, 7]].std(dim=0), log_std.exp(), atol=0.03, rtol=0)
    assert distribution.mode()[0].tolist() == pytest.approx([1, 0.3, -0.7, 0, 3, 1, 0, 2])


def test_divergences_add() -> None:
    (old, old_columns), (new, new_columns) = made(1), made(2)
    divergences = divergences_of(old)
    p, q = divergences.parameters(old), divergences_of(new).parameters(new)
    forward: Any = sum(kl_divergence(a, b) for a, b in zip(old_columns, new_columns, strict=True))
    backward = sum(kl_divergence(b, a) for a, b in zip(old_columns, new_columns, strict=True))
    assert (forward - backward).abs().min() > 0.01
    th.testing.assert_close(divergences.kl(p, q), forward)
    th.testing.assert_close(divergences.reverse_kl(p, q), backward)
    with pytest.raises(MissingKLError, match="with 5 parts is not known: it is not the sum over parts"):
        divergences.jensen_shannon(p, q)


def test_divergences_are_expectations() -> None:
    """The KL is E_old[log old - log new], and a Renyi divergence log E_new[(old / new)^a] / (a - 1)."""
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
    renyi = ((old.log_prob(drawn_new) - new.log_prob(drawn_new)) * 0.5).exp().mean().log().item() / (0.5 - 1)
    assert divergences.renyi(p, q, 0.5).item() == pytest.approx(renyi, abs=0.006)


def test_a_single_part_has_all_divergences_of_its_own() -> None:
    layout = HybridLayout(spaces.Dict({"choice": spaces.Discrete(2)}))
    old, new = (HybridDistribution(layout).proba_distribution(th.tensor([[x, 0.0]]).log_softmax(1)) for x in (0.0, 2.0))
    p, q = (divergences_of(each).parameters(each) for each in (old, new))
    mixture = (p[0].exp() + q[0].exp()) / 2
    wanted: Any = sum((x.exp() * (x - mixture.log())).sum() for x in (p[0], q[0])) / 2
    th.testing.assert_close(divergences_of(old).jensen_shannon(p, q), wanted[None])


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
    with pytest.raises(MissingKLError, match="with only_if is not known"):
        divergences.renyi(*parameters, 0.5)


def test_outcomes_have_the_numbers_of_the_space() -> None:
    space = spaces.Dict({"choice": spaces.Discrete(2, start=5), "force": spaces.Box(-1, 1, (1,))})
    distribution = HybridDistribution(HybridLayout(space), only_if={"force": ("choice", 6)})
    distribution.proba_distribution(th.zeros(2, 3), th.zeros(1))
    rows = HybridLayout(space).to_rows([{"choice": each, "force": [0.5]} for each in (5, 6)])
    chosen, counted = np.log(0.5), -(0.5**2) / 2 - np.log(2 * np.pi) / 2
    np.testing.assert_allclose(distribution.log_prob(th.tensor(rows)), [chosen, chosen + counted], rtol=1e-6)


def test_parts_need_different_names() -> None:
    space = spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(3)})})
    with pytest.raises(ArgumentError, match=r"several parts named 'a\.b': rename their keys"):
        HybridLayout(space)
