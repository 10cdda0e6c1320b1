"""The numbers of a comparison, against numbers worked out by hand."""

from typing import Any

import numpy as np
import pytest
from comparing import RECORDS, record

from sb3_ppo_variants.compare import plots, records, scores, statistics
from sb3_ppo_variants.compare.records import RANDOM
from sb3_ppo_variants.errors import ArgumentError


def comparison_of(found: list[records.Record]) -> scores.Comparison:
    (comparison,) = scores.comparisons(found)
    return comparison


def test_normalised_scores() -> None:
    frame = comparison_of(RECORDS).table
    found = frame.groupby(["label", "env"])["normalised"].apply(list).to_dict()
    assert found == {
        ("sb3_ppo", "A-v0"): [0.5, 1.0],
        ("sb3_ppo", "B-v0"): [0.5, 1.0],
        ("ppo_clip", "A-v0"): [0.75, 0.25],
        ("ppo_clip", "B-v0"): [0.75, -0.25],
    }
    assert list(frame["steps_per_second"].unique()) == [50.0]


def test_nothing_is_scaled_without_a_better_run_or_a_random_policy() -> None:
    worse = [record(RANDOM, "A-v0", 0, 10), record("ppo_clip", "A-v0", 0, 5), record("ppo_clip", "B-v0", 0, 5)]
    assert comparison_of(worse).table["normalised"].isna().all()


def test_only_seeds_with_a_run_everywhere_count() -> None:
    missing = [each for each in RECORDS if (each["label"], each["env"], each["seed"]) != ("ppo_clip", "B-v0", 0)]
    found = comparison_of(missing)
    assert found.incomplete == []
    np.testing.assert_allclose(found.arrays["ppo_clip"], [[0.25, -0.25]])
    assert found.arrays["sb3_ppo"].shape == (2, 2)
    without = [each for each in RECORDS if (each["label"], each["env"]) != ("ppo_clip", "B-v0")]
    assert comparison_of(without).incomplete == ["ppo_clip"]


@pytest.mark.parametrize("seeds", [(2, 2), (3, 5)])
def test_the_probability_of_improvement_is_rliables(seeds: tuple[int, int]) -> None:
    metrics = pytest.importorskip("rliable.metrics")
    generator = np.random.default_rng(0)
    own, other = (generator.integers(0, 4, (number, 3)) for number in seeds)
    expected = metrics.probability_of_improvement(own, other)
    assert statistics.probability_of_improvement(own, other).value == pytest.approx(expected)
    assert statistics.interquartile_means({"own": own})["own"] == pytest.approx(metrics.aggregate_iqm(own))


def test_runs_with_different_defaults_are_not_compared() -> None:
    runs: list[Any] = [record("ppo_clip", "A-v0", n, 50, hyperparameters={"gamma": 0.9 + n / 100}) for n in range(2)]
    with pytest.raises(ArgumentError, match="the runs of ppo_clip in A-v0 have different hyperparameters"):
        scores.comparisons(runs)


def test_where_only_a_setting_with_its_own_protocol_learns() -> None:
    """In A, ppo_clip is worse than the random policy, and in B, 20 is the best run that sets the scale."""
    sb3 = "sb3_ppo protocol=sb3"
    runs = [record(RANDOM, env, 0, 0) for env in ("A-v0", "B-v0")]
    runs += [record(sb3, "A-v0", 0, 200), record(sb3, "B-v0", 0, 30)]
    runs += [record("ppo_clip", "A-v0", 0, -10), record("ppo_clip", "B-v0", 0, 20)]
    (comparison,) = scores.comparisons(runs)
    assert comparison.scale["high"].to_dict() == {"A-v0": 200, "B-v0": 20}
    np.testing.assert_allclose(comparison.arrays[sb3], [[1, 1.5]])
    np.testing.assert_allclose(comparison.arrays["ppo_clip"], [[-0.05, 1]])


def test_settings_with_failed_runs_are_not_called_equivalent() -> None:
    runs = [record(label, "A-v0", seed, 50 + seed % 2) for label in ("sb3_ppo", "ppo_clip") for seed in range(10)]
    (whole,) = scores.comparisons([record(RANDOM, "A-v0", 0, 0), *runs])
    assert whole.are_equivalent("sb3_ppo", "ppo_clip")
    runs[-1]["score"] = None
    (partial,) = scores.comparisons([record(RANDOM, "A-v0", 0, 0), *runs])
    assert not partial.are_equivalent("sb3_ppo", "ppo_clip")


def test_a_curve_is_of_the_last_episodes_and_ends_at_the_score() -> None:
    returns = [float(number) for number in range(250)]
    ends = [4 * (number + 1) for number in range(250)]
    points = records.trailing_means(ends, returns, 1000)
    assert len(points) == 100 and points[-1] == sum(returns[-100:]) / 100
    # After 10 steps two episodes have ended, and after 500 steps 125.
    assert points[0] == 0.5 and points[49] == sum(returns[25:125]) / 100
    assert records.trailing_means([30], [7.0], 100) == [None] * 29 + [7.0] * 71
    # Multiples of 0.29 and 0.57 are rounded, to 28.999 and 56.999.
    assert [records.trailing_means([steps], [7.0], steps)[-1] for steps in (29, 57)] == [7.0, 7.0]
    # An episode that diverged leaves no trace once it is not among the last 100.
    assert records.trailing_means(range(1, 201), [-1e20] + [3.0] * 199, 200)[-1] == 3.0


def test_a_mean_curve_begins_where_every_run_has_an_episode() -> None:
    """The first episodes end after 2 and after 4 of 100 steps."""
    curves = [None, 1.0, *[3.0] * 98], [*[None] * 3, *[5.0] * 97]
    runs = [record("ppo_clip", "A-v0", seed, 1.0, trailing=each, episodes=None) for seed, each in enumerate(curves)]
    (comparison,) = scores.comparisons(runs)
    found = plots.mean_curve(comparison, "A-v0", "ppo_clip")
    assert found is not None
    steps, band, _ = found
    assert steps.tolist() == pytest.approx(list(range(4, 101))) and {*band.value} == {4.0}


def test_a_curve_ends_with_the_shortest_run() -> None:
    """Runs from elsewhere may differ in length, here 100 and 40 steps."""
    episodes = [{"ends": [10, 50], "returns": [1.0, 5.0]}, {"ends": [20, 40], "returns": [5.0, 5.0]}]
    runs = [
        record("CleanRL", "A-v0", seed, 5.0, steps=steps, episodes=of)
        for seed, (steps, of) in enumerate(zip((100, 40), episodes, strict=True))
    ]
    (comparison,) = scores.comparisons(runs)
    found = plots.mean_curve(comparison, "A-v0", "CleanRL")
    assert found is not None
    steps, band, _ = found
    assert (steps[0], steps[-1]) == (20, 40) and {*band.value} == {3.0}
    # Without an episode, there is no curve.
    (comparison,) = scores.comparisons([record("CleanRL", "A-v0", 0, 3.0, episodes={"ends": [101], "returns": [3.0]})])
    assert plots.mean_curve(comparison, "A-v0", "CleanRL") is None


def test_normalised_curves_end_at_the_normalised_scores() -> None:
    (comparison,) = scores.comparisons(RECORDS)
    shares, found = comparison.curves
    # The first episode of these runs ends halfway through the steps.
    assert shares[0] == 0.5 and shares[-1] == 1.0
    for label, matrix in comparison.arrays.items():
        np.testing.assert_allclose(found[label][..., -1], matrix)
