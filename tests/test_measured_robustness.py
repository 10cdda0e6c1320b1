"""The page about robustness says what the committed records say."""

import re

import numpy as np
import pandas as pd
import pytest
from committed import HAS_PICTURES, ROOT, better, needs_records, section

from benchmarks.__main__ import main
from benchmarks.robustness.at_random import SIZES, compare_configurations
from benchmarks.robustness.scores import scaled
from sb3_ppo_variants.compare import records, statistics
from sb3_ppo_variants.compare.records import RANDOM, Record
from sb3_ppo_variants.compare.robustness import CANDIDATES, N_RANDOM, VARIED

pytestmark = needs_records
FILE = ROOT / "results" / "robustness.jsonl.gz"
PAGE = ROOT / "docs" / "robustness.md"
CLIPPING, ADAPTIVE, FIXED, SPO, UNLIMITED = NAMES = [candidate.name for candidate in CANDIDATES]
BIPEDAL, CHEETAH, HOPPER, SWIMMER, WALKER = ENVS = [
    "BipedalWalker-v3", "HalfCheetah-v5", "Hopper-v5", "Swimmer-v5", "Walker2d-v5",
]  # fmt: skip
# In these, one configuration for all was chosen.
CHOSEN_IN = [CHEETAH, HOPPER, SWIMMER]
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
    runs = scaled(found)
    assert not runs["failed"].any()
    return runs


@pytest.fixture(scope="module")
def frame(measured: pd.DataFrame) -> pd.DataFrame:
    """The runs of the random configurations with the first seed."""
    first = measured[measured["is_random"] & (measured["seed"] == 0)]
    assert (first.groupby(["env", "candidate"]).size() == N_RANDOM).all() and len(first) == len(ENVS) * 5 * N_RANDOM
    return first


@pytest.fixture(scope="module")
def scores(frame: pd.DataFrame) -> dict[str, Means]:
    """The scores of each objective by the number of the configuration: in each environment, and in the mean of all.

    There is also the mean of the environments in which one configuration for all was chosen.
    """
    of = {
        name: frame[frame["candidate"] == name].pivot(index="value", columns="env", values="scaled") for name in NAMES
    }
    return {
        **{env: {name: table[env] for name, table in of.items()} for env in ENVS},
        "mean": {name: table.mean(axis="columns") for name, table in of.items()},
        "chosen": {name: table[CHOSEN_IN].mean(axis="columns") for name, table in of.items()},
    }


@pytest.fixture(scope="module")
def page() -> str:
    return " ".join(PAGE.read_text().split())


def test_the_page_has_the_tables_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["robustness", "--from", str(FILE)]) == 0
    tables = re.findall(r"(?:^\|.*\n)+", capsys.readouterr().out, re.MULTILINE)
    assert tables == re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE) and len(tables) == 13
    assert not HAS_PICTURES or (PAGE.parent / "robustness" / "at-random.png").exists()


def test_the_ranges(found: list[Record], page: str) -> None:
    rate, epochs, steps = VARIED.values()
    clips, targets, penalties, spo, _ = (candidate.values for candidate in CANDIDATES)
    assert (
        f"the same {N_RANDOM} random configurations of the step size ({rate[0]} to {rate[-1]}), the epochs "
        f"({epochs[0]} to {epochs[-1]}) and the steps of a rollout ({steps[0]} to {steps[-1]})."
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
    compared = {where: compare_configurations(scores[where]) for where in ("mean", *ENVS)}
    assert {where: better(differences) for where, differences in compared.items()} == {
        "mean": LIMITS_ARE_BETTER | {(ADAPTIVE, SPO)},
        BIPEDAL: LIMITS_ARE_BETTER,
        CHEETAH: {(CLIPPING, ADAPTIVE), (CLIPPING, SPO), (CLIPPING, UNLIMITED)},
        HOPPER: LIMITS_ARE_BETTER | {(ADAPTIVE, SPO)},
        SWIMMER: LIMITS_ARE_BETTER,
        WALKER: {(CLIPPING, UNLIMITED), (ADAPTIVE, UNLIMITED), (FIXED, UNLIMITED), (CLIPPING, SPO), (ADAPTIVE, SPO)},
    }
    score = {name: f"{of.mean():.2f}" for name, of in scores["mean"].items()}
    assert (
        f"With random hyperparameters, the adaptive KL penalty scores {score[ADAPTIVE]} on average over BipedalWalker, "
        f"HalfCheetah, Hopper, Swimmer and Walker2d, clipping {score[CLIPPING]}, the fixed KL penalty {score[FIXED]}, "
        f"SPO {score[SPO]}, and no limit {score[UNLIMITED]}. All four limits are better than none [beyond "
        "noise](#how-it-was-measured), and the adaptive KL penalty is better than SPO, but only just "
        f"(p = {compared['mean'][ADAPTIVE, SPO].p:.2g})."
    ) in page
    for sentence in (
        "- In HalfCheetah, clipping is better than the adaptive KL penalty and SPO. - In Hopper, the adaptive KL "
        "penalty is better than SPO. - In Walker2d, clipping and the adaptive KL penalty are better than SPO. - In "
        "BipedalWalker and Swimmer, no two limits differ.",
        "In BipedalWalker and Swimmer, all four limits are better than none beyond noise, and nothing else differs. In "
        "HalfCheetah, clipping is better than the adaptive KL penalty, SPO and no limit, and nothing else differs.",
        "In Hopper, all four limits are better than none, and the adaptive KL penalty is better than SPO. In Walker2d, "
        "clipping and both KL penalties are better than none, clipping and the adaptive one are better than SPO, and "
        "nothing else differs.",
    ):
        assert sentence in page
    # What the FAQ says of configurations that were searched for is what BETTER and HELD_OUT say.
    faq = " ".join((PAGE.parent / "faq.md").read_text().split())
    assert "(robustness.md), clipping is better than the adaptive penalty in HalfCheetah." in faq
    assert (CLIPPING, ADAPTIVE) in BETTER[WALKER][0] and (ADAPTIVE, CLIPPING) in HELD_OUT[WALKER][2]
    assert "clipping is better than the adaptive penalty in Walker2d if both were tuned there, and the adaptive" in faq
    # Nothing is better than clipping, and no limit is worse than all others in the mean.
    which = " ".join((PAGE.parent / "which_objective.md").read_text().split())
    assert "none of four others scores more beyond noise in five environments." in which
    assert "than clipping, both penalties and SPO, averaged over five environments." in which


def test_few_and_many_configurations(scores: dict[str, Means], page: str) -> None:
    means = scores["mean"]
    quartiles = {name: of.quantile(0.25) for name, of in means.items()}
    others = max(quartile for name, quartile in quartiles.items() if name not in (CLIPPING, ADAPTIVE))
    assert (
        f"clipping have the highest lower quartiles, {quartiles[ADAPTIVE]:.2f} and {quartiles[CLIPPING]:.2f}, and "
        f"those of the others are {others:.2f} or less."
    ) in page
    # The mean of the best of 16 random ones, by drawing them, and the best of all 32.
    generator = np.random.default_rng(0)
    best = {
        name: (np.mean([generator.choice(of, 16, replace=False).max() for _ in range(20_000)]), of.max())
        for name, of in means.items()
    }
    highest = (CLIPPING, SPO, ADAPTIVE)
    assert all({*sorted(best, key=lambda name: best[name][i])[-3:]} == {*highest} for i in (0, 1))
    said = re.search(
        r"clipping, SPO and the adaptive KL penalty have the highest best scores, (\S+), (\S+) and (\S+) with 16 "
        r"configurations, and (\S+), (\S+) and (\S+) with 32\. ",
        page,
    )
    expected = [best[name][i] for i in (0, 1) for name in highest]
    assert said and [float(each) for each in said.groups()] == pytest.approx(expected, abs=0.01)


def test_the_scale(found: list[Record], frame: pd.DataFrame, page: str) -> None:
    runs = frame.groupby("env")["score"]
    assert {*runs.size()} == {160} and "the 5th percentile of the 160 runs, and 1 is the 95th" in page
    ends = [np.percentile(runs.get_group(env), [5, 95]) for env in ENVS]
    returns = [f"of {low:.0f} and {high:,.0f} in {env}" for env, (low, high) in zip(ENVS, ends, strict=True)]
    assert f"returns {', '.join(returns[:-1])}, and {returns[-1]}." in page
    random = {run["env"]: run["score"] or 0.0 for run in found if run["label"] == RANDOM}
    of_random = [f"{random[env]:.0f}" for env in ENVS]
    assert f"returns {', '.join(of_random[:-1])} and {of_random[-1]}." in page


# The objectives whose best configuration scores more than the default, and those for which that is beyond noise.
TUNED: dict[str, tuple[list[str], list[str]]] = {
    BIPEDAL: ([CLIPPING, ADAPTIVE, SPO, UNLIMITED], [UNLIMITED]),
    CHEETAH: ([SPO], []),
    HOPPER: ([FIXED, SPO, UNLIMITED], [UNLIMITED]),
    SWIMMER: (NAMES, []),
    WALKER: ([CLIPPING, SPO, UNLIMITED], [CLIPPING]),
}
# The pairs of which the first is better than the second beyond noise, with the best configurations and by default.
BETTER: dict[str, tuple[Pairs, Pairs]] = {
    BIPEDAL: (set(), LIMITS_ARE_BETTER),
    CHEETAH: (set(), {(CLIPPING, SPO), (FIXED, SPO)}),
    HOPPER: ({(FIXED, UNLIMITED)}, LIMITS_ARE_BETTER | {(name, SPO) for name in (CLIPPING, ADAPTIVE, FIXED)}),
    SWIMMER: (LIMITS_ARE_BETTER, LIMITS_ARE_BETTER),
    WALKER: (
        LIMITS_ARE_BETTER | {(CLIPPING, ADAPTIVE), (CLIPPING, SPO), (ADAPTIVE, SPO), (FIXED, SPO)},
        LIMITS_ARE_BETTER | {(FIXED, SPO)},
    ),
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
            of_random = [scores[where][name].idxmax() for where in (env, "chosen")]
            assert {*again[again["candidate"] == name]["value"]} >= {*of_random}
        best = {name: of(again, name, scores[env][name].idxmax()) for name in NAMES}
        found[env] = best, {name: of(defaults, name) for name in NAMES}
    return found


@pytest.fixture(scope="module")
def shared(measured: pd.DataFrame, scores: dict[str, Means]) -> Arrays:
    """What the configuration with the best mean where one for all was chosen scores with fresh seeds, in all five."""
    again = measured[measured["is_random"] & (measured["seed"] > 0)]
    best = {name: of_random.idxmax() for name, of_random in scores["chosen"].items()}
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
    searched, again = (
        [f"{min(each):.2f} to {max(each):.2f}" for each in of_all]
        for of_all in (
            [[of_random.max() for of_random in scores[env].values()] for env in ENVS],
            [[array.mean() for array in fresh[env][0].values()] for env in ENVS],
        )
    )
    assert (
        f"of each objective scored {searched[0]} in BipedalWalker, {searched[1]} in HalfCheetah, {searched[2]} in "
        f"Hopper, {searched[3]} in Swimmer, and {searched[4]} in Walker2d. With fresh seeds, they score "
        f"{', '.join(again[:-1])}, and {again[-1]}, and only three of the twenty-five are better than the default "
        "beyond noise: those of no limit in BipedalWalker and Hopper, and of clipping in Walker2d."
    ) in page
    for sentence in (
        "with six other seeds, beside six seeds of the default: Table 3",
        "That is more than the default for all objectives but the fixed KL penalty, and beyond noise for no limit "
        "alone. With the best configurations, no two objectives differ. With the defaults, all four limits are better "
        "than none, and no two of them differ.",
        "That is less than the default for all objectives but SPO, and none of the five differs from its default",
        "With the best configurations, no two objectives differ either. With the defaults, clipping and the fixed KL",
        "That is more than the default for the fixed KL penalty, SPO and no limit, and beyond noise for no limit alone."
        " With the best configurations, the fixed KL penalty is better than no limit, and no other two objectives "
        "differ.",
        "With the defaults, all four limits are better than none, and clipping and both KL penalties are better than",
        "That is more than the default for all objectives, but none of the five differs from its default beyond noise.",
        "With the best configurations and with the defaults, all four limits are better than none, and no two of them",
        "That is more than the default for clipping, SPO and no limit, and beyond noise for clipping alone. With the "
        "best configurations, all four limits are better than none, clipping and both KL penalties are better than "
        "SPO, and clipping is better than the adaptive KL penalty. With the defaults, all four limits are better than "
        "none, and the fixed KL penalty is better than SPO.",
    ):
        assert sentence in page


def test_one_configuration_for_all_environments(
    fresh: dict[str, tuple[Arrays, Arrays]], shared: Arrays, scores: dict[str, Means], page: str
) -> None:
    own, defaults = ({name: np.hstack([fresh[env][i][name] for env in ENVS]) for name in NAMES} for i in (0, 1))
    gain = {name: own[name].mean() - shared[name].mean() for name in NAMES}
    least, most = (choose(gain, key=lambda name: gain[name]) for choose in (min, max))
    assert (least, most) == (UNLIMITED, FIXED)
    assert f"scores {gain[least]:.2f} (no limit) to {gain[most]:.2f} (fixed KL) more than the one for all." in page
    in_search = {
        name: np.mean([scores[env][name].max() for env in ENVS]) - scores["mean"][name].max() for name in NAMES
    }
    assert all(gain[name] < in_search[name] for name in NAMES)
    low, high = min(in_search.values()), max(in_search.values())
    assert f"The sensitivity of the search is higher for each objective, {low:.2f} to {high:.2f}." in page
    # In the environments in which both are the same configuration, they have the same runs.
    pairs = []
    for name in NAMES:
        differ = [scores[env][name].idxmax() != scores["chosen"][name].idxmax() for env in ENVS]
        assert (shared[name] == own[name]).all(axis=0).tolist() == [not each for each in differ]
        pairs.append((shared[name][:, differ], own[name][:, differ]))
    assert apart_in(pairs) == {FIXED: False}
    assert [name for name in NAMES if scores["chosen"][name].idxmax() != scores["mean"][name].idxmax()] == [FIXED]
    assert "For all but the fixed KL penalty, it has the best mean of all five, too:" in page
    found = apart_in([(shared[name], defaults[name]) for name in NAMES])
    assert found == {FIXED: False, SPO: True, UNLIMITED: True}
    assert sorted(NAMES, key=lambda name: -defaults[name].mean())[-2:] == [SPO, UNLIMITED]
    assert better(statistics.differences(defaults)) == LIMITS_ARE_BETTER | {
        (name, SPO) for name in (CLIPPING, ADAPTIVE, FIXED)
    }
    assert better(statistics.differences(shared)) == {
        *((name, UNLIMITED) for name in (CLIPPING, ADAPTIVE, SPO)),
        *((name, FIXED) for name in (CLIPPING, ADAPTIVE)),
    }
    for sentence in (
        "One configuration for all five is better than the default beyond noise for SPO and for no limit, whose "
        "defaults score least, and worse for the fixed KL penalty.",
        "It is better beyond noise for the fixed KL penalty alone.",
        "One configuration for all is better than the default beyond noise for SPO and no limit, and worse for the "
        "fixed KL penalty. With it, clipping and the adaptive KL penalty are better than the fixed KL penalty and no "
        "limit, SPO is better than no limit, and no other two objectives differ. With the defaults, all four limits "
        "are better than none, and clipping and both KL penalties are better than SPO.",
    ):
        assert sentence in page


def apart_in(pairs: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, bool]:
    """Return the objectives of which two sets of scores differ beyond noise, and if the first is the better one.

    :param pairs: two sets for each objective, all of shape ``(seeds, environments)``; no environments if both are the
        same runs
    """
    several = {name: pair for name, pair in zip(NAMES, pairs, strict=True) if pair[0].size}
    corrected = statistics.holm(statistics.p_values(list(several.values())))
    return {
        name: one.mean() > other.mean()
        for (name, (one, other)), p in zip(several.items(), corrected, strict=True)
        if p <= 0.05
    }


# Where one configuration for all differs from the best of an environment's own search and from its default, both with
# whether it is the better one; which objectives are better than which with it; and what the page says.
HELD_OUT: dict[str, tuple[dict[str, bool], dict[str, bool], Pairs, str]] = {
    BIPEDAL: (
        {},
        {FIXED: False, UNLIMITED: True},
        set(),
        "It differs from the best of BipedalWalker's own search for no objective, as far as six seeds can tell. It is "
        "better than the default for no limit, and worse for the fixed KL penalty. With it, no two objectives differ.",
    ),
    WALKER: (
        {CLIPPING: False, ADAPTIVE: True, FIXED: False, UNLIMITED: True},
        {FIXED: False, UNLIMITED: True},
        {(ADAPTIVE, CLIPPING), *((name, other) for name in (ADAPTIVE, CLIPPING) for other in (FIXED, SPO, UNLIMITED))},
        "For clipping and the fixed KL penalty, it is worse beyond noise than the best of Walker2d's own search, and "
        "for the adaptive KL penalty and no limit, it is better. It is better than the default for no limit, and worse "
        "for the fixed KL penalty. With it, the adaptive KL penalty is better than all others, and clipping is better "
        "than the other three.",
    ),
}


@pytest.mark.parametrize("env", HELD_OUT)
def test_one_configuration_where_it_was_not_chosen(
    fresh: dict[str, tuple[Arrays, Arrays]], shared: Arrays, env: str, page: str
) -> None:
    own, defaults = fresh[env]
    others = {name: of_all[:, [ENVS.index(env)]] for name, of_all in shared.items()}
    # Where both are the same configuration, they have the same runs, and there is nothing to compare.
    same = {name for name in NAMES if (own[name] == others[name]).all()}
    assert same == ({SPO} if env == WALKER else set())
    pairs = [(others[name][:, name in same :], own[name][:, name in same :]) for name in NAMES]
    from_own, from_default, differ, said = HELD_OUT[env]
    assert apart_in(pairs) == from_own
    assert apart_in([(others[name], defaults[name]) for name in NAMES]) == from_default
    assert better(statistics.differences(others)) == differ
    assert said in page


def test_the_size_of_updates(frame: pd.DataFrame, page: str) -> None:
    assert f"the mean scores of all {len(frame)} runs" in page
    assert f"over the {len(ENVS) * N_RANDOM} runs of each objective" in page
    sizes = pd.cut(frame["kl"], [0, *SIZES, np.inf], labels=False)
    means = frame.groupby(["env", sizes])["scaled"].mean().unstack("env")
    # Of 0 to 7, the groups between the sizes that the page names.
    for env, most, said in (
        (BIPEDAL, [1, 2, 3, 4], "0.001 and 0.1"),
        (CHEETAH, [3, 4, 5, 6], "0.01 and 1"),
        (HOPPER, [2, 3, 4], "0.003 and 0.1"),
        (SWIMMER, [1, 2, 3, 4], "0.001 and 0.1"),
        (WALKER, [2, 3, 4], "0.003 and 0.1"),
    ):
        assert means[env][most].min() > means[env].drop(most).max()
        ends = [SIZES[most[0] - 1], SIZES[most[-1]]]
        assert [float(end) for end in said.split(" and ")] == ends
        alike = next(pair for pair in ([HOPPER, WALKER], [BIPEDAL, SWIMMER], [env]) if env in pair)
        named = " and ".join(each.split("-")[0] for each in alike)
        assert f"In {named}, {'agents' if env == CHEETAH else 'they'} learn most where" in page
        assert f"learn most where {'the KL' if env == CHEETAH else 'it'} is between {said}." in page
    among, others = means.loc[[3, 4]].to_numpy(), means.drop([3, 4])
    assert (others.min(axis="columns") < among.min()).all() and (means.loc[7] < 0.2).all()
    assert (
        "Where its median over a run is between 0.01 and 0.1, the mean scores in the five environments are "
        f"{among.min():.2f} to {among.max():.2f}, and above 1, they are below 0.2."
    ) in page
    above = frame[frame["kl"] > 1].groupby("candidate").size()
    assert {*above.index} == {CLIPPING, FIXED, UNLIMITED}
    assert (
        f"In all five, they learn little where it is above 1. Those are {above[UNLIMITED]} of the "
        f"{len(ENVS) * N_RANDOM} runs without a limit, {above[FIXED]} of the fixed KL penalty, {above[CLIPPING]} of "
        "clipping, and none of the adaptive KL"
    ) in page
    assert above[UNLIMITED] > len(ENVS) * N_RANDOM / 2 and "Most runs without a limit have a median above 1." in page
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
    assert f"took {hours:.1f} core hours in all" in page


def test_which_runs_no_table_counts(measured: pd.DataFrame, scores: dict[str, Means], page: str) -> None:
    again = measured[measured["is_random"] & (measured["seed"] > 0)]
    rest = [
        env
        for env, name, value in again[["env", "candidate", "value"]].itertuples(index=False)
        if value not in {scores[where][name].idxmax() for where in (env, "chosen")}
    ]
    assert {*rest} == {SWIMMER}
    assert f"The committed file also has {len(rest)} runs in Swimmer that no table counts" in page
