"""The page of the study of Table 1, from records made by hand and from the committed ones."""

from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from committed import needs_records, section
from comparing import p_value, record, text_of

from benchmarks.__main__ import main
from benchmarks.study import BEGIN, END
from sb3_ppo_variants.compare import records, scores, study
from sb3_ppo_variants.compare.plan import PRESETS, RANDOM
from sb3_ppo_variants.compare.settings import read_setting
from sb3_ppo_variants.compare.statistics import holm, smallest_p

ROOT = Path(__file__).parent.parent
PRESET = PRESETS["table1-study"]
LABELS = [read_setting(text).label for text in PRESET.settings["all"]]
# In the order of LABELS: none, ε = 0.2, d_targ = 0.01, β = 1. The random policy scores 0.
AS_IN_THE_PAPER, REVERSED, NONE_IS_BEST = [-50, 100, 75, 50], [100, 0, 25, 50], [100, 75, 50, 25]


def runs(number: int, scores: list[int], envs: list[str], seeds: int = 2) -> list[Any]:
    """Create runs under one of the conditions; all seeds have the same score."""
    conditions = PRESET.studied[number].description()

    def made(label: str, env: str, seed: int, score: float) -> Any:
        return record(label, env, seed, score, conditions=conditions, name=f"{label}-{env}-{seed}-{number}")

    trainings = [
        made(label, env, seed, score)
        for label, score in zip(LABELS, scores, strict=True)
        for env in envs
        for seed in range(seeds)
    ]
    return [*trainings, *(made(RANDOM, env, 0, 0) for env in envs)]


def page_of(found: list[Any], folder: Path) -> str:
    file, page = folder / "study.jsonl.gz", folder / "page.md"
    records.pack(found, file)
    page.write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    assert main(["study", "--from", str(file), "--page", str(page)]) == 0
    assert {picture.name for picture in (folder / "page").iterdir()} == {"scores.png", "scores.svg", "scores.pdf"}
    return text_of(page)


@pytest.mark.usefixtures("blank_pictures")
def test_all_of_the_study(tmp_path: Path) -> None:
    orders = [AS_IN_THE_PAPER, NONE_IS_BEST, REVERSED, *7 * [AS_IN_THE_PAPER]]
    made = page_of([each for n, scores in enumerate(orders) for each in runs(n, scores, PRESET.envs)], tmp_path)
    assert made.startswith(f"before\n\n{BEGIN}\n\n- 320 of 320 runs are recorded\n\n###")
    assert made.endswith(f"{END}\n\nafter\n") and "old" not in made and "no run yet" not in made
    paper = "ε = 0.2, d_targ = 0.01, β = 1, none | 1.00 | yes; in 4 of 4 environments |"
    assert f"| released-code | 32 of 32 | -0.50 | 1.00 | 0.75 | 0.50 | {paper}" in made
    # Three of six pairs are in the paper's order.
    best = "none, ε = 0.2, d_targ = 0.01, β = 1 | 0.00 | no; in 0 of 4 environments |"
    assert f"| text | 32 of 32 | 1.00 | 0.75 | 0.50 | 0.25 | {best}" in made
    assert "none, β = 1, d_targ = 0.01, ε = 0.2 | -1.00 | no; in 0 of 4 environments |" in made
    assert made.count("#### ") == 4 and "| actions clipped | -50 ± 0 (2) |" in made


def test_settings_with_failed_runs_are_not_called_better() -> None:
    """Each pair differs beyond noise, in four environments with four seeds."""
    found = runs(0, AS_IN_THE_PAPER, PRESET.envs, seeds=4)
    (whole,) = study.outcomes(scores.comparisons(found))
    assert whole.apart.count("ε = 0.2 > ") == 3 and whole.apart.count(" > ") == 6
    failed: Any = {**found[0], "label": LABELS[1], "status": "failed", "name": "failed"}
    (partial,) = study.outcomes(scores.comparisons([*found, failed]))
    assert "ε = 0.2 > " not in partial.apart and partial.apart.count(" > ") == 3


def test_a_part_of_the_study(tmp_path: Path) -> None:
    whole, unequal = runs(0, AS_IN_THE_PAPER, PRESET.envs[:1], seeds=1), runs(3, AS_IN_THE_PAPER, PRESET.envs[:2])
    other: Any = record("ppo_clip", "A-v0", 0, 1)
    made = page_of([*whole, *unequal[6:], other], tmp_path)
    assert "- 14 of 320 runs are recorded\n- no run yet: text, sb3, gradients clipped at 0.5, rewards" in made
    assert "| released-code | 4 of 32 | -0.50 | 1.00 |" in made
    # Under the second condition, one setting has no runs, and another lacks an environment.
    assert "| actions clipped | 10 of 32 | | | | | | | |" in made


@pytest.mark.usefixtures("blank_pictures")
def test_all_conditions_are_compared_over_the_same_environments(tmp_path: Path) -> None:
    first, second = PRESET.envs[:2]
    more = [*runs(0, AS_IN_THE_PAPER, [first]), *runs(0, NONE_IS_BEST, [second])]
    made = page_of([*more, *runs(1, REVERSED, [first])], tmp_path)
    # Over both environments, the mean of "none" would be 0.25 instead of -0.50.
    assert "| released-code | 16 of 32 | -0.50 | 1.00 | 0.75 | 0.50 |" in made and "in 1 of 1 environments" in made
    assert f"All rows are over {first}: the environments in which all four settings have a run" in made
    apart = page_of([*runs(0, AS_IN_THE_PAPER, [first]), *runs(1, REVERSED, [second])], tmp_path)
    assert "There are no mean scores: in no environment" in apart and "| text | 8 of 32 | | | | | | | |" in apart


@pytest.mark.usefixtures("blank_pictures")
def test_all_conditions_have_one_scale(tmp_path: Path) -> None:
    """The best run has 100 under the first conditions, and 50 under the second."""
    env = PRESET.envs[0]
    made = page_of([*runs(0, AS_IN_THE_PAPER, [env]), *runs(1, [0, 50, 25, 10], [env])], tmp_path)
    assert "| released-code | 8 of 32 | -0.50 | 1.00 | 0.75 | 0.50 |" in made
    assert "| text | 8 of 32 | 0.00 | 0.50 | 0.25 | 0.10 |" in made


@pytest.mark.usefixtures("blank_pictures")
def test_only_planned_runs_count_as_done(tmp_path: Path) -> None:
    conditions = PRESET.studied[0].description()
    others = [record("trpo", PRESET.envs[0], 0, 1, conditions=conditions, name="trpo")]
    failed = record(RANDOM, "C-v0", 0, None, conditions=conditions, name="failed", status="failed", error="no")
    made = page_of([*runs(0, AS_IN_THE_PAPER, [*PRESET.envs, "C-v0"], seeds=3), *others, failed], tmp_path)
    assert "- 32 of 320 runs are recorded\n" in made and "| released-code | 32 of 32 |" in made


def test_runs_of_another_length() -> None:
    """``--timesteps`` changes the conditions of each run, and the study has the same ones."""
    found: list[Any] = [each for n in range(3) for each in runs(n, AS_IN_THE_PAPER, PRESET.envs)]
    shorter: list[Any] = [{**each, "conditions": {**each["conditions"], "timesteps": 200_000}} for each in found]
    ours, theirs = (study.outcomes(scores.comparisons(each)) for each in (found, shorter))
    assert [each.conditions for each in theirs] == [each.conditions for each in ours] and len(ours) == 3
    assert [each.comparison.conditions["timesteps"] for each in theirs] == [200_000] * 3
    both = study.outcomes(scores.comparisons([*shorter, *found]))
    assert [each.comparison.conditions["timesteps"] for each in both] == [500_000] * 3


@pytest.mark.usefixtures("blank_pictures")
def test_equal_scores_have_no_order(tmp_path: Path) -> None:
    made = page_of(
        [*runs(0, [50, 50, 50, 50], PRESET.envs[:1]), *runs(1, [50, 50, 75, 100], PRESET.envs[:1])], tmp_path
    )
    assert "| undefined | no; in 0 of 1 environments |" in made
    # "none" is as good as another setting, so it is not the worst.
    assert made.count("| no; in 0 of 1 environments |") == 2


def test_pages_and_records_that_are_not_the_studys_are_refused(tmp_path: Path) -> None:
    file, page = tmp_path / "study.jsonl.gz", tmp_path / "page.md"
    records.pack([record("ppo_clip", "A-v0", 0, 1)], file)
    for text, message in (
        (None, "page.md cannot be read: .*No such file"),
        ("no marks", "page.md must contain these two lines, to write between them"),
        (f"{BEGIN}\n{END}\n", "no finished runs of --preset table1-study"),
    ):
        if text is not None:
            page.write_text(text)
        with pytest.raises(SystemExit, match=message):
            main(["study", "--from", str(file), "--page", str(page)])


@needs_records
@pytest.mark.usefixtures("blank_pictures")
def test_the_committed_page_is_what_the_records_give(tmp_path: Path) -> None:
    committed, page = ROOT / "docs" / "table1-study.md", tmp_path / "table1-study.md"
    page.write_text(committed.read_text())
    assert main(["study", "--from", str(ROOT / "results" / "table1-study.jsonl.gz"), "--page", str(page)]) == 0
    assert page.read_text() == committed.read_text()


def summary() -> str:
    """Return the summary of the committed page."""
    return " ".join(section("In short", ROOT / "docs" / "table1-study.md").split())


@cache
def committed_runs() -> list[records.Record]:
    return records.unpack(ROOT / "results" / "table1-study.jsonl.gz")[0]


@cache
def committed_outcomes() -> dict[str, Any]:
    return {outcome.conditions: outcome for outcome in study.outcomes(scores.comparisons(committed_runs()))}


@needs_records
def test_the_page_sums_up_what_the_records_give() -> None:
    outcomes, short = committed_outcomes(), summary()
    assert "the lowest mean score of the four settings under all ten conditions" in short
    assert len(outcomes) == 10 and all(each.means.index[-1] == "ppo_unclipped" for each in outcomes.values())
    none = pd.Series({name: each.means["ppo_unclipped"] for name, each in outcomes.items()})
    assert (none.idxmin(), none.idxmax()) == ("text", "released-code")
    assert f"between {none.min():.2f} (`text`) and {none.max():.2f} (`released-code`)" in short
    changes = none - none["released-code"]
    assert f'"none" falls by {-changes["observations not normalised"]:.2f}, and with no other' in short
    assert changes.drop(["text", "sb3", "observations not normalised"]).abs().max() < 0.1
    leading = {name for name, each in outcomes.items() if each.means.index[0] == "ppo_clip clip_range=0.2"}
    assert leading == {"text", "observations not normalised", "nothing annealed"}
    assert all(outcomes[name].tau == "1.00" for name in leading)


@needs_records
def test_the_page_says_which_runs_are_of_an_earlier_version() -> None:
    earlier = [run for run in committed_runs() if run["algorithm"] and run["versions"]["sb3_ppo_variants"] == "0.1.0"]
    under = {run["conditions"].get("switched") or run["conditions"]["protocol"] for run in earlier}
    assert under == {"text", "released-code", "sb3", "actions clipped"}
    # All four settings under each.
    assert len(earlier) == 16 and {(run["env"], run["seed"]) for run in earlier} == {("HalfCheetah-v5", 0)}
    page = " ".join((ROOT / "docs" / "table1-study.md").read_text().split())
    assert (
        "In HalfCheetah, the runs of seed 0 under `text`, `released-code`, `sb3` and with actions clipped are from "
        "version 0.1.0 of this package. All others are from 1.0.0rc1."
    ) in page


@needs_records
def test_the_page_says_what_two_seeds_can_tell() -> None:
    outcomes = committed_outcomes()
    apart = {name: outcome.apart for name, outcome in outcomes.items() if outcome.apart}
    assert apart.keys() == {"text", "observations not normalised", "advantages not normalised"}
    pairs = [pair for of_row in apart.values() for pair in of_row.split(", ")]
    assert [pair for pair in pairs if not pair.endswith("> none")] == ["d_targ = 0.01 > β = 1"]
    arrays = [scores.arrays(outcome.runs[outcome.runs["label"].isin(LABELS)]) for outcome in outcomes.values()]
    every = np.array([p_value(of[one], of[other]) for of in arrays for one, other in combinations(of, 2)])
    assert len(every) == 60 and holm(every).min() > 0.05
    assert holm(np.full(60, smallest_p(2, 2, 4))).min() > 0.05
    said = "Corrected for all 60 pairs of the study, none of them is beyond noise, and with two seeds, none could be"
    assert said in summary()
    none = {name: scores.matrices(outcome.runs)["ppo_unclipped"].to_numpy() for name, outcome in outcomes.items()}
    base = none.pop("released-code")
    p = np.array([p_value(of_none, base) for of_none in none.values()])
    changed = list(none).index("observations not normalised")
    short = summary()
    assert f"a p value of {p[changed]:.3f}, but {holm(p)[changed]:.2f} after a correction for all nine" in short


@needs_records
def test_the_page_says_where_none_learns_under_the_protocol_of_sb3() -> None:
    found = committed_runs()
    runs = pd.DataFrame(found).assign(digest=[records.digest(run["conditions"]) for run in found])
    sb3 = next(each for each in PRESET.studied if each.protocol == "sb3" and not each.switched)
    means = runs[runs.digest == records.digest(sb3.description())].pivot_table("score", "env", "label")[LABELS]
    short = summary()
    none, others = means["ppo_unclipped"], means.drop(columns="ppo_unclipped")
    assert f"highest score in HalfCheetah ({none['HalfCheetah-v5']:.0f})" in short
    assert none["HalfCheetah-v5"] > others.loc["HalfCheetah-v5"].max()
    for env in ("Hopper", "Walker2d"):
        assert f"{env} ({none[f'{env}-v5']:.0f})" in short
        assert none[f"{env}-v5"] < others.loc[f"{env}-v5"].min() / 5


@needs_records
def test_only_reacher_is_below_the_random_policy_at_full_length() -> None:
    found, _ = records.unpack(ROOT / "results" / "table1-text.jsonl.gz")
    (comparison,) = scores.comparisons(found)
    of_none = comparison.table.query("label == 'ppo_unclipped'").groupby("env")["normalised"].mean()
    assert of_none.index[of_none < 0].tolist() == ["Reacher-v5"]
    assert f"`text` gives {of_none.mean():.2f}, and only Reacher" in summary()
