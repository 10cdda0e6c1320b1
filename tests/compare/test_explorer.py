"""The page that shows all results has every committed record, with its curve and score, and selects them correctly."""

import csv
import gzip
import importlib
import io
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import comparing
import numpy as np
import pytest
from committed import needs_records
from javascript import STATIC, evaluate
from scipy.stats import mannwhitneyu, t

from sb3_ppo_variants.compare.plots import looks
from sb3_ppo_variants.compare.scores import Comparison

pytestmark = needs_records
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
FILES = sorted([*RESULTS.glob("*.jsonl"), *RESULTS.glob("*.jsonl.gz")])
# Curves have four digits.
CLOSE = 6e-4
Data = dict[str, Any]


def raw(file: Path) -> list[Data]:
    """Return the lines of a file of records, without the package."""
    text = gzip.decompress(file.read_bytes()).decode() if file.suffix == ".gz" else file.read_text()
    found = [json.loads(line) for line in text.splitlines()]
    # The records of the gallery have no settings.
    of_gallery = {"label": "ppo_clip", "conditions": "gallery"}
    return [line if "label" in line else {**of_gallery, **line, "score": line["mean"]} for line in found]


def key_of(record: Data) -> tuple[object, ...]:
    return record["label"], record["env"].split(":")[-1], record["seed"], record["score"]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file that the site gets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        file = tmp_path_factory.mktemp("static") / "records.js"
        importlib.import_module("explorer").write(file)
        yield file


@pytest.fixture(scope="module")
def shown(script: Path) -> Data:
    """The data in it."""
    start, end = "const RECORDS = ", ";\n"
    text = script.read_text(encoding="utf-8")
    assert text.startswith(start) and text.endswith(end)
    found: Data = json.loads(text[len(start) : -len(end)])
    return found


def lacking(shown: Data) -> dict[str, Counter[tuple[object, ...]]]:
    """Return the records of each file that the page lacks."""
    found: dict[str, Counter[tuple[object, ...]]] = defaultdict(Counter)
    for group in shown["groups"]:
        for seed, score, places, _ in group["runs"]:
            for place in places:
                found[shown["experiments"][place]["name"]][group["setting"], group["env"], seed, score] += 1
    missing = {}
    for file in FILES:
        name = file.name.partition(".")[0]
        if rest := Counter(map(key_of, raw(file))) - found[name]:
            missing[name] = rest
    return missing


def test_the_page_has_every_record(shown: Data) -> None:
    assert len(FILES) > 15 and lacking(shown) == {}
    # And no other: as many runs as records with different names or scores.
    names = {(record.get("name", json.dumps(record)), record["score"]) for file in FILES for record in raw(file)}
    assert sum(len(group["runs"]) for group in shown["groups"]) == len(names)


def points_of(record: Data) -> list[float]:
    """Work out the points of a curve, at the end of every second of 100 spans of steps."""
    values: list[float] = []
    for value in record.get("trailing") or record["curve"]:
        values.append(values[-1] if value is None and values else math.nan if value is None else value)
    if not record.get("trailing"):
        windows = [[value for value in values[max(i - 4, 0) : i + 1] if not math.isnan(value)] for i in range(100)]
        values = [fmean(window or [math.nan]) for window in windows]
    return values[1::2]


@pytest.mark.parametrize("name", ["table1-text", "separate-200k", "recurrent", "gallery"])
def test_the_curves_are_those_of_the_records(name: str, shown: Data) -> None:
    (file,) = (file for file in FILES if file.name.startswith(f"{name}."))
    place = [experiment["name"] for experiment in shown["experiments"]].index(name)
    found: dict[tuple[object, ...], list[list[float | None]]] = defaultdict(list)
    for group in shown["groups"]:
        for seed, score, places, curve in group["runs"]:
            if place in places:
                found[group["setting"], group["env"], seed, score].append(curve)
    for record in raw(file):
        own = np.array(points_of(record))
        # Runs in different conditions may have the same score.
        curves = [np.array(curve, dtype=float) for curve in found[key_of(record)]]
        assert any(np.allclose(curve, own, rtol=CLOSE, atol=1e-12, equal_nan=True) for curve in curves), record["env"]


def javascript(expression: str, script: Path) -> Any:
    """Evaluate an expression after the scripts of the page."""
    return evaluate(expression, script, STATIC / "looks.js", STATIC / "runs.js")


def test_means_and_intervals_are_students(script: Path) -> None:
    runs = [
        record
        for record in raw(RESULTS / "sb3-1m.jsonl.gz")
        if (record["label"], record["env"]) == ("ppo_clip protocol=sb3", "Hopper-v5")
    ]
    select = 'select(RECORDS, {...FIRST, env: "Hopper-v5"}).find(({setting}) => setting === "ppo_clip protocol=sb3")'
    of_scores, points = javascript(
        f"[estimate(scoresOf({select}), RECORDS.factors), curveOf({select}, RECORDS.factors)]", script
    )
    assert len(runs) == 5 and len(points) == 50
    for found, place in ((of_scores, 99), (points[-1][1:], 99), (points[24][1:], 49)):
        values = np.array([run["trailing"][place] for run in runs])
        # At the level that gives 95% intervals for skewed scores.
        half = t.ppf(0.985, 4) * values.std(ddof=1) / np.sqrt(5)
        expected = [values.mean(), values.mean() - half, values.mean() + half]
        assert found == pytest.approx(expected, rel=CLOSE)
    assert points[24][0] == runs[0]["steps"] / 2


def test_few_or_equal_scores_have_no_interval(script: Path) -> None:
    found = javascript("[[1, 2, 4], [1, 1, 1, 1, 1]].map((scores) => estimate(scores, RECORDS.factors))", script)
    assert found == [[pytest.approx(7 / 3), None, None], [1, None, None]]


def test_settings_look_as_in_reports(script: Path) -> None:
    found = javascript("[...Array(30).keys()].map(lookOf)", script)
    comparison = Comparison([comparing.record(f"ppo_clip clip_range={index}", "A-v0", 0, 1.0) for index in range(30)])
    for own, look in zip(found, looks(comparison).values(), strict=True):
        dashes = [] if look["linestyle"] == "solid" else look["linestyle"][1]
        width = 2
        assert own["stroke"] == look["color"]
        assert own["stroke-dasharray"] == (" ".join(f"{width * each:g}" for each in dashes) or "none")


def test_settings_are_listed_as_their_curves_end(script: Path) -> None:
    records = raw(RESULTS / "table1-text.jsonl.gz")
    of_hopper = [record for record in records if record["env"] == "Hopper-v5"]
    labels = {run["label"] for run in of_hopper}
    means = {label: fmean(run["score"] for run in of_hopper if run["label"] == label) for label in labels}
    found = javascript('sortByScore(select(RECORDS, {...FIRST, experiment: "table1-text", env: "Hopper-v5"}))', script)
    assert found == sorted(means, key=means.__getitem__, reverse=True)
    # Over several pictures, the mean place decides.
    whole = javascript('sortByScore(select(RECORDS, {...FIRST, experiment: "table1-text"}))', script)
    assert sorted(whole) == sorted(means) and whole[0] == "sb3_ppo protocol=sb3" and whole[-1] == "random policy"


def test_the_probability_of_better_scores_is_that_of_mann_and_whitney(script: Path) -> None:
    records = raw(RESULTS / "table1-text.jsonl.gz")
    own, base = (
        [r["score"] for r in records if (r["label"], r["env"]) == (label, "Hopper-v5")]
        for label in ("ppo_clip clip_range=0.1", "sb3_ppo protocol=sb3")
    )
    expected = mannwhitneyu([*own, 1.0], [*base, 1.0]).statistic / (len(own) + 1) / (len(base) + 1)
    assert javascript(f"probabilityOfBetter([...{own}, 1], [...{base}, 1])", script) == pytest.approx(expected)
    select = 'select(RECORDS, {...FIRST, experiment: "table1-text", env: "Hopper-v5"})'
    baseline = f"((groups) => scoresOf(baselineOf(groups, groups.at(-1))))({select})"
    assert sorted(javascript(baseline, script)) == sorted(base)


def test_an_address_keeps_the_selection(script: Path) -> None:
    chosen = {
        "experiment": "all", "env": "Hopper-v5", "protocol": "released-code, actions clipped", "algorithm": "SB3's PPO",
        "with": "clip_range=0.2 gamma=0.99", "hide": ["ppo_clip a={'b': 1}", "x & y#z"],
    }  # fmt: skip
    assert javascript(f"readSelection(writeSelection({json.dumps(chosen)}))", script) == chosen
    assert javascript('readSelection("")', script) == javascript("FIRST", script)


def test_filters_leave_what_they_say(script: Path) -> None:
    select = """select(RECORDS, {...NO_LIMITS, protocol: "released-code", env: "Hopper-v5", with: "clip_range=lin_0.2"})
        .map(({setting, runs}) => [setting, runs.map(([seed]) => seed)])"""
    found = javascript(select, script)
    # Three seeds are in one file and two in another. The random policy is always there.
    assert ["ppo_clip clip_range=0.2", [0, 1, 2, 3, 4]] in found
    assert {setting for setting, _ in found} == {"ppo_clip clip_range=0.2", "random policy"}
    envs = javascript('choices(RECORDS, {...FIRST, env: "Hopper-v5"}, "env")', script)
    assert envs == sorted({record["env"] for record in raw(RESULTS / "sb3-1m.jsonl.gz")})
    words = 'hasHyperparameters(["clip_range=0.25", "gamma=0.9"], "clip_range=0.2")'
    assert not javascript(words, script) and javascript(words.replace('"clip_range=0.2"', '"gamm clip"'), script)


def test_the_downloads_have_what_is_shown(script: Path, shown: Data) -> None:
    select = 'select(RECORDS, {...FIRST, experiment: "separate-200k"})'
    curves, scores, runs = javascript(
        f"((groups) => [curvesCSV(groups, RECORDS.factors), scoresCSV(groups, RECORDS.experiments),"
        f" asJSON(groups, RECORDS)])({select})",
        script,
    )
    records = raw(RESULTS / "separate-200k.jsonl.gz")
    expected = Counter(map(key_of, records))
    rows = list(csv.DictReader(io.StringIO(scores)))
    assert Counter((r["setting"], r["environment"], int(r["seed"]), float(r["score"])) for r in rows) == expected
    groups = json.loads(runs)
    listed = Counter((g["setting"], g["env"], run["seed"], run["score"]) for g in groups for run in g["runs"])
    assert listed == expected
    (given,) = (g["hyperparameters"] for g in groups if g["setting"] == "ppo_clip" and g["env"] == "Hopper-v5")
    own = next(r["hyperparameters"] for r in records if r["label"] == "ppo_clip" and r["env"] == "Hopper-v5")
    assert dict(text.split("=", 1) for text in given) == {n: json.dumps(v).strip('"') for n, v in own.items()}
    last = {(r["setting"], r["environment"]): float(r["mean"]) for r in csv.DictReader(io.StringIO(curves))}
    assert len(last) == len(groups)
    for group in groups:
        ends = [run["curve"][-1] for run in group["runs"]]
        assert last[group["setting"], group["env"]] == pytest.approx(np.mean(ends))


def test_a_seed_that_gave_another_score_is_another_run(tmp_path: Path) -> None:
    explorer = importlib.import_module("explorer")
    record = raw(RESULTS / "hopper.jsonl.gz")[0]
    lines = (json.dumps({**record, "score": score}) for score in (1.0, 2.0, 1.0))
    for name, line in zip("abc", lines, strict=True):
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(line.encode()))
    (group,) = explorer.collect(tmp_path)["groups"]
    assert [(run.score, run.experiments) for run in group["runs"]] == [(1.0, [0, 2]), (2.0, [1])]


def test_experiments_have_titles_and_pages(shown: Data) -> None:
    assert {experiment["name"] for experiment in shown["experiments"]} == {f.name.partition(".")[0] for f in FILES}
    for experiment in shown["experiments"]:
        assert experiment["title"] != experiment["name"]
        assert (ROOT / "docs" / f"{experiment['page']}.md").is_file()
