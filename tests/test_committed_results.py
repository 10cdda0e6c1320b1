"""The pages about the committed records say what the command computes from them."""

import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
from committed import ROOT, section
from scipy.stats import kendalltau

from sb3_ppo_variants.benchmark import gallery
from sb3_ppo_variants.benchmark.__main__ import main
from sb3_ppo_variants.benchmark.compare import paper, records, scores, statistics
from sb3_ppo_variants.benchmark.compare.plan import RANDOM
from sb3_ppo_variants.benchmark.compare.presets import HEADLINE
from sb3_ppo_variants.benchmark.compare.settings import parse

# For each file of records, the baseline of its report, or None for SB3's PPO.
BASELINES = {
    "table1-text": "ppo_clip clip_range=0.2",
    "table1-code": "ppo_clip clip_range=0.2",
    "table1-200k": None,
    "sb3-1m": None,
    "same-learning": None,
    "separate-200k": None,
    "spinning-up": "ppo_clip",
    "hopper": None,
    "masked": "contrib_maskable_ppo",
    "recurrent": "contrib_recurrent_ppo",
    "details": "ppo_clip",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BASELINES)
def test_a_committed_report_is_what_its_records_give(name: str, tmp_path: Path) -> None:
    options = ["--from", str(ROOT / "results" / f"{name}.jsonl.gz"), "--out", str(tmp_path)]
    baseline = BASELINES[name]
    assert main(["report", *options, *(["--baseline", baseline] if baseline else [])]) == 0
    for file in ("report.md", "scores.csv"):
        assert (tmp_path / file).read_text() == (ROOT / "docs" / name / file).read_text()
    pictures = {file.name for file in (ROOT / "docs" / name / "pictures").glob("*.png")}
    assert pictures == {file.name for file in (tmp_path / "pictures").glob("*.png")}


@pytest.mark.parametrize("name", ["masked", "recurrent", "details"])
def test_the_pages_have_the_final_scores(name: str) -> None:
    report = (ROOT / "docs" / name / "report.md").read_text()
    tables = re.findall(r"### Final scores\n.*?\n(\|.*?)\n\n", report, re.DOTALL)
    page = (ROOT / "docs" / f"{name}.md").read_text()
    assert tables and all(table in page for table in tables)


def matrices(name: str) -> dict[str, pd.DataFrame]:
    """Return the normalised scores of committed records, by setting."""
    found, problems = records.unpack(ROOT / "results" / f"{name}.jsonl.gz")
    assert not problems
    (comparison,) = scores.comparisons(found)
    return scores.matrices(scores.table(comparison))[0]


def test_the_page_has_the_numbers_of_table_1_at_full_length(monkeypatch: pytest.MonkeyPatch) -> None:
    page, readme = section("Table 1 of the paper"), section("Numbers", ROOT / "README.md")
    monkeypatch.setattr(statistics, "AGGREGATES", {"mean": statistics.AGGREGATES["mean"]})
    text, code = (statistics.aggregates(_arrays(matrices(f"table1-{name}"))) for name in ("text", "code"))
    assert code.keys() == {parse(setting).label for setting in HEADLINE}
    rows = {
        row.label: f"| {row.name} | {row.score:.2f} | {text[row.label]['mean']} | {_mean(code, row.label)} |"
        for row in paper.TABLE_1
    }
    assert _scores_in(page) == list(rows.values())
    assert _scores_in(readme) == [row for label, row in rows.items() if label in code]
    sb3 = "sb3_ppo protocol=sb3"
    assert all(f"| SB3's `PPO`, protocol of SB3 | | {text[sb3]['mean']} |  |" in each for each in (page, readme))
    arrays = _arrays(matrices("table1-text"))
    differences = statistics.differences(arrays, "mean")
    assert "SB3's `PPO` is better beyond noise than every setting of the paper" in page
    assert all(differences[sb3, row.label].low > 0 for row in paper.TABLE_1)
    for name, means in (("text", text), ("text", {label: text[label] for label in code}), ("code", code)):
        of_both = [(row.score, means[row.label]["mean"].value) for row in paper.TABLE_1 if row.label in means]
        tau, _ = kendalltau(*zip(*of_both, strict=True))
        assert re.search(rf"tau\s{tau:.2f}\b|\s{tau:.2f}\)", page), (name, len(means), tau)


def test_the_page_counts_the_pairs_in_the_papers_order() -> None:
    report = (ROOT / "docs" / "table1-text" / "report.md").read_text()
    numbers = (
        r"of (\d+) pairs .*?, (\d+) are in the same order here, (\d+) of them beyond noise, .*, (\d+) of them beyond"
    )
    counted = re.search(numbers, report)
    assert counted
    pairs, same, beyond, reversed_beyond = counted.groups()
    text = " ".join(section("Table 1 of the paper").split())
    assert f"Of the {pairs} pairs of settings with different scores in the paper, {same} have the same order" in text
    assert f"here, {beyond} of them beyond noise. Four are reversed beyond noise" in text
    assert int(reversed_beyond) == 4


def test_the_page_names_the_pairs_reversed_beyond_noise() -> None:
    scores_there = {row.label: row.score for row in paper.TABLE_1}
    arrays = _arrays(matrices("table1-text"))
    ours = statistics.differences({label: arrays[label] for label in scores_there}, "mean")
    found = {
        pair
        for pair, difference in ours.items()
        if scores_there[pair[0]] > scores_there[pair[1]] and difference.high < 0
    }
    large = ["ppo_clip clip_range=0.3", "ppo_adaptive_kl desired_kl=0.03"]
    small = ["ppo_adaptive_kl desired_kl=0.003", "ppo_fixed_kl kl_coef=10"]
    assert found == {*product(large, small)}
    text = " ".join(section("Table 1 of the paper").split())
    limits = "ε = 0.3 and d_targ = 0.03, the loosest limits of their kinds"
    assert f"{limits}, score lower than d_targ = 0.003 and β = 10" in text


def means_of(name: str) -> pd.DataFrame:
    """Return the mean scores of committed records, with a row for each environment and a column for each setting."""
    found, _ = records.unpack(ROOT / "results" / f"{name}.jsonl.gz")
    return pd.DataFrame(found).pivot_table("score", "env", "label")


def test_the_page_says_where_no_limit_is_the_worst() -> None:
    text = " ".join(section("Table 1 of the paper").split())
    means = {name: means_of(name) for name in ("table1-text", "table1-code")}
    lowest = {name: frame.drop(columns=RANDOM).idxmin(axis="columns") for name, frame in means.items()}
    for of_env in lowest.values():
        assert of_env[of_env != "ppo_unclipped"].index.tolist() == ["HalfCheetah-v5"]
    assert "has the lowest score in six of the seven environments" in text
    assert "It has the lowest score of the four in six of the seven environments" in text
    assert lowest["table1-code"]["HalfCheetah-v5"] == "ppo_clip clip_range=0.2"
    reacher = means["table1-text"].loc["Reacher-v5"]
    assert f"below the random policy ({reacher['ppo_unclipped']:.0f} instead of {reacher[RANDOM]:.0f})" in text


def test_the_page_has_the_runs_that_lose_what_they_have_learned() -> None:
    found, _ = records.unpack(ROOT / "results" / "table1-text.jsonl.gz")
    runs = [run for run in found if run["env"] == "InvertedDoublePendulum-v5" and run["label"] != RANDOM]
    best = [max(value for value in records.curve(run) if value is not None) for run in runs]
    scored = [run["score"] or 0.0 for run in runs]
    lost = [reached > 9000 and score < reached / 2 for score, reached in zip(scored, best, strict=True)]
    clipped, penalised = (
        [loses for run, loses in zip(runs, lost, strict=True) if run["label"].split(" ")[0] in names]
        for names in (["ppo_clip"], ["ppo_adaptive_kl", "ppo_fixed_kl"])
    )
    text = " ".join(section("Table 1 of the paper").split())
    counted = f"{sum(clipped)} of the {len(clipped)} clipped runs reach more than 9000 and end below half of their best"
    assert f"{counted}, but only {sum(penalised)} of the {len(penalised)} penalised ones" in text


def _mean(aggregates: Mapping[str, Mapping[str, object]], label: str) -> str:
    return str(aggregates[label]["mean"]) if label in aggregates else ""


def _scores_in(text: str) -> list[str]:
    """Return the rows of a table with the paper's scores."""
    return [line for line in text.splitlines() if re.fullmatch(r"\| .* \| -?0\.\d\d \| .* \|", line)]


def test_the_page_has_the_numbers_of_table_1(monkeypatch: pytest.MonkeyPatch) -> None:
    page = section("Table 1 at 200,000 steps")
    monkeypatch.setattr(statistics, "AGGREGATES", {"mean": statistics.AGGREGATES["mean"]})
    found = matrices("table1-200k")
    ours = {label: row["mean"] for label, row in statistics.aggregates(_arrays(found)).items()}
    rows = [(row.name, f"{row.score:.2f}", row.label) for row in paper.TABLE_1] + [("SB3's `PPO`", "", "sb3_ppo")]
    expected = [[name, score, str(ours[label]), str(len(found[label]))] for name, score, label in rows]
    written = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", page, re.M)]
    assert written[2:] == expected
    tau, _ = kendalltau([row.score for row in paper.TABLE_1], [ours[row.label].value for row in paper.TABLE_1])
    assert f"(Kendall's tau {tau:.2f})" in page


def test_the_page_and_the_readme_have_the_numbers_beside_sb3() -> None:
    found = matrices("sb3-1m")
    assert [matrix.shape for matrix in found.values()] == [(5, 5), (5, 5)]
    compared = statistics.against(_arrays(found), "sb3_ppo protocol=sb3")["ppo_clip protocol=sb3"]
    page, readme = section("`PPOClip` beside SB3's `PPO`"), section("Numbers", ROOT / "README.md")
    assert f"normalised scores differ by {compared['IQM difference']}," in page
    for text in (page, readme):
        assert f"better than one of SB3's with a probability of {compared['P(better)']}." in text
    report = (ROOT / "docs" / "sb3-1m" / "report.md").read_text()
    lines = report[report.index("### Final scores") :].split("\n\n")[2].splitlines()
    envs, _, _, *means = ([cell.strip().removesuffix(" (5)") for cell in line.split("|")[2:-1]] for line in lines)
    assert len(envs) == 5
    for row in zip(envs, *means, strict=True):
        assert f"| {' | '.join(row)} |" in page


def test_the_page_has_the_scores_of_the_same_learning() -> None:
    report = (ROOT / "docs" / "same-learning" / "report.md").read_text()
    written = re.findall(
        r"^\| (\S+-v\d)[^|]*\| [^|]* \| (.*) \| (.*) \|$", section("`PPOClip` beside SB3's `PPO`"), re.M
    )
    score = r"\| (.*?) \((\d)\) +\|"
    table = rf"^\| setting +\| (\S+) +\|\n.*\n.*\n\| ppo_clip +{score}\n\| sb3_ppo +{score}"
    final = re.findall(table, report, re.M)
    assert written == [(env, ours, theirs) for env, ours, _, theirs, _ in final]
    seeds = [{seeds, seeds_of_sb3} for _, _, seeds, _, seeds_of_sb3 in final]
    assert seeds == [{"3"}, {"5"}, {"5"}, {"5"}]


def test_the_page_has_the_numbers_of_separate_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "AGGREGATES", {"IQM": statistics.AGGREGATES["IQM"]})
    page = section("Joint and separate updates")
    found = matrices("separate-200k")
    assert [len(matrix) for matrix in found.values()] == [5, 5, 5]
    expected = [str(row["IQM"]) for row in statistics.aggregates(_arrays(found)).values()]
    assert re.findall(r"^\| [^|]+ \| (\d.*?) \|$", page, re.M) == expected


def test_the_gallery_says_what_was_found_in_hopper() -> None:
    assert "with three seeds finds no difference beyond noise" in gallery.NOTES["Hopper-v5"]
    found = _arrays(matrices("hopper"))
    assert [len(scores) for scores in found.values()] == [3, 3]
    difference = statistics.against(found, "sb3_ppo")["ppo_clip"]["IQM difference"]
    assert difference.low <= 0 <= difference.high


def test_the_page_has_the_scores_in_spinning_ups_setting() -> None:
    found, problems = records.unpack(ROOT / "results" / "spinning-up.jsonl.gz")
    assert not problems
    frame = pd.DataFrame([record for record in found if record["algorithm"]]).groupby("env")["score"]
    assert frame.count().tolist() == [3, 3, 3]
    expected = [(env, f"{frame.mean()[env]:.4g} ± {frame.std()[env]:.4g}") for env in frame.groups]
    assert re.findall(r"^\| (\S+-v5) \| (.*?) \|", section("Spinning Up's setting"), re.M) == expected


def _arrays(found: dict[str, pd.DataFrame]) -> statistics.Scores:
    return {label: matrix.to_numpy() for label, matrix in found.items()}
