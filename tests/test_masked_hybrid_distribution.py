"""The distribution of Dict and Tuple actions with masks: its parts are those of sb3-contrib."""

from copy import copy
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import make_masked_proba_distribution
from test_hybrid import KICK, PARTS
from torch.distributions import Normal, kl_divergence

from sb3_ppo_variants.kl import divergences_of
from sb3_ppo_variants.layout import HybridLayout
from sb3_ppo_variants.policies.masked import MaskableHybridDistribution


def test_a_copy_has_masks_of_its_own() -> None:
    original = MaskableHybridDistribution(HybridLayout(KICK))
    copied = copy(original)
    for each in (original, copied):
        each.proba_distribution(th.zeros(1, sum(each._n_outputs) + sum(each._n_stds)))
    copied.apply_masking(np.array([[1, 0, 1]]))
    choices: Any = [dict(zip(KICK, each.parts, strict=True))["choice"] for each in (original, copied)]
    thirds, halves = (choice.distribution.probs for choice in choices)
    th.testing.assert_close((thirds, halves), (th.full((1, 3), 1 / 3), th.tensor([[0.5, 0.0, 0.5]])))


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


def made(seed: int, **options: Any) -> tuple[MaskableHybridDistribution, list[Any]]:
    rows = th.randn(6, 19, generator=th.Generator().manual_seed(seed))
    distribution = MaskableHybridDistribution(HybridLayout(PARTS), **options).proba_distribution(rows)
    distribution.apply_masking(MASKS)
    return distribution, split(rows, MASKS)


def test_parts_are_those_of_sb3_contrib() -> None:
    distribution, parts = made(0)
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


def test_divergences_leave_out_what_is_masked() -> None:
    (old, old_parts), (new, new_parts) = made(1), made(2)
    divergences = divergences_of(old)
    p, q = (divergences.parameters(each) for each in (old, new))
    wanted = th.zeros(6)
    for (one, mask, _), (other, _, _) in zip(old_parts, new_parts, strict=True):
        if mask is None:
            wanted = wanted + kl_divergence(one, other).sum(dim=1)
            continue
        for before, after in zip(outcomes(one), outcomes(other), strict=True):
            allowed = before.masks
            terms = before.probs * (before.logits - after.logits)
            wanted = wanted + terms.where(allowed, 0.0).sum(dim=1)
            assert not before.probs[~allowed].any() and not allowed.all()
    th.testing.assert_close(divergences.kl(p, q), wanted)


def test_allowed_actions_are_drawn() -> None:
    distribution, _ = made(3)
    th.manual_seed(0)
    drawn = th.stack([distribution.sample() for _ in range(300)])
    assert {*drawn[:, 0, 0].tolist()} == {0, 2} and {*drawn[:, 1, 0].tolist()} == {2}
    assert {*drawn[:, 0, 3].tolist()} == {1} and {*drawn[:, 1, 3].tolist()} == {0, 1}
    assert {*drawn[:, 0, 5].tolist()} == {0, 1} and {*drawn[:, 0, 6].tolist()} == {1}
