"""Which settings differ beyond noise, against permutations counted by hand and against SciPy."""

import re
from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from comparing import p_value
from scipy.stats import permutation_test, t, ttest_ind, ttest_rel

from sb3_ppo_variants.compare import report, statistics
from sb3_ppo_variants.compare.statistics import holm, seeds_needed, smallest_p


def test_p_values_by_hand() -> None:
    """Of the 20 ways to choose 3 of 6 runs, only 2 separate 1, 2, 3 from 4, 5, 6; 4 differ by at least 3 and 2 / 3."""
    low, high = np.array([[1.0], [2.0], [3.0]]), np.array([[4.0], [5.0], [6.0]])
    assert p_value(low, high) == p_value(high, low) == 2 / 20
    # The sums of three are 6 (1 way), 7 (1), 8 (2), ... 15 (1), of which 7 and less, and 14 and more, are as extreme.
    assert p_value(np.array([[1.0], [2.0], [4.0]]), np.array([[3.0], [5.0], [6.0]])) == 4 / 20
    assert p_value(low, low) == 1.0
    # One run against two: 3 ways, of which one has a difference of at least 2.5.
    assert p_value(np.array([[4.0]]), low[:2]) == 1 / 3


def test_runs_stay_in_their_environments() -> None:
    """One run each in two environments: 4 ways, two of which have a difference of (2 + 10) / 2, two of (10 - 2) / 2."""
    one, other = np.array([[0.0, 0.0]]), np.array([[2.0, 10.0]])
    assert p_value(one, other) == 2 / 4
    assert p_value(np.array([[2.0, 0.0]]), np.array([[0.0, 10.0]])) == 4 / 4


@pytest.mark.parametrize("seeds", [(4, 4), (5, 3)])
def test_p_values_are_scipys_in_one_environment(seeds: tuple[int, int]) -> None:
    """With equal numbers of seeds, Welch's t and the difference order the divisions alike."""
    generator = np.random.default_rng(0)
    one, other = (generator.standard_exponential(number) for number in seeds)

    def distance(x: np.ndarray, y: np.ndarray) -> float:
        return abs(ttest_ind(x, y, equal_var=False).statistic)

    expected = permutation_test((one, other), distance, vectorized=False, alternative="greater", n_resamples=np.inf)
    assert p_value(one[:, None], other[:, None]) == pytest.approx(expected.pvalue)


def test_fewer_seeds_that_vary_more_are_not_told_apart() -> None:
    """Without standard errors, 17% of these pairs with the same mean were called different."""
    generator = np.random.default_rng(0)
    pairs = [(generator.normal(0, 0.3, (5, 3)), generator.normal(0, 0.05, (10, 3))) for _ in range(400)]
    assert (statistics.p_values(pairs, 1999) <= 0.05).mean() < 0.1


@pytest.mark.parametrize("spread", [1e-1, 1e-2, 1e-4, 1e-6])
def test_no_p_value_is_below_the_smallest_where_scores_hardly_vary(spread: float) -> None:
    """Of the 56 ways to choose 3 of 8 runs, only the one that was found has a setting without any spread."""
    generator = np.random.default_rng(0)
    pairs = [(np.full((3, 1), 500.0), generator.normal(9.4, spread, (5, 1))) for _ in range(100)]
    assert set(statistics.p_values(pairs)) == {smallest_p(3, 5, 1)} == {1 / 56}


@pytest.mark.parametrize("envs", [1, 2, 3])
def test_all_divisions_are_counted(envs: int) -> None:
    """Here, one by one: 20 of six runs in each environment. Scores of few values have many divisions at the edge."""
    generator = np.random.default_rng(envs)
    for _ in range(10):
        one, other = generator.integers(0, 4, (2, 3, envs)) / 10
        pooled = np.concatenate([one, other])
        sums = [[sum(chosen) for chosen in combinations(column, 3)] for column in pooled.T]
        gains = [abs(2 * sum(of_envs) - pooled.sum()) for of_envs in product(*sums)]
        least = abs(one.sum() - other.sum()) - 1e-9
        assert p_value(one, other) == pytest.approx(np.mean([gain >= least for gain in gains]))


def test_random_divisions_give_the_p_value_of_all() -> None:
    """Of 3 and 4 runs in each of three environments, there are 35^3 = 42,875."""
    generator = np.random.default_rng(1)
    one, other = generator.normal(size=(3, 3)), generator.normal(0.5, size=(4, 3))
    assert p_value(one, other, samples=42_874) == pytest.approx(p_value(one, other, samples=42_875), abs=0.005)
    # A p value of 0 would be too small: the division that was found is one of the possible ones.
    assert p_value(one, other + 10, samples=99) == 1 / 100
    # As many random ones are tried where the runs can be divided in too many ways for all, here 2,704,156.
    many, others = generator.normal(size=(12, 1)), generator.normal(0.5, size=(12, 1))
    assert p_value(many, others) == pytest.approx(ttest_ind(many[:, 0], others[:, 0]).pvalue, abs=0.02)


def test_holm_by_hand() -> None:
    """0.01 counts four times, 0.02 three times, 0.03 twice, which gives the same, and 0.04 once, but no less."""
    assert holm(np.array([0.04, 0.01, 0.03, 0.02])) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm(np.array([0.5, 0.6])) == pytest.approx([1.0, 1.0]) and len(holm(np.array([]))) == 0


def test_the_smallest_p_value_is_reached() -> None:
    assert (smallest_p(3, 3, 1), smallest_p(2, 2, 4), smallest_p(1, 2, 1)) == (2 / 20, 2 / 6**4, 1 / 3)
    assert smallest_p(10, 10, 7) == 2 / 184_756**7
    # Among ten pairs, 0.005: 5 seeds give 2 / 252, 6 seeds 2 / 924.
    assert (seeds_needed(1, 1), seeds_needed(10, 1), seeds_needed(66, 1), seeds_needed(66, 7)) == (4, 6, 7, 2)


def apart(gap: float, seeds: int, envs: int, settings: str = "ab") -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {label: generator.normal(0.9 - gap * number, 0.05, (seeds, envs)) for number, label in enumerate(settings)}


def verdict_of(arrays: dict[str, np.ndarray], incomplete: tuple[str, ...] = ()) -> str:
    ranking, envs = statistics.rank(arrays, statistics.differences(arrays)), next(iter(arrays.values())).shape[1]
    comparison: Any = SimpleNamespace(
        arrays=arrays, tested=arrays, ranking=ranking, doubts={}, incomplete=incomplete, scaled_envs=range(envs),
        differences=statistics.differences(arrays), show=str,
        are_equivalent=lambda one, other: statistics.are_equivalent(arrays[one], arrays[other]),
    )  # fmt: skip
    return report.say_verdict(comparison)


def test_what_is_better_beyond_noise() -> None:
    arrays = {**apart(0.4, 3, 3), "c": np.array([[0.0, 1.5, 0.5], [1.5, 0.0, 1.4], [0.2, 1.4, 0.0]])}
    differences = statistics.differences(arrays)
    first, middle, last = statistics.rank(arrays, differences)
    assert (first.label, first.better, first.worse, first.ranks) == ("a", ["b"], [], "1 to 2")
    assert (middle.label, middle.ranks) == ("c", "1 to 3")
    assert (last.label, last.worse, last.ranks) == ("b", ["a"], "2 to 3")
    assert verdict_of(arrays).endswith("0.91. It is better beyond noise than b, and cannot be told apart from c.")
    assert verdict_of({"a": arrays["a"]}).endswith("0.91; there is no other setting.")
    assert verdict_of({"a": arrays["a"]}, ("d",)).endswith("0.91; no other setting has a seed in every environment.")
    pair = apart(0.4, 3, 3)
    assert verdict_of(pair).endswith("and is better than all others beyond noise.")
    assert verdict_of(pair, ("d",)).endswith("and is better than all others that count beyond noise.")


def test_a_verdict_says_what_is_equivalent() -> None:
    """Standard deviations of 0.01 are small beside 0.1, and those of 0.5 large."""
    generator = np.random.default_rng(0)
    close = {label: generator.normal(0.5, 0.01, (5, 2)) for label in "ab"}
    pair = r"\*\*[ab]\*\* and [ab]: no difference shown; "
    assert re.fullmatch(pair + r"equivalent within 0\.1 \(90% interval -0\.0\d to 0\.0\d\)\.", verdict_of(close))
    three = verdict_of({**close, "c": np.zeros((5, 2))})
    assert re.search(
        r"cannot be told apart from ([ab]); equivalent to it within 0\.1: \1 \(90% interval .*\)\.$", three
    )
    wide = verdict_of({label: generator.normal(0.5, 0.5, (5, 2)) for label in "ab"})
    assert re.fullmatch(pair + r"no evidence that they are equivalent within 0\.1 \(90% interval -.* to .*\)\.", wide)


def test_too_few_seeds_are_said_and_how_many_would_do() -> None:
    """Three against three in one environment give 2 / 20 at the least, however far they are apart."""
    said = "So few seeds cannot tell settings apart: it takes at least {} of each."
    assert verdict_of(apart(100.0, 3, 1)).endswith(said.format(4))
    assert "is better than all others beyond noise" in verdict_of(apart(100.0, 4, 1))
    # 2 / 252 is more than 0.05 / 10.
    assert verdict_of(apart(100.0, 5, 1, "abcde")).endswith(said.format(6))
    assert "better than all others" in verdict_of(apart(100.0, 6, 1, "abcde"))


def test_one_seed_says_nothing_of_noise() -> None:
    arrays = {"a": np.array([[1.0, 0.9]]), "b": np.array([[0.1, 0.2]])}
    order = statistics.rank(arrays, statistics.differences(arrays))
    assert [each.ranks for each in order] == ["1 to 2", "1 to 2"]
    assert "With a single seed, nothing can be said about noise" in verdict_of(arrays)


def test_a_setting_with_one_seed_leaves_the_others_their_verdict() -> None:
    several = apart(0.4, 3, 3)
    worst = verdict_of({**several, "c": np.zeros((1, 3))})
    assert worst.endswith("It is better beyond noise than b, and cannot be told apart from c (a single seed).")
    assert verdict_of({**several, "c": np.ones((1, 3))}).endswith(
        "With its single seed, it cannot be told apart from a, b."
    )


def test_the_scale_of_the_test_does_not_depend_on_the_setting() -> None:
    """A setting with a protocol of its own is not part of the scale, so that its best runs are above 1."""
    generator = np.random.default_rng(0)
    returns = {label: generator.uniform(0, [100, 1, 10], (3, 3)) for label in "ab"}
    expected = p_value(*(of / np.maximum(*(each.max(axis=0) for each in returns.values())) for of in returns.values()))
    for scaling in "ab":
        scaled = {label: of / returns[scaling].max(axis=0) for label, of in returns.items()}
        # The best runs of the other are at most 1 in some environments, which then keep their scale.
        found = statistics.differences(scaled)["a", "b"].p
        assert found == pytest.approx(expected, abs=1e-9)


def test_only_what_the_test_has_shown_is_called_better() -> None:
    """A setting above 1 in one environment may lead in the mean, while the test's scale says that it is the worse."""
    generator = np.random.default_rng(0)
    n_apart = 0
    for _ in range(20):
        clip = generator.normal([1.0, 0.9, 0.9], 0.1, (6, 3))
        scores = {"clip": clip / clip.max(axis=0), "own": generator.normal([3.2, -0.1, 0.3], [0.3, 0.2, 0.2], (6, 3))}
        best = np.maximum(scores["own"].max(axis=0), 1)
        assert (scores["clip"] / best).mean() > (scores["own"] / best).mean()
        found = statistics.differences(scores)["own", "clip"]
        n_apart += found.estimate.value > 0
        assert not found.is_beyond_noise or found.estimate.value < 0
    assert n_apart == 20


def test_settings_that_are_the_same_are_not_told_apart() -> None:
    """One percent of the cases would be far below 5%, and 77% is what intervals of a bootstrap gave."""
    generator = np.random.default_rng(0)
    wrong = 0
    for _ in range(200):
        arrays = {label: generator.exponential(size=(6, 1)) for label in "abcde"}
        found = statistics.differences(arrays)
        wrong += any(found[pair].is_beyond_noise for pair in combinations(arrays, 2))
    # 10 are expected at most; 18 or more would have a probability of 1%.
    assert wrong < 18


def test_intervals_are_students() -> None:
    generator = np.random.default_rng(0)
    one, other = generator.normal(size=(4, 1)), generator.normal(1, 3, size=(6, 1))
    expected = ttest_ind(one[:, 0], other[:, 0], equal_var=False).confidence_interval(0.97)
    assert statistics.interval(one, other) == pytest.approx(tuple(expected))
    # A paired test is about the mean of differences.
    alone = ttest_rel(one[:, 0], np.zeros(4)).confidence_interval(0.97)
    assert statistics.interval(one) == pytest.approx(tuple(alone))


def test_environments_have_their_own_spread() -> None:
    """Two environments with variances 1 and 9: the mean has the variance (1 / 4 + 9 / 4) / 4 = 0.625.

    By Satterthwaite, it has 0.625^2 / ((1 / 16)^2 / 3 + (9 / 16)^2 / 3) = 3.6585 degrees of freedom.
    """
    steps = np.array([[-1.0], [-1.0], [1.0], [1.0]]) * np.sqrt(0.75)
    scores = np.hstack([steps, 3 * steps[::-1]])
    half = t.ppf(0.985, 3.6585) * np.sqrt(0.625)
    assert statistics.interval(scores) == pytest.approx((-half, half), abs=1e-3)


@pytest.mark.parametrize(("seeds", "envs", "enough"), [(3, 1, False), (4, 1, True), (2, 2, False), (2, 3, True)])
def test_few_seeds_have_no_interval(seeds: int, envs: int, enough: bool) -> None:
    scores = np.random.default_rng(0).normal(size=(seeds, envs))
    assert statistics.estimate(scores).is_certain is enough
    assert statistics.probability_of_improvement(scores, scores + 1).is_certain is enough
    assert statistics.estimate(scores[..., None]).is_certain is enough


def test_equal_scores_have_no_interval() -> None:
    """They say nothing about how much another run would differ."""
    assert not statistics.estimate(np.ones((5, 2))).is_certain
    assert not statistics.are_equivalent(np.ones((5, 2)), np.ones((5, 2)))


def test_an_interval_of_a_probability_is_never_a_point() -> None:
    found = statistics.probability_of_improvement(np.ones((5, 1)), np.zeros((5, 1)))
    assert found.value == found.high == 1.0 and 0.5 < found.low < 0.9


def test_what_is_equivalent() -> None:
    close = apart(0.0, 10, 5)
    assert statistics.are_equivalent(close["a"], close["b"])
    assert not statistics.are_equivalent(close["a"], close["b"] + 0.12)
    # Three seeds of one environment that do not differ beyond noise are not equivalent for that.
    few = apart(0.0, 3, 1)
    assert not statistics.are_equivalent(few["a"], few["b"])
    # The 90% interval reaches exactly this far.
    low, high = ttest_ind(close["a"][:, 0], close["b"][:, 0], equal_var=False).confidence_interval(0.9)
    margin = max(-low, high)
    one, other = close["a"][:, :1], close["b"][:, :1]
    assert statistics.are_equivalent(one, other, margin * 1.001)
    assert not statistics.are_equivalent(one, other, margin * 0.999)
