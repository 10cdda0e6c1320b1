"""The settings whose robustness is compared, and the tables of their runs, from records made by hand."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from comparing import record
from scipy.stats import t as student

from benchmarks.__main__ import main
from benchmarks.robustness.at_random import best_of, compare_configurations, partial_correlations
from benchmarks.robustness.candidates import CANDIDATES, N_RANDOM, VARIED
from benchmarks.robustness.scores import sensitivity
from sb3_ppo_variants.compare import records
from sb3_ppo_variants.compare.plan import read_config, read_setting

COMPARISONS = Path(__file__).parents[2] / "benchmarks" / "comparisons"
CLIPPING, _, PENALTY, _, UNLIMITED = CANDIDATES


def test_random_configurations_are_the_same_and_cover_the_ranges() -> None:
    configurations = [candidate.at_random for candidate in CANDIDATES]
    assert len({tuple(each[1:] for each in of_one) for of_one in configurations}) == 1
    rates = np.log(sorted(each.learning_rate for each in CLIPPING.at_random))
    low, *_, high = VARIED["learning_rate"]
    strata = np.linspace(np.log(low), np.log(high), N_RANDOM + 1)
    # One in each of the strata, up to rounding to two digits.
    assert (rates > strata[:-1] - 0.05).all() and (rates < strata[1:] + 0.05).all()
    for each in CLIPPING.at_random:
        assert each.n_steps % 64 == 0 and 512 <= each.n_steps <= 8192 and 3 <= each.n_epochs <= 30
        assert each.coefficient is not None and 0.05 <= each.coefficient <= 0.5
    # Clip ranges from 0.05 to 0.5 and penalties from 0.1 to 10: one has half as many decades as the other.
    for one, other in zip(CLIPPING.at_random, PENALTY.at_random, strict=True):
        assert one.coefficient is not None and other.coefficient is not None
        assert 2 * np.log(one.coefficient / 0.05) == pytest.approx(np.log(other.coefficient / 0.1), abs=0.2)


def test_the_best_of_some_by_hand() -> None:
    # The pairs of 1, 2, 3, 4 have the maxima 2, 3, 4, 3, 4, 4.
    values = np.array([3.0, 1, 4, 2])
    assert best_of(values, 2) == pytest.approx(20 / 6)
    assert best_of(values, 1) == 2.5 and best_of(values, 4) == 4


def test_the_sensitivity_by_hand() -> None:
    # Chosen for each environment, the best have 1 and 1; the third has the best mean.
    assert sensitivity(pd.DataFrame([[1, 0], [0, 1], [0.6, 0.6]])) == pytest.approx(0.4)
    assert sensitivity(pd.DataFrame([[1, 1], [0, 0]])) == 0


def test_objectives_are_compared_with_the_same_configurations() -> None:
    """All of ten gain, though by less than they differ: two of 2 ** 10 exchanges are as far apart."""
    of_one, gains = pd.Series(100.0 * np.arange(10)), np.arange(1.0, 11)
    shuffled = (of_one + gains).sample(frac=1, random_state=0)
    compared = compare_configurations({"one": of_one, "gained": shuffled})
    assert compared["gained", "one"].p == pytest.approx(2 / 2**10)
    assert compared["gained", "one"].estimate.value == 5.5 == -compared["one", "gained"].estimate.value
    # Three pairs with the same p value: it is corrected for three.
    thrice = compare_configurations({"one": of_one, "gained": of_one + gains, "more": of_one + 3 * gains})
    assert {round(each.p * 2**9, 6) for each in thrice.values()} == {3}
    # One of the gains, 5, is a loss: the sum is as large, up or down, if those that are losses add up to 5 at most. Of
    # different numbers, 1 + 1 + 1 + 2 + 2 + 3 sets add up to 0, 1, 2, 3, 4 and 5.
    mixed = of_one + np.where(gains == 5, -gains, gains)
    assert compare_configurations({"one": of_one, "mixed": mixed})["one", "mixed"].p == pytest.approx(2 * 10 / 2**10)


def runs(preset: str, candidate: Any, configurations: list[Any], score: Any, seeds: int) -> list[Any]:
    labels = [read_setting(candidate.setting(each)).label for each in configurations]
    conditions = read_config(str(COMPARISONS / f"{preset}.yml")).conditions[0].description()
    return [
        record(label, env, seed, score(configuration) + seed, conditions=conditions)
        for label, configuration in zip(labels, configurations, strict=True)
        for env in ("A-v0", "B-v0")
        for seed in range(seeds)
    ]


def test_correlations_while_the_others_stay_the_same() -> None:
    """What is left of ranks once a line through those of the other column is taken from them, and its correlation."""
    generator = np.random.default_rng(0)
    one = generator.permutation(12).astype(float)
    other = np.argsort(np.argsort(one + generator.normal(0, 4, 12))).astype(float)
    scores = np.argsort(np.argsort(one + generator.normal(0, 2, 12))).astype(float)
    found, p = partial_correlations(np.exp(np.column_stack([one, other])), scores)
    assert found[0] == pytest.approx(np.corrcoef(residue(one, other), residue(scores, other))[0, 1])
    # The p value of the same slope in a regression on both columns: t = slope / its standard error, with 9 degrees.
    design = np.column_stack([one, other, np.ones(12)])
    coefficients, squares, *_ = np.linalg.lstsq(design, scores, rcond=None)
    error = np.sqrt(squares[0] / 9 * np.linalg.inv(design.T @ design)[0, 0])
    assert p[0] == pytest.approx(2 * student.sf(abs(coefficients[0] / error), 9))


def residue(column: np.ndarray, other: np.ndarray) -> np.ndarray:
    return column - np.polyval(np.polyfit(other, column, 1), other)


def test_what_the_scores_of_random_configurations_depend_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Clipping scores more with more epochs, no limit less with larger steps, and nothing else matters.

    The penalty gains a little over no limit with the same configuration.
    """
    noise = iter(np.random.default_rng(0).normal(0, 0.3, 2 * 2 * N_RANDOM))
    log = np.log
    found = runs("robustness-random", CLIPPING, CLIPPING.at_random, lambda each: log(each.n_epochs) + next(noise), 1)
    found += runs(
        "robustness-random", UNLIMITED, UNLIMITED.at_random, lambda each: next(noise) - log(each.learning_rate), 1
    )
    scores = [each["score"] for each in found if each["env"] == "A-v0"][N_RANDOM:]
    gained = dict(zip(PENALTY.at_random, np.array(scores) + 0.1, strict=True))
    found += runs("robustness-random", PENALTY, PENALTY.at_random, gained.__getitem__, 1)
    records.pack(found, tmp_path / "random.jsonl.gz")
    assert main(["robustness", "--from", str(tmp_path / "random.jsonl.gz")]) == 0
    said = re.sub(" +", " ", capsys.readouterr().out)
    assert "| objective | coefficient | learning_rate | n_epochs | n_steps |" in said
    assert "fixed KL is better than no limit" in said
    clipping, _, unlimited = re.findall(r"^\| (?:clipping|fixed KL|no limit) \|(.*)\|$", said, re.MULTILINE)[-3:]
    assert re.fullmatch(r" -?0\.\d\d \| -?0\.\d\d \| 0\.9\d \* \| -?0\.\d\d ", clipping)
    assert re.fullmatch(r" \| -0\.9\d \* \| -?0\.\d\d \| -?0\.\d\d ", unlimited)
