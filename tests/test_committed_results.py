"""The pages about the committed records say what the command computes from them."""

import json
import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from committed import HAS_PICTURES, ROOT, needs_records, section
from comparing import verdict_of
from scipy.stats import kendalltau

from benchmarks import gallery, tuning
from sb3_ppo_variants import recipes
from sb3_ppo_variants.__main__ import main
from sb3_ppo_variants.compare import agreement, records, scores, statistics
from sb3_ppo_variants.compare.paper import TABLE_1
from sb3_ppo_variants.compare.plan import HEADLINE
from sb3_ppo_variants.compare.records import RANDOM
from sb3_ppo_variants.compare.settings import read_setting

pytestmark = needs_records
SB3 = "sb3_ppo protocol=sb3"
# For each file of records, the baseline of its report, or None for SB3's PPO.
BASELINES = {
    "table1-text": "ppo_clip clip_range=0.2",
    "table1-code": "ppo_clip clip_range=0.2",
    "paper-figure3": "ppo_clip learning_rate=lin_0.0003",
    "sb3-1m": None,
    "same-learning": None,
    "separate-200k": "ppo_clip",
    "spinning-up": "ppo_clip",
    "hopper": None,
    "masked": "contrib_maskable_ppo",
    "recurrent": "contrib_recurrent_ppo",
    "details": "ppo_clip",
    "objectives-500k": "ppo_clip",
    "penalties-ant": "ppo_clip",
    "penalties-humanoid": "ppo_clip",
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
    assert not HAS_PICTURES or pictures == {file.name for file in (tmp_path / "pictures").glob("*.png")}


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
    return scores.matrices(comparison.table)


def arrays(name: str) -> dict[str, np.ndarray]:
    """Return :func:`matrices` as arrays."""
    return {label: matrix.to_numpy() for label, matrix in matrices(name).items()}


def test_the_page_has_the_numbers_of_table_1_at_full_length() -> None:
    page = section("Table 1 of the paper")
    text, code = (statistics.means(arrays(f"table1-{name}")) for name in ("text", "code"))
    assert code.keys() == {read_setting(setting).label for setting in HEADLINE}
    rows = {
        row.label: f"| {row.name} | {row.score:.2f} | {text[row.label]} | {code.get(row.label, '')} |"
        for row in TABLE_1
    }
    assert _scores_in(page) == list(rows.values())
    assert f"| SB3's `PPO`, protocol of SB3 | | {text[SB3]} |  |" in page
    for name, means in (("text", text), ("text", {label: text[label] for label in code}), ("code", code)):
        of_both = [(row.score, means[row.label].value) for row in TABLE_1 if row.label in means]
        tau, _ = kendalltau(*zip(*of_both, strict=True))
        assert re.search(rf"tau(:| over the four:)?\s{tau:.2f}\b|\s{tau:.2f}\)", page), (name, len(means), tau)


@pytest.mark.parametrize("name", ["text", "code"])
def test_the_page_has_what_five_seeds_say_about_table_1(name: str) -> None:
    files = [ROOT / "results" / f"table1-{each}.jsonl.gz" for each in (name, "more-seeds")]
    comparisons = scores.comparisons([record for file in files for record in records.unpack(file)[0]])
    found = scores.arrays(max(comparisons, key=lambda comparison: len(comparison.records)).table)
    four = {read_setting(setting).label: found[read_setting(setting).label] for setting in HEADLINE}
    assert {array.shape for array in four.values()} == {(5, 7)}
    page, means = section("Table 1 with five seeds"), statistics.means(four)
    column = ("text", "code").index(name) + 1
    of_page = {
        cells[0]: cells[column] for cells in re.findall(r"^\| (\S.*?) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    }
    assert {row.name: str(means[row.label]) for row in TABLE_1 if row.label in means}.items() <= of_page.items()
    apart = {pair for pair, each in statistics.differences(four).items() if each.is_beyond_noise}
    others = four.keys() - {"ppo_unclipped"}
    assert apart == {pair for other in others for pair in ((other, "ppo_unclipped"), ("ppo_unclipped", other))}
    if name == "text":
        assert statistics.differences(found)[SB3, "ppo_clip clip_range=0.2"].is_beyond_noise and len(found[SB3]) == 3
        assert "with three seeds, is better beyond noise than ε = 0.2 with five" in " ".join(page.split())
    same = {pair for pair in combinations(four, 2) if statistics.are_equivalent(four[pair[0]], four[pair[1]])}
    clip, adaptive, fixed = "ppo_clip clip_range=0.2", "ppo_adaptive_kl desired_kl=0.01", "ppo_fixed_kl kl_coef=1"
    text = " ".join(page.split())
    if name == "text":
        assert same == {(clip, adaptive), (adaptive, fixed)}
        assert "With the text, the adaptive KL is equivalent within 0.1 to ε = 0.2 and to β = 1" in text
    else:
        assert same == {(clip, adaptive), (clip, fixed)}
        assert "the released code, ε = 0.2 is equivalent to the adaptive KL and to β = 1" in text


def test_the_page_says_what_differs_beyond_noise_in_table_1() -> None:
    text, differences = " ".join(section("Table 1 of the paper").split()), statistics.differences(arrays("table1-text"))
    of_paper = [row.label for row in TABLE_1]
    none = of_paper[0]
    apart = {pair for pair in combinations(of_paper, 2) if differences[pair].is_beyond_noise}
    assert apart == {(none, other) for other in of_paper[1:]}
    assert "Training without clipping or penalty is worse than every other setting beyond noise" in text
    assert "three seeds cannot tell any two of them apart" in text
    _, signs = agreement.find_orders(statistics.means(arrays("table1-text")), differences)
    pairs = int((signs != 0).sum())
    same = (
        f"Of the {pairs} pairs of settings with different scores in the paper, {(signs > 0).sum()} have the same order"
    )
    assert f"{same} here, {(signs == 2).sum()} of them beyond noise" in text
    assert f"None of the {(signs < 0).sum()} others is reversed beyond noise" in text and (signs != -2).all()
    worse = [label for label in of_paper if differences[SB3, label].is_beyond_noise]
    assert {*of_paper} - {*worse} == {
        "ppo_clip clip_range=0.2", "ppo_fixed_kl kl_coef=0.3", "ppo_fixed_kl kl_coef=3"
    }  # fmt: skip
    assert f"better beyond noise than {len(worse)} of the paper's settings, and cannot be told apart from the" in text
    assert "apart from the other three: ε = 0.2, β = 0.3 and β = 3." in text


def returns_of(name: str) -> dict[str, tuple[float, float]]:
    """Return the mean and the standard deviation of the scores of committed records, by setting."""
    found, problems = records.unpack(ROOT / "results" / f"{name}.jsonl.gz")
    assert not problems
    of_setting: dict[str, list[float]] = {}
    for record in found:
        score = record["score"]
        assert score is not None
        of_setting.setdefault(record["label"], []).append(score)
    return {label: (float(np.mean(own)), float(np.std(own, ddof=len(own) > 1))) for label, own in of_setting.items()}


def test_the_page_says_how_distributions_compare() -> None:
    page = (ROOT / "docs" / "howto" / "bounded_actions.md").read_text()
    names = {"'distribution': 'squashed_gaussian'": 'distribution="squashed_gaussian"', "'std': 'state'": 'std="state"'}
    names |= {"'distribution': 'beta'": 'distribution="beta"'}
    rows = {"ppo_clip": 'distribution="gaussian"'}
    rows |= {f"ppo_clip policy_kwargs={{{given}}}": row for given, row in names.items()}
    returns, found = returns_of("distributions"), arrays("distributions")
    halfcheetah = returns_of("distributions-halfcheetah")
    for label, row in rows.items():
        (mean, deviation), (other_mean, other_deviation) = returns[label], halfcheetah[label]
        numbers = f"{mean:.1f} ± {deviation:.1f} | {other_mean:.0f} ± {other_deviation:.0f}"
        assert f"| `{row}` | {numbers} |" in page
    assert f"the random policy, with {returns[RANDOM][0]:.0f}," in page
    assert found.keys() == rows.keys() and all(len(own) == 10 for own in found.values())
    assert not any(each.is_beyond_noise for each in statistics.differences(found).values())
    assert all(statistics.are_equivalent(own, found["ppo_clip"]) for own in found.values())
    differences = statistics.differences(arrays("distributions-halfcheetah"))
    apart = {frozenset(pair) for pair, each in differences.items() if each.is_beyond_noise}
    squashed, best = (f"ppo_clip policy_kwargs={{'distribution': '{name}'}}" for name in ("squashed_gaussian", "beta"))
    assert apart == {frozenset({best, "ppo_clip"}), frozenset({best, squashed})}


def test_the_page_says_that_masks_and_a_memory_are_needed() -> None:
    page, returns = (ROOT / "docs" / "howto" / "masks_and_memory.md").read_text(), returns_of("masks-and-memory")
    rows = {
        "ppo_clip": "`MaskableMlpLstmPolicy`",
        "ppo_clip policy=MaskableMlpPolicy, policy_kwargs={}": "`MaskableMlpPolicy`, without a memory",
        "ppo_clip policy=MlpLstmPolicy": "`MlpLstmPolicy`, without masks",
        RANDOM: "random allowed actions",
    }
    assert returns.keys() == rows.keys()
    for label, row in rows.items():
        assert f"| {row} | {returns[label][0]:.2f} |" in page
    assert all(each.is_beyond_noise for each in statistics.differences(arrays("masks-and-memory")).values())


def test_the_page_says_how_memories_compare() -> None:
    page, returns, found = (ROOT / "docs" / "recurrent.md").read_text(), returns_of("memories"), arrays("memories")
    gru, without = (next(label for label in found if each in label) for each in ("'memory': 'gru'", "policy=MlpPolicy"))
    rows = {"ppo_clip": "`MlpLstmPolicy`, the recipe", gru: 'the same with `memory="gru"`'}
    for label, row in {**rows, without: "`MlpPolicy`, without a memory"}.items():
        mean, deviation = returns[label]
        assert f"| {row} | {mean:.0f} ± {deviation:.0f} |" in page and len(found[label]) == 5
    differences = statistics.differences(found)
    apart = {frozenset(pair) for pair, each in differences.items() if each.is_beyond_noise}
    assert apart == {frozenset({without, each}) for each in rows}


def test_the_page_says_how_bins_compare_with_hybrid_actions() -> None:
    page, returns = (ROOT / "docs" / "howto" / "hybrid_actions.md").read_text(), returns_of("move-or-kick")
    found, (factorised, joint) = (
        arrays("move-or-kick"),
        (
            f"ppo_clip ent_coef=0, env_kwargs={{{bins}}}, policy_kwargs={{}}"
            for bins in ("'n_bins': 11, 'factorised': True", "'n_bins': 21")
        ),
    )
    rows = {
        "ppo_clip": "hybrid",
        factorised: "11 bins for each dimension, factorised",
        joint: "21 bins for each dimension, joint",
    }
    assert found.keys() == rows.keys() and all(len(own) == 10 for own in found.values())
    for label, row in rows.items():
        mean, deviation = returns[label]
        assert f"| {row} | {mean:.2f} ± {deviation:.2f} |" in page
    differences = statistics.differences(found)
    assert {frozenset(pair) for pair, each in differences.items() if each.is_beyond_noise} == {
        frozenset({"ppo_clip", each}) for each in (factorised, joint)
    }
    assert all(differences["ppo_clip", each].estimate.value > 0 for each in (factorised, joint))
    assert "These runs cannot tell the two kinds of bins apart" in page


def test_the_settings_of_hybrid_actions_and_bins_are_those_that_tuning_found() -> None:
    tuned = json.loads((ROOT / "results" / "move-or-kick-tuning.json").read_text())
    kinds = tuning.candidates()
    assert {kind: {*each} for kind, each in kinds.items()} == {kind: {*each} for kind, each in tuned["scores"].items()}
    assert all(len(of_kind) == 8 for of_kind in kinds.values())
    assert not {*tuned["seeds"]} & {*range(10)}
    best = {kind: max(each, key=lambda name: np.mean(each[name])) for kind, each in tuned["scores"].items()}
    assert best == {
        "hybrid": "learning_rate=0.003, ent_coef=0.01, log_std_init=-1.0",
        "factorised": "learning_rate=0.003, ent_coef=0.0, n_bins=11",
        "joint": "learning_rate=0.003, ent_coef=0.0, n_bins=21",
    }
    recipe = recipes.recipe("ppo_clip", tuning.ENV).arguments
    assert (recipe["learning_rate"], recipe["ent_coef"], recipe["policy_kwargs"]["log_std_init"]) == (0.003, 0.01, -1)


def test_the_mean_without_a_limit_rests_on_reacher() -> None:
    found = matrices("table1-text")["ppo_unclipped"].drop(columns="Reacher-v5").to_numpy().mean()
    assert f"over the other six environments, it is {found:.2f}" in " ".join(section("Table 1 of the paper").split())


def test_the_page_says_what_differs_with_the_released_code() -> None:
    found = arrays("table1-code")
    apart = {pair for pair, each in statistics.differences(found).items() if each.is_beyond_noise}
    others = found.keys() - {"ppo_unclipped"}
    assert apart == {pair for other in others for pair in ((other, "ppo_unclipped"), ("ppo_unclipped", other))}
    same = [pair for pair in combinations(found, 2) if statistics.are_equivalent(found[pair[0]], found[pair[1]])]
    assert same == [("ppo_clip clip_range=0.2", "ppo_fixed_kl kl_coef=1")]
    text = " ".join(section("Table 1 of the paper").split())
    assert "is worse beyond noise than the other three settings, which cannot be told apart; ε = 0.2 and β = 1" in text


def shown_on(page: str) -> str:
    """Return the section about measurements of an objective's page, in a single line."""
    return " ".join(section("Measured", ROOT / "docs" / "objectives" / page).split())


def test_the_pages_of_the_objectives_have_their_settings_of_table_1() -> None:
    found = arrays("table1-text")
    means = {label: f"{mean.value:.2f}" for label, mean in statistics.means(found).items()}
    papers = {row.label: f"{row.score:.2f}" for row in TABLE_1}
    clips = [f"ppo_clip clip_range=0.{e}" for e in (1, 2, 3)]
    kls = [f"ppo_adaptive_kl desired_kl={d}" for d in ("0.003", "0.01", "0.03")]
    fixed = [f"ppo_fixed_kl kl_coef={b}" for b in ("0.3", "1", "3", "10")]

    def listed(of: dict[str, str], labels: list[str]) -> str:
        *most, last = (of[label] for label in labels)
        return f"{', '.join(most)} and {last}"

    of_clips = f"The mean scores are {listed(means, clips)}, in the order of the paper's, {listed(papers, clips)}."
    of_kls = f"The mean scores are {listed(means, kls)} for 0.003, 0.01 and 0.03; the paper has {listed(papers, kls)}."
    assert of_clips in shown_on("clip.md") and of_kls in shown_on("adaptive_kl.md")
    for values in (means, papers):
        assert sorted(clips, key=lambda label: float(values[label])) == [clips[2], clips[0], clips[1]]
    assert f"the mean scores are {listed(means, fixed)} for $\\beta$ = 0.3, 1, 3 and 10" in shown_on("fixed_kl.md")
    for values in (means, papers):
        of_fixed = [float(values[label]) for label in fixed]
        assert max(of_fixed) - min(of_fixed) < 0.1 + 1e-9
    # What the pages say about single pairs: nothing but the setting without a limit is told apart.
    differences = statistics.differences(found)
    assert not any(differences[pair].is_beyond_noise for pair in combinations([*clips, *kls, *fixed], 2))
    assert all(differences[label, "ppo_unclipped"].is_beyond_noise for label in found if label != "ppo_unclipped")
    unclipped = shown_on("unclipped.md")
    assert f"the mean score is {statistics.means(found)['ppo_unclipped']}, worse than every other setting" in unclipped
    assert f"it is {statistics.means(arrays('table1-code'))['ppo_unclipped']}, on a scale of its own" in unclipped
    row = " | ".join(str(statistics.means(found)[label]) for label in (clips[1], kls[1], fixed[1], "ppo_unclipped"))
    assert f"| normalised score, seven MuJoCo tasks | {row} |" in (ROOT / "docs" / "can_i_use.md").read_text()


def test_large_penalties_take_longer() -> None:
    (comparison,) = scores.comparisons(records.unpack(ROOT / "results" / "table1-text.jsonl.gz")[0])
    shares, curves = scores.normalised_curves(comparison)
    (early,) = np.flatnonzero(shares == 0.2)
    differences = statistics.differences({label: array[..., early] for label, array in curves.items()})
    for other in ("0.3", "1", "3"):
        found = differences["ppo_fixed_kl kl_coef=10", f"ppo_fixed_kl kl_coef={other}"]
        assert found.is_beyond_noise and found.estimate.value < 0
    assert "after 200,000 steps, a point that we chose when we had seen the curves" in shown_on("fixed_kl.md")


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
    assert "a limit has the lowest score of the four in six of the seven environments" in text
    assert lowest["table1-code"]["HalfCheetah-v5"] == "ppo_clip clip_range=0.2"
    reacher = means["table1-text"].loc["Reacher-v5"]
    assert f"below the random policy ({reacher['ppo_unclipped']:.0f} instead of {reacher[RANDOM]:.0f})" in text


def test_the_page_has_the_runs_that_lose_what_they_have_learned() -> None:
    found, _ = records.unpack(ROOT / "results" / "table1-text.jsonl.gz")
    runs = [run for run in found if run["env"] == "InvertedDoublePendulum-v5" and run["label"] != RANDOM]
    best = [max(value for value in records.curve(run) if value is not None) for run in runs]
    scored = [run["score"] or 0.0 for run in runs]

    def lost(share: float) -> list[list[bool]]:
        loses = [reached > 9000 and score < share * reached for score, reached in zip(scored, best, strict=True)]
        return [
            [each for run, each in zip(runs, loses, strict=True) if run["label"].split(" ")[0] in names]
            for names in (["ppo_clip"], ["ppo_adaptive_kl", "ppo_fixed_kl"])
        ]

    clipped, penalised = lost(0.5)
    text = " ".join(section("Table 1 of the paper").split())
    counted = f"{sum(clipped)} of the {len(clipped)} clipped runs reach more than 9000 and end below half of their best"
    assert f"{counted}, but only {sum(penalised)} of the {len(penalised)} penalised ones" in text
    assert f"below 60% of their best, it is {sum(lost(0.6)[0])} and {sum(lost(0.6)[1])}." in text


def _scores_in(text: str) -> list[str]:
    """Return the rows of a table with the paper's scores."""
    return [line for line in text.splitlines() if re.fullmatch(r"\| .* \| -?0\.\d\d \| .* \|", line)]


def test_the_page_and_the_readme_have_the_numbers_beside_sb3() -> None:
    found = arrays("sb3-1m")
    own, other = found["ppo_clip protocol=sb3"], found[SB3]
    assert own.shape == other.shape == (5, 5)
    difference = statistics.differences(found)["ppo_clip protocol=sb3", SB3].estimate
    low, high = statistics.interval(own, other, level=0.9)
    better = statistics.probability_of_improvement(own, other)
    page, readme = section("`PPOClip` beside SB3's `PPO`"), " ".join(section("Numbers", ROOT / "README.md").split())
    value = f"{difference.value:.2f} ({difference.low:.2f} to {difference.high:.2f}"
    assert f"means differ by {value}; with 90% confidence, by {low:.2f} to {high:.2f})" in page
    with_90 = f"{difference.value:.2f} ({low:.2f} to {high:.2f}"
    assert f"Their means differ by {with_90} with 90% confidence)" in readme
    home = " ".join((ROOT / "docs" / "index.md").read_text().split())
    said = "is the difference in mean score between `PPOClip` and SB3's `PPO` in five MuJoCo environments, with 90%"
    assert f"grid-item-card}} {with_90}) {said} confidence." in home
    assert "the two are equivalent within 0.1." in home
    for text, end in ((page, ""), (readme, " with 95%")):
        assert "equivalent within 0.1" in text and statistics.are_equivalent(own, other)
        assert f"better than one of SB3's with a probability of {str(better).removesuffix(')')}{end})." in text
    of_envs = [matrices("sb3-1m")[label] for label in ("ppo_clip protocol=sb3", SB3)]
    alike = [env for env in of_envs[0] if statistics.are_equivalent(*(each[[env]].to_numpy() for each in of_envs))]
    assert alike == ["Reacher-v5"]
    assert "Taken one environment at a time, five seeds show them to be equivalent only in Reacher." in page
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


def test_the_page_says_where_the_same_learning_is_shown() -> None:
    found, _ = records.unpack(ROOT / "results" / "same-learning.jsonl.gz")
    same = {}
    for comparison in scores.comparisons(found):
        own, other = (matrix.to_numpy() for matrix in scores.matrices(comparison.table).values())
        (env,) = comparison.envs
        same[env] = statistics.are_equivalent(own, other)
        assert not any(each.is_beyond_noise for each in statistics.differences({"own": own, "other": other}).values())
    assert [env for env, is_same in same.items() if is_same] == ["Pendulum-v1"]
    text = " ".join(section("`PPOClip` beside SB3's `PPO`").split())
    assert "In Pendulum, they are equivalent within 0.1, and in CartPole, every run reaches the highest" in text


def test_the_pages_have_the_numbers_of_separate_updates() -> None:
    page = section("Joint and separate updates")
    found = arrays("separate-200k")
    assert [len(matrix) for matrix in found.values()] == [5, 5, 5]
    expected = [str(mean) for mean in statistics.means(found).values()]
    assert re.findall(r"^\| [^|]+ \| (\d.*?) \|$", page, re.M) == expected
    details = " ".join((ROOT / "docs" / "details.md").read_text().split())
    assert (
        f"the mean score is {expected[1]}. With SB3's joint updates without early stopping, it is {expected[0]}"
        in details
    )
    assert "no two of these settings differ beyond noise, and none are equivalent within 0.1" in " ".join(page.split())
    assert not any(each.is_beyond_noise for each in statistics.differences(found).values())
    assert not any(statistics.are_equivalent(*pair) for pair in combinations(found.values(), 2))


def test_the_gallery_says_what_was_found_in_hopper() -> None:
    note = " ".join(gallery.NOTES["Hopper-v5"].split())
    found = means_of("hopper").loc["Hopper-v5"]
    assert (
        f"three seeds](../hopper/report.md) is {found['sb3_ppo']:.0f}, that of `PPOClip` {found['ppo_clip']:.0f}"
        in note
    )
    assert "Three seeds are too few to tell the two apart" in note
    assert "So few seeds cannot tell" in verdict_of(arrays("hopper"))


def test_the_page_says_what_holds_agents_back_in_hopper() -> None:
    runs = pd.DataFrame(records.unpack(ROOT / "results" / "hopper-causes.jsonl.gz")[0])
    found = {label: of_seeds.to_numpy() for label, of_seeds in runs.groupby("label")["score"] if label != RANDOM}
    recipe, discounted = found.pop("ppo_clip"), found.pop("ppo_clip gamma=0.99")
    ((label, explores),) = found.items()
    assert "'log_std_init': 0" in label
    page = " ".join(section("Hopper").split())
    names = ("unchanged", "`gamma` = 0.99 instead of 0.999", "`log_std_init` = 0 instead of -2")
    rows = dict(zip(names, (recipe, discounted, explores), strict=True))
    for name, of_seeds in rows.items():
        assert f"| {name} | {of_seeds.mean():.0f} ± {of_seeds.std(ddof=1):.0f} |" in page
    assert len(recipe) == 5 and discounted.min() > recipe.max() and "every seed reaches more than any seed" in page
    tested = statistics.differences(arrays("hopper-causes"))
    assert tested["ppo_clip gamma=0.99", "ppo_clip"].is_beyond_noise and "the difference is beyond noise" in page
    assert not tested[label, "ppo_clip"].is_beyond_noise and "cannot be told from the recipe's" in page
    assert explores.std() > recipe.std() and "these seeds differ more" in page


@pytest.mark.parametrize("name", ["masked", "details"])
def test_the_pages_say_that_five_seeds_are_too_few(name: str) -> None:
    verdict = verdict_of(arrays(name))
    assert "So few seeds cannot tell settings apart" in verdict and verdict.endswith("at least 6 seeds of each.")
    text = " ".join((ROOT / "docs" / f"{name}.md").read_text().split())
    claims = {"masked": "five seeds are one too few for a difference", "details": "it would take six at least"}
    assert claims[name] in text


def test_the_pages_name_the_settings_that_are_equivalent() -> None:
    names = {"ppo_clip": "PPOClip", "ppo_adaptive_kl": "PPOAdaptiveKL", "ppo_fixed_kl": "PPOFixedKL"}
    same = {}
    for name in ("masked", "recurrent"):
        for comparison in scores.comparisons(records.unpack(ROOT / "results" / f"{name}.jsonl.gz")[0]):
            found = {label: each.to_numpy() for label, each in scores.matrices(comparison.table).items()}
            baseline = next(label for label in found if label.startswith("contrib"))
            (env,) = comparison.envs
            same[env.split(":")[1]] = [
                names[label] for label in names if statistics.are_equivalent(found[label], found[baseline])
            ]
    assert same == {
        "Scheduling-v0": ["PPOClip", "PPOAdaptiveKL", "PPOFixedKL"],
        "CartPoleNoVel-v1": ["PPOAdaptiveKL", "PPOFixedKL"],
        "PendulumNoVel-v1": [],
    }
    masked, recurrent = (
        " ".join((ROOT / "docs" / f"{name}.md").read_text().split()) for name in ("masked", "recurrent")
    )
    assert (
        "`PPOClip`, `PPOAdaptiveKL` and `PPOFixedKL` are [equivalent](compare.md#verdicts) to `MaskablePPO`" in masked
    )
    assert (
        "in `CartPoleNoVel-v1`, `PPOAdaptiveKL` and `PPOFixedKL` are equivalent to `RecurrentPPO` within 0.1"
        in recurrent
    )


def test_the_page_has_the_scores_in_spinning_ups_setting() -> None:
    found, problems = records.unpack(ROOT / "results" / "spinning-up.jsonl.gz")
    assert not problems
    frame = pd.DataFrame([record for record in found if record["algorithm"]]).groupby("env")["score"]
    assert frame.count().tolist() == [3, 3, 3]
    expected = [(env, f"{frame.mean()[env]:.4g} ± {frame.std()[env]:.4g}") for env in frame.groups]
    assert re.findall(r"^\| (\S+-v5) \| (.*?) \|", section("Spinning Up's setting"), re.M) == expected
