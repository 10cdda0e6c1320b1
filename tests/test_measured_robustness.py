"""The page about robustness says what the committed records say."""

import re

import numpy as np
import pandas as pd
import pytest
from committed import HAS_PICTURES, ROOT, needs_records, section

from benchmarks import robustness
from benchmarks.__main__ import main
from sb3_ppo_variants.compare import records, statistics
from sb3_ppo_variants.compare.records import RANDOM, Record
from sb3_ppo_variants.compare.robustness import CANDIDATES, SAMPLES, VARIED

pytestmark = needs_records
FILE = ROOT / "results" / "robustness.jsonl.gz"
PAGE = ROOT / "docs" / "robustness.md"
CLIPPING, ADAPTIVE, FIXED, SPO, UNLIMITED = NAMES = [candidate.name for candidate in CANDIDATES]


@pytest.fixture(scope="module")
def found() -> list[Record]:
    runs, problems = records.unpack(FILE)
    assert not problems and {run["env"] for run in runs} == {"HalfCheetah-v5"}
    return runs


@pytest.fixture(scope="module")
def frame(found: list[Record]) -> pd.DataFrame:
    """The runs of the random configurations with the first seed."""
    measured = robustness.scaled(found)
    assert not measured["failed"].any()
    first = measured[measured["is_random"] & (measured["seed"] == 0)]
    assert first.groupby("candidate").size().to_dict() == dict.fromkeys(NAMES, SAMPLES)
    return first


@pytest.fixture(scope="module")
def means(frame: pd.DataFrame) -> dict[str, pd.Series]:
    return {name: frame[frame["candidate"] == name].set_index("value")["scaled"] for name in NAMES}


@pytest.fixture(scope="module")
def page() -> str:
    return " ".join(PAGE.read_text().split())


def test_the_page_has_the_tables_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["robustness", "--from", str(FILE)]) == 0
    tables = re.findall(r"(?:^\|.*\n)+", capsys.readouterr().out, re.MULTILINE)
    assert tables == re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE) and len(tables) == 5
    assert not HAS_PICTURES or (PAGE.parent / "robustness" / "at-random.png").exists()


def test_the_ranges(found: list[Record], page: str) -> None:
    rate, epochs, steps = VARIED.values()
    clips, targets, penalties, spo, _ = (candidate.values for candidate in CANDIDATES)
    assert (
        f"the same {SAMPLES} random configurations of the step size ({rate[0]} to {rate[-1]}), the epochs ({epochs[0]} "
        f"to {epochs[-1]}) and the steps of a rollout ({steps[0]} to {steps[-1]})."
    ) in page
    assert (
        f"from {clips[0]} to {clips[-1]}, d_targ of the adaptive KL penalty from {targets[0]} to {targets[-1]}," in page
    )
    assert f"and β of the fixed one from {penalties[0]} to {penalties[-1]}." in page and spo == clips
    clip, target, penalty, *_ = (candidate.default.coefficient for candidate in CANDIDATES)
    assert f"Table 3 of the paper with ε = {clip}, d_targ = {target} and β = {penalty}." in page
    assert {run["timesteps"] for run in found if run["label"] != RANDOM} == {500_000} and "500,000 steps in" in page


def test_which_objectives_differ(means: dict[str, pd.Series], page: str) -> None:
    differences = robustness.compare_configurations(means)
    better = {pair for pair, each in differences.items() if each.is_beyond_noise and each.estimate.value > 0}
    assert better == {(CLIPPING, ADAPTIVE), (CLIPPING, SPO), (CLIPPING, UNLIMITED)}
    score = {name: f"{scores.mean():.2f}" for name, scores in means.items()}
    assert (
        f"clipping does. With random hyperparameters, it scores {score[CLIPPING]} on average, which is better [beyond "
        f"noise](#how-it-was-measured) than the adaptive KL penalty ({score[ADAPTIVE]}), SPO ({score[SPO]}) and no "
        f"limit ({score[UNLIMITED]}). The fixed KL penalty ({score[FIXED]}) cannot be told apart from any"
    ) in page


def test_few_and_many_configurations(means: dict[str, pd.Series], page: str) -> None:
    quartiles = {name: scores.quantile(0.25) for name, scores in means.items()}
    others = max(quartile for name, quartile in quartiles.items() if name != CLIPPING)
    assert f"lower quartile is {quartiles[CLIPPING]:.2f}, and that of the others is {others:.2f} or less" in page
    # The mean of the best of 16 random ones, by drawing them.
    generator = np.random.default_rng(0)
    best = {
        name: np.mean([generator.choice(scores, 16, replace=False).max() for _ in range(20_000)])
        for name, scores in means.items()
    }
    assert max(best, key=lambda name: best[name]) == FIXED
    said = re.search(r"the highest best score, (\S+) with 16 configurations and clipping (\S+)\. ", page)
    assert said and [float(each) for each in said.groups()] == pytest.approx([best[FIXED], best[CLIPPING]], abs=0.01)


def test_the_scale(found: list[Record], frame: pd.DataFrame, page: str) -> None:
    low, high = np.percentile(frame["score"], [5, 95])
    assert f"5th percentile of all {len(frame)} runs, a return of {low:.0f}, and 1 is the 95th, {high:,.0f}." in page
    (random,) = {run["score"] for run in found if run["label"] == RANDOM}
    assert random is not None and f"The random policy returns {random:.0f}." in page


def test_the_best_with_fresh_seeds(found: list[Record], means: dict[str, pd.Series], page: str) -> None:
    measured = robustness.scaled(found)
    again = measured[measured["is_random"] & (measured["seed"] > 0)]
    defaults = measured[~measured["is_random"]]
    for name, scores in means.items():
        assert {*again[again["candidate"] == name]["value"]} == {scores.idxmax()}
    assert {*again["seed"]} == {*range(1, 7)} and {*defaults["seed"]} == {*range(6)} and {*defaults["changed"]} == {""}
    best, by_default = ({name: of(runs, name) for name in NAMES} for runs in (again, defaults))
    assert {array.shape for array in (*best.values(), *by_default.values())} == {(6, 1)}
    searched, fresh = [each.max() for each in means.values()], [each.mean() for each in best.values()]
    assert f"In the search they scored {min(searched):.2f} to {max(searched):.2f}, and" in page
    assert f"with fresh seeds they score {min(fresh):.2f} to {max(fresh):.2f}. That is less than the default" in page
    assert f"each objective scored {min(searched):.2f} to {max(searched):.2f}. With fresh" in page
    assert f"they score {min(fresh):.2f} to {max(fresh):.2f}, and none of them is better" in page
    assert [name for name in NAMES if best[name].mean() > by_default[name].mean()] == [SPO]
    assert (statistics.holm(statistics.p_values([(best[name], by_default[name]) for name in NAMES])) > 0.05).all()
    assert "none of the five differs from its default beyond noise" in page


def of(runs: pd.DataFrame, name: str) -> np.ndarray:
    """Return the scores of a candidate's runs, shape ``(seeds, 1)``."""
    return runs[runs["candidate"] == name]["scaled"].to_numpy()[:, None]


def test_which_differ_when_tuned_and_by_default(found: list[Record], page: str) -> None:
    measured = robustness.scaled(found)
    again, defaults = measured[measured["is_random"] & (measured["seed"] > 0)], measured[~measured["is_random"]]
    better = [
        {pair for pair, each in statistics.differences({name: of(runs, name) for name in NAMES}).items()
         if each.is_beyond_noise and each.estimate.value > 0}
        for runs in (again, defaults)
    ]  # fmt: skip
    assert better == [set(), {(CLIPPING, SPO), (FIXED, SPO)}]
    assert "With the best configurations, no two objectives differ either." in page
    assert "With the defaults, clipping and the fixed KL penalty are better than SPO." in page


def test_the_size_of_updates(frame: pd.DataFrame, page: str) -> None:
    assert f"the mean scores of all {len(frame)} runs" in page
    within = frame["kl"].between(0.01, 1)
    counts = frame[within].groupby("candidate").size()
    assert f"over the {SAMPLES} runs of each objective" in page
    assert f"Of the {SAMPLES} runs of clipping, {counts[CLIPPING]} are between 0.01 and 1." in page
    assert f"Those are {counts[ADAPTIVE]} of the adaptive KL penalty, {counts[FIXED]} of the fixed one, and" in page
    assert f"and {counts[SPO]} of SPO and of no limit." in page and counts[SPO] == counts[UNLIMITED]
    assert "Without a limit, all others are above; with SPO, all others are below" in page
    outside = frame[~within].set_index("candidate")["kl"]
    assert (outside[SPO] < 0.01).all() and (outside[UNLIMITED] > 1).all()
    groups = frame.groupby([within, pd.cut(frame["kl"], [0, *robustness.SIZES, np.inf])], observed=True)[
        "scaled"
    ].mean()
    assert groups[True].min() > groups[False].max()
    assert "agents learn most if the KL of an update is between 0.01 and 1" in page


def test_what_scores_depend_on(page: str) -> None:
    table = section("What scores depend on", PAGE)
    rows = dict(re.findall(r"^\| (\S.*?) +\| (.*\|.*\|.*\|.*) \|$", table, re.MULTILINE)[1:])
    signs = {
        name: [float(cell.strip("* ") or 0) * ("*" in cell) for cell in row.split("|")] for name, row in rows.items()
    }
    assert {name: [int(np.sign(each)) for each in row] for name, row in signs.items()} == {
        CLIPPING: [0, 0, 0, 0],
        ADAPTIVE: [0, -1, -1, 0],
        FIXED: [0, 0, 0, 0],
        SPO: [1, 0, 0, -1],
        UNLIMITED: [0, -1, -1, 0],
    }
    assert "Clipping and the fixed KL penalty depend on none of their hyperparameters beyond noise." in page
    assert "The adaptive KL penalty and no limit score less with larger steps and more epochs." in page
    assert "SPO scores more with a larger ε and with shorter rollouts" in page
    cells = [cell for row in rows.values() for cell in row.split("|") if cell.strip()]
    assert f"corrected for all {len(cells)}." in page


def test_what_the_runs_cost(found: list[Record], page: str) -> None:
    hours = sum(run["cpu_seconds"] or 0 for run in found) / 3600
    assert f"took {hours:.1f} core hours in all" in page and len(found) == 5 * (SAMPLES + 6 + 6) + 2
