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
CHEETAH, SWIMMER = ENVS = ["HalfCheetah-v5", "Swimmer-v5"]
Means = dict[str, pd.Series]
Arrays = dict[str, np.ndarray]
Pairs = set[tuple[str, str]]
LIMITS_ARE_BETTER: Pairs = {(name, UNLIMITED) for name in (CLIPPING, ADAPTIVE, FIXED, SPO)}


@pytest.fixture(scope="module")
def found() -> list[Record]:
    runs, problems = records.unpack(FILE)
    assert not problems and {run["env"] for run in runs} == {*ENVS}
    return runs


@pytest.fixture(scope="module")
def measured(found: list[Record]) -> pd.DataFrame:
    runs = robustness.scaled(found)
    assert not runs["failed"].any()
    return runs


@pytest.fixture(scope="module")
def frame(measured: pd.DataFrame) -> pd.DataFrame:
    """The runs of the random configurations with the first seed."""
    first = measured[measured["is_random"] & (measured["seed"] == 0)]
    assert (first.groupby(["env", "candidate"]).size() == SAMPLES).all() and len(first) == 2 * 5 * SAMPLES
    return first


@pytest.fixture(scope="module")
def scores(frame: pd.DataFrame) -> dict[str, Means]:
    """The scores of each objective by the number of the configuration, in each environment and in the mean of both."""
    of = {
        name: frame[frame["candidate"] == name].pivot(index="value", columns="env", values="scaled") for name in NAMES
    }
    return {
        **{env: {name: table[env] for name, table in of.items()} for env in ENVS},
        "mean": {name: table.mean(axis="columns") for name, table in of.items()},
    }


@pytest.fixture(scope="module")
def page() -> str:
    return " ".join(PAGE.read_text().split())


def better(differences: statistics.Differences) -> Pairs:
    """Return the pairs of which the first is better than the second beyond noise."""
    return {pair for pair, each in differences.items() if each.is_beyond_noise and each.estimate.value > 0}


def test_the_page_has_the_tables_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["robustness", "--from", str(FILE)]) == 0
    tables = re.findall(r"(?:^\|.*\n)+", capsys.readouterr().out, re.MULTILINE)
    assert tables == re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE) and len(tables) == 8
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
    assert {run["timesteps"] for run in found if run["label"] != RANDOM} == {
        500_000
    } and "A run takes 500,000 steps," in page


def test_which_objectives_differ(scores: dict[str, Means], page: str) -> None:
    found = {where: better(robustness.compare_configurations(of)) for where, of in scores.items()}
    assert found == {
        "mean": LIMITS_ARE_BETTER,
        CHEETAH: {(CLIPPING, ADAPTIVE), (CLIPPING, SPO), (CLIPPING, UNLIMITED)},
        SWIMMER: LIMITS_ARE_BETTER,
    }
    score = {name: f"{of.mean():.2f}" for name, of in scores["mean"].items()}
    assert (
        f"With random hyperparameters, clipping scores {score[CLIPPING]} on average over HalfCheetah and Swimmer, the "
        f"adaptive KL penalty {score[ADAPTIVE]}, the fixed one {score[FIXED]}, SPO {score[SPO]}, and no limit "
        f"{score[UNLIMITED]}. All four limits are better than none [beyond noise](#how-it-was-measured), and no two"
    ) in page
    assert "clipping is also better than the adaptive KL penalty and SPO, but in Swimmer it is not ahead." in page
    assert max(NAMES, key=lambda name: scores[SWIMMER][name].mean()) != CLIPPING
    assert "In HalfCheetah, clipping is better beyond noise than the adaptive KL penalty, SPO and no limit, and" in page
    assert "In Swimmer, all four limits are better than none, and nothing else differs." in page
    # Nothing is better than clipping, and no limit is worse than all others in the mean.
    which = " ".join((PAGE.parent / "which_objective.md").read_text().split())
    assert "none of four others scores more beyond noise in HalfCheetah or Swimmer." in which
    assert "than clipping, both penalties and SPO, averaged over two environments." in which


def test_few_and_many_configurations(scores: dict[str, Means], page: str) -> None:
    means = scores["mean"]
    quartiles = {name: of.quantile(0.25) for name, of in means.items()}
    others = max(quartile for name, quartile in quartiles.items() if name != CLIPPING)
    assert f"lower quartile, {quartiles[CLIPPING]:.2f}, and that of the others is {others:.2f} or less." in page
    # The mean of the best of 16 random ones, by drawing them.
    generator = np.random.default_rng(0)
    best = {
        name: np.mean([generator.choice(of, 16, replace=False).max() for _ in range(20_000)])
        for name, of in means.items()
    }
    assert max(best, key=lambda name: best[name]) == SPO
    said = re.search(r"SPO has the highest best score, (\S+) with 16 configurations, and clipping has (\S+)\. ", page)
    assert said and [float(each) for each in said.groups()] == pytest.approx([best[SPO], best[CLIPPING]], abs=0.01)


def test_the_scale(found: list[Record], frame: pd.DataFrame, page: str) -> None:
    runs = frame.groupby("env")["score"]
    assert {*runs.size()} == {160} and "the 5th percentile of the 160 runs, and 1 is the 95th" in page
    (low, high), (lowest, highest) = (np.percentile(runs.get_group(env), [5, 95]) for env in ENVS)
    assert (
        f"returns of {low:.0f} and {high:,.0f} in {CHEETAH}, and of {lowest:.0f} and {highest:.0f} in {SWIMMER}."
        in page
    )
    random = {run["env"]: run["score"] or 0.0 for run in found if run["label"] == RANDOM}
    assert f"The random policy returns {random[CHEETAH]:.0f} and {random[SWIMMER]:.0f}." in page


# The objectives whose best configuration scores more than the default, and those for which that is beyond noise.
TUNED: dict[str, tuple[list[str], list[str]]] = {CHEETAH: ([SPO], []), SWIMMER: (NAMES, [])}
# The pairs of which the first is better than the second beyond noise, with the best configurations and by default.
BETTER: dict[str, tuple[Pairs, Pairs]] = {
    CHEETAH: (set(), {(CLIPPING, SPO), (FIXED, SPO)}),
    SWIMMER: (LIMITS_ARE_BETTER, LIMITS_ARE_BETTER),
}


@pytest.fixture(scope="module")
def fresh(measured: pd.DataFrame, scores: dict[str, Means]) -> dict[str, tuple[Arrays, Arrays]]:
    """The scores of the best configurations with fresh seeds, and those of the defaults, in each environment."""
    found = {}
    for env in ENVS:
        runs = measured[measured["env"] == env]
        again, defaults = runs[runs["is_random"] & (runs["seed"] > 0)], runs[~runs["is_random"]]
        assert {*again["seed"]} == {*range(1, 7)} and {*defaults["changed"]} == {""}
        for name in NAMES:
            of_random = [scores[where][name].idxmax() for where in (env, "mean")]
            assert {*again[again["candidate"] == name]["value"]} == {*of_random}
        best = {name: of(again, name, scores[env][name].idxmax()) for name in NAMES}
        found[env] = best, {name: of(defaults, name) for name in NAMES}
    return found


@pytest.fixture(scope="module")
def shared(measured: pd.DataFrame, scores: dict[str, Means]) -> Arrays:
    """What the configuration with the best mean of both environments scores with fresh seeds."""
    again = measured[measured["is_random"] & (measured["seed"] > 0)]
    best = {name: of_random.idxmax() for name, of_random in scores["mean"].items()}
    return {
        name: np.hstack([of(again[again["env"] == env], name, value) for env in ENVS]) for name, value in best.items()
    }


def of(runs: pd.DataFrame, name: str, value: float | None = None) -> np.ndarray:
    """Return the scores of a candidate's runs, or of those with one random configuration, shape ``(6, 1)``."""
    runs = runs[(runs["candidate"] == name) & ((runs["value"] == value) | (value is None))].sort_values("seed")
    assert len(runs) == 6
    return runs["scaled"].to_numpy()[:, None]


@pytest.mark.parametrize("env", ENVS)
def test_the_best_with_fresh_seeds(
    fresh: dict[str, tuple[Arrays, Arrays]], scores: dict[str, Means], env: str, page: str
) -> None:
    best, by_default = fresh[env]
    searched = [of_random.max() for of_random in scores[env].values()]
    again = [array.mean() for array in best.values()]
    assert (
        f"In the search they scored {min(searched):.2f} to {max(searched):.2f}, and with fresh seeds they score "
        f"{min(again):.2f} to {max(again):.2f}."
    ) in page
    assert [name for name in NAMES if best[name].mean() > by_default[name].mean()] == TUNED[env][0]
    corrected = statistics.holm(statistics.p_values([(best[name], by_default[name]) for name in NAMES]))
    assert [name for name, p in zip(NAMES, corrected, strict=True) if p <= 0.05] == TUNED[env][1]
    assert tuple(better(statistics.differences(each)) for each in fresh[env]) == BETTER[env]


def test_what_is_said_of_fresh_seeds(
    fresh: dict[str, tuple[Arrays, Arrays]], scores: dict[str, Means], page: str
) -> None:
    """The sentences say what the test above finds."""
    searched = [of_random.max() for of_random in scores[CHEETAH].values()]
    again = [array.mean() for array in fresh[CHEETAH][0].values()]
    assert (
        f"of each objective scored {min(searched):.2f} to {max(searched):.2f}. With fresh seeds, they score "
        f"{min(again):.2f} to {max(again):.2f}, and none of them is better than the default beyond noise."
    ) in page
    limits = [name for name in NAMES if name != UNLIMITED]
    searched = [scores[SWIMMER][name].max() for name in limits]
    again = [fresh[SWIMMER][0][name].mean() for name in limits]
    assert (
        f"In Swimmer, those of the four limits scored {min(searched):.2f} to {max(searched):.2f}, and {min(again):.2f} "
        f"to {max(again):.2f} with fresh seeds"
    ) in page
    for sentence in (
        "with six other seeds, beside six seeds of the default: Table 3",
        "That is less than the default for all objectives but SPO, and none of the five differs from its default",
        "With the best configurations, no two objectives differ either. With the defaults, clipping and the fixed KL",
        "That is more than the default for all objectives, but none of the five differs from its default beyond noise.",
        "With the best configurations and with the defaults, all four limits are better than none, and no two of them",
    ):
        assert sentence in page


def test_one_configuration_for_both_environments(
    fresh: dict[str, tuple[Arrays, Arrays]], shared: Arrays, scores: dict[str, Means], page: str
) -> None:
    own, defaults = ({name: np.hstack([fresh[env][i][name] for env in ENVS]) for name in NAMES} for i in (0, 1))
    # The best configuration of HalfCheetah is that of both, so only the runs of Swimmer can differ.
    for name in NAMES:
        assert scores["mean"][name].idxmax() == scores[CHEETAH][name].idxmax()
        assert (shared[name][:, 0] == own[name][:, 0]).all()
    gain = {name: own[name].mean() - shared[name].mean() for name in NAMES}
    least, most = (choose(gain, key=lambda name: gain[name]) for choose in (min, max))
    assert (least, most) == (UNLIMITED, ADAPTIVE)
    assert f"scores {gain[least]:.2f} (no limit) to {gain[most]:.2f} (adaptive KL) more than the one for both." in page
    in_search = [
        np.mean([scores[env][name].max() for env in ENVS]) - scores["mean"][name].max() for name in NAMES
    ]  # fmt: skip
    assert f"without the luck of the search, in which it was {min(in_search):.2f} to {max(in_search):.2f}." in page
    for others, expected in (
        ({name: array[:, 1:] for name, array in own.items()}, [ADAPTIVE, FIXED]),
        (defaults, [FIXED]),
    ):
        pairs = [(shared[name][:, -array.shape[1] :], array) for name, array in others.items()]
        p = statistics.holm(statistics.p_values(pairs))
        assert [name for name, corrected in zip(others, p, strict=True) if corrected <= 0.05] == expected
    assert shared[FIXED].mean() < defaults[FIXED].mean()
    in_swimmer = [shared[name][:, 1].mean() for name in (ADAPTIVE, FIXED)]
    of_own = [own[name][:, 1].mean() for name in (ADAPTIVE, FIXED)]
    assert (
        f"for both scores {in_swimmer[0]:.2f} and {in_swimmer[1]:.2f} in Swimmer, where the best ones score "
        f"{of_own[0]:.2f} and {of_own[1]:.2f}."
    ) in page
    limits = {(name, UNLIMITED) for name in (CLIPPING, ADAPTIVE, FIXED)}
    assert better(statistics.differences(defaults)) == limits
    with_one = {(CLIPPING, UNLIMITED), (ADAPTIVE, UNLIMITED), (SPO, UNLIMITED), (SPO, FIXED)}
    assert better(statistics.differences(shared)) == with_one
    for sentence in (
        "Nor is one configuration for both environments, and that of the fixed KL penalty is worse than its default.",
        "Of each objective, this is the best configuration of HalfCheetah.",
        "It is beyond noise for the adaptive and the fixed KL penalty, whose configuration for both scores",
        "is better than the default beyond noise for none of the objectives, and worse for the fixed KL penalty.",
        "With it, clipping, the adaptive KL penalty and SPO are better than no limit, and SPO is better than the fixed",
        "With the defaults, clipping and both KL penalties are better than no limit.",
    ):
        assert sentence in page


def test_the_size_of_updates(frame: pd.DataFrame, page: str) -> None:
    assert f"the mean scores of all {len(frame)} runs" in page
    assert f"over the {2 * SAMPLES} runs of each objective" in page
    sizes = pd.cut(frame["kl"], [0, *robustness.SIZES, np.inf], labels=False)
    means = frame.groupby(["env", sizes])["scaled"].mean().unstack("env")
    # The groups between 0.01 and 1, and those between 0.001 and 0.1, of 0 to 7.
    for env, most, said in ((CHEETAH, [3, 4, 5, 6], "0.01 and 1"), (SWIMMER, [1, 2, 3, 4], "0.001 and 0.1")):
        assert means[env][most].min() > means[env].drop(most).max()
        ends = [robustness.SIZES[most[0] - 1], robustness.SIZES[most[-1]]]
        assert [float(end) for end in said.split(" and ")] == ends
        assert f"learn most where {'the KL' if env == CHEETAH else 'it'} is between {said}." in page
    assert (means.loc[7] < 0.2).all() and "where the KL of an update is above 1, agents learn little in either" in page
    above = frame[frame["kl"] > 1].groupby("candidate").size()
    assert {*above.index} == {CLIPPING, FIXED, UNLIMITED}
    assert (
        f"they learn little where it is above 1. Those are {above[UNLIMITED]} of the {2 * SAMPLES} runs without a "
        f"limit, {above[FIXED]} of the fixed KL penalty, {above[CLIPPING]} of clipping, and none of the adaptive KL"
    ) in page
    assert (
        above[UNLIMITED] > above.sum() / 2
        and above[UNLIMITED] > SAMPLES
        and "Most runs without a limit are there" in page
    )
    assert frame.groupby("candidate")["kl"].median().idxmin() == SPO and "SPO has the smallest updates of all" in page


def test_what_scores_depend_on(page: str) -> None:
    table = section("What scores depend on", PAGE)
    rows = dict(re.findall(r"^\| (\S.*?) +\| (.*\|.*\|.*\|.*) \|$", table, re.MULTILINE)[1:])
    signs = {
        name: [float(cell.strip("* ") or 0) * ("*" in cell) for cell in row.split("|")] for name, row in rows.items()
    }
    assert {name: [int(np.sign(each)) for each in row] for name, row in signs.items()} == {
        CLIPPING: [0, 0, 0, 0],
        ADAPTIVE: [0, 0, 0, 0],
        FIXED: [0, 0, 0, 0],
        SPO: [1, 0, 0, -1],
        UNLIMITED: [0, -1, -1, 0],
    }
    assert "Clipping and both KL penalties depend on none of their hyperparameters beyond noise." in page
    assert "No limit scores less with larger steps and more epochs." in page
    assert "SPO scores more with a larger ε and with shorter rollouts" in page
    cells = [cell for row in rows.values() for cell in row.split("|") if cell.strip()]
    assert f"corrected for all {len(cells)}." in page


def test_what_the_runs_cost(found: list[Record], page: str) -> None:
    hours = sum(run["cpu_seconds"] or 0 for run in found) / 3600
    assert f"took {hours:.1f} core hours in all" in page and len(found) == 2 * (5 * (SAMPLES + 6 + 6) + 2) + 5 * 6


def test_hopper_is_not_counted_yet(page: str) -> None:
    file = "results/robustness-hopper.jsonl.gz"
    runs, problems = records.unpack(ROOT / file)
    assert not problems and {run["env"] for run in runs} == {"Hopper-v5"}
    searched = [run for run in runs if run["seed"] == 0 and run["conditions"]["preset"] == "robustness-random"]
    assert len([run for run in searched if run["label"] != RANDOM]) == 5 * SAMPLES
    assert f"They are in `{file}`, and nothing on this page counts them yet." in page
