"""The pages say of all objectives in five tasks what the committed records say."""

import re
from itertools import combinations

import numpy as np
import pytest
from committed import ROOT, better, needs_records, section

from sb3_ppo_variants.compare import records, scores, statistics

pytestmark = needs_records
WORSE = "`ESPO`, `SPO`, `EWMA`, `SAPO`, `CISPO` and `PPOUnclipped`"
PAGES = ROOT / "docs" / "objectives"
OF_PAPER = {
    "PPOClip": "ppo_clip",
    "PPOAdaptiveKL": "ppo_adaptive_kl",
    "PPOFixedKL": "ppo_fixed_kl",
    "PPOUnclipped": "ppo_unclipped",
}


@pytest.fixture(scope="module")
def measured() -> scores.Comparison:
    found, problems = records.unpack(ROOT / "results" / "objectives-500k.jsonl.gz")
    assert not problems
    (comparison,) = scores.comparisons(found)
    assert len(comparison.arrays) == 20 and {each.shape for each in comparison.arrays.values()} == {(4, 5)}
    return comparison


@pytest.fixture(scope="module")
def page() -> str:
    return one_line(section("Measured", PAGES / "index.md"))


def one_line(text: str) -> str:
    return " ".join(text.split())


def label_of(name: str) -> str:
    """Return the label of an objective, or of the class of one of the paper's."""
    return OF_PAPER.get(name, f"ppo_custom objective={name}")


def labels_in(text: str) -> set[str]:
    return {label_of(name) for name in re.findall(r"`(\w+)`", text)}


def kl_percentiles(measured: scores.Comparison, *percents: int) -> dict[str, list[float]]:
    return {label: np.percentile(measured.logged(label, "kl"), percents).tolist() for label in measured.arrays}


def test_which_objectives_differ(measured: scores.Comparison, page: str) -> None:
    means, found = statistics.means(measured.arrays), statistics.differences(measured.arrays)
    ordered = sorted(means, key=lambda label: -means[label].value)
    assert ordered[0] == label_of("PPOClip") and f"the highest mean score, {means[ordered[0]].value:.2f}," in page
    worse = {label for label in ordered if label != ordered[0] and found[ordered[0], label].is_beyond_noise}
    assert f"is better beyond noise than {WORSE}" in page and labels_in(WORSE) == worse
    assert len(found) == 2 * 190 and "all 190 pairs" in page
    assert "The first fourteen, down to `ReverseKL`, cannot" in page and ordered[13] == label_of("ReverseKL")
    assert not any(found[pair].is_beyond_noise for pair in combinations(ordered[:14], 2))
    spo = label_of("SPO")
    better = [label for label in ordered if label != spo and found[label, spo].estimate.value > 0]
    assert sum(found[label, spo].is_beyond_noise for label in better) == 8
    assert "`SPO` have a median KL of 0.0013, and eight objectives are better beyond noise" in page


def test_which_objectives_are_equivalent(measured: scores.Comparison, page: str) -> None:
    same = [
        {one, other}
        for (one, its), (other, others) in combinations(measured.arrays.items(), 2)
        if statistics.are_equivalent(its, others)
    ]
    of = {name: set().union(*(pair for pair in same if label_of(name) in pair)) for name in OF_PAPER}
    six = "`DualClip`, `TrulyPPO`, `P3O`, `MDPO`, `KLHinge` and `PPOAdaptiveKL`"
    assert "**Six are equivalent to it** within 0.1" in page and f"of pairs: {six}." in page
    assert of["PPOClip"] == labels_in(f"`PPOClip`, {six}") and len(of["PPOClip"]) == 1 + 6
    assert "The fixed penalty is equivalent to `ReverseKL` alone" in page
    assert of["PPOFixedKL"] == labels_in("`PPOFixedKL`, `ReverseKL`")


def test_the_dual_clip_learns_what_the_clip_does(measured: scores.Comparison) -> None:
    table = measured.table[measured.table["env"].str.endswith("-v5")].set_index(["env", "seed"])
    clip, dual = (table.loc[table["label"] == label_of(name), "score"].sort_index() for name in ("PPOClip", "DualClip"))
    assert len(clip) == 12 and clip.equals(dual)


def test_how_large_updates_are(measured: scores.Comparison, page: str) -> None:
    means, kls = statistics.means(measured.arrays), kl_percentiles(measured, 10, 50, 90)
    medians = {label: middle for label, (_, middle, _) in kls.items()}
    lowest = sorted(means, key=lambda label: means[label].value)[:4]
    assert {label for label, kl in medians.items() if kl > 1} == {*lowest}
    assert f"that of the others is at most {max(kl for of, kl in medians.items() if of not in lowest):.2g}." in page
    ppo, found = label_of("PPOClip"), better(statistics.differences(measured.arrays))
    worse = {label for label in lowest if (ppo, label) in found}
    assert "All four are worse beyond noise than `PPOClip`." in page and worse == {*lowest}
    assert f"Those of `SPO` have a median KL of {min(medians.values()):.2g}" in page
    hinge, adaptive = (
        f"{low:.2g} to {high:.2g}" for low, _, high in (kls[label_of(of)] for of in ("KLHinge", "PPOAdaptiveKL"))
    )
    assert f"of the averages are {hinge} and {adaptive}." in page
    cispo, sapo, clip = (f"{medians[label_of(of)]:.2g}" for of in ("CISPO", "SAPO", "PPOClip"))
    said = f"was {cispo}, and with [SAPO](gates.md) {sapo}, whereas it was {clip} with the clip"
    assert said in one_line((PAGES / "cispo.md").read_text())


def test_one_run_collapses(measured: scores.Comparison, page: str) -> None:
    least = measured.table[measured.table["env"] == "CartPole-v1"].sort_values("score").iloc[0]
    assert least["label"] == label_of("AdaptiveReverseKL") and f"ends at {least['score']:.0f}, below the random" in page
    assert least["score"] < measured.random_scores["CartPole-v1"]


def test_what_so_many_seeds_find(measured: scores.Comparison, page: str) -> None:
    four, five, ten = (f"{statistics.detectable_difference(measured.arrays, seeds):.2f}" for seeds in (4, 5, 10))
    assert f"four seeds find a difference of {four} between two means, five one of {five} and ten one of {ten}" in page


def test_what_other_pages_say(measured: scores.Comparison) -> None:
    medians = kl_percentiles(measured, 50)
    advice = one_line((ROOT / "docs" / "which_objective.md").read_text())
    assert "none of the other nineteen is better than `PPOClip` beyond noise, and six are worse" in advice
    assert "Four of these six are the ones that change the policy most in an update" in advice
    assert {*sorted(medians, key=lambda label: -medians[label][0])[:4]} <= labels_in(WORSE)
    assert f"six are equivalent to it, and six are worse: {WORSE}" in one_line(
        section("The objectives of later papers")
    )
    readme = (ROOT / "README.md").read_text()
    assert "[in five tasks][objectives], none of them is better than `PPOClip` beyond noise" in readme
