"""The pages have the speeds and other measurements that the commands print from the committed files."""

import json
import re
from statistics import median

import numpy as np
import pytest
from committed import ROOT, section
from scipy.stats import permutation_test

from benchmarks.__main__ import main


@pytest.mark.parametrize("command", ["scaling", "scaling-learning"])
def test_the_page_about_processes_has_what_was_measured(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--report", str(ROOT / "results" / f"{command}.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) > 2 and set(table) <= set((ROOT / "docs" / "parallel.md").read_text().splitlines())


def test_what_the_page_says_of_two_processes() -> None:
    measured = json.loads((ROOT / "results" / "scaling.json").read_text())["runs"]
    gains = [median(np.divide(of["2 processes"], of["1 process"])) for of in measured.values()]
    text = (ROOT / "docs" / "parallel.md").read_text()
    page = " ".join(text.split())
    assert f"two processes reach at most {max(gains):.1f} times the speed of one" in page
    predicted = re.findall(r"^\| [\w-]+ \| (\d+)% \| (\d+)% \|", text, re.MULTILINE)
    excess = max(int(model) / int(seen) for model, seen in predicted)
    assert len(predicted) == len(gains) and f"the prediction is up to {excess:.1f} times what was measured" in page


def test_that_one_and_two_processes_are_not_told_apart() -> None:
    curves = json.loads((ROOT / "results" / "scaling-learning.json").read_text())["curves"].values()
    last = [[points[-1][1] for points in of_label] for of_label in curves]
    assert list(map(len, last)) == [5, 5]
    p = permutation_test(last, lambda one, two, axis: one.mean(axis) - two.mean(axis), vectorized=True).pvalue
    assert p > 0.05 and f"A permutation test gives p = {p:.2f}" in (ROOT / "docs" / "parallel.md").read_text()


def test_the_page_has_the_speeds_of_other_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peers", "--report", str(ROOT / "results" / "peers.json")]) == 0
    assert capsys.readouterr().out in (ROOT / "docs" / "speed.md").read_text()


def test_the_pages_have_the_speeds(capsys: pytest.CaptureFixture[str]) -> None:
    tables = {}
    for name in ("throughput-bars", "throughput-bars-xeon"):
        assert main(["throughput", "--bars", "--report", str(ROOT / "results" / f"{name}.json")]) == 0
        tables[name] = capsys.readouterr().out
        assert tables[name] in (ROOT / "docs" / "speed.md").read_text()
    speed = r"\d[^|]*\)"
    row = rf"^\| ([^|]*) \| ({speed}) \| ({speed}) \|$"
    headlines = re.findall(row, section("Numbers", ROOT / "README.md"), re.MULTILINE)
    assert len(headlines) == 4
    for workload, *speeds in headlines:
        assert all(f"| {workload} | {each} |" in table for each, table in zip(speeds, tables.values(), strict=True))


def test_the_home_page_has_the_speeds() -> None:
    runs = json.loads((ROOT / "results" / "throughput-bars.json").read_text())["runs"]
    cartpole, halfcheetah = (
        median(np.divide(runs[name]["seconds"]["PPO"], runs[name]["seconds"]["PPOClip"]))
        for name in ("cartpole", "halfcheetah")
    )
    text = " ".join((ROOT / "docs" / "index.md").read_text().split())
    assert f"{cartpole:.1f} times as fast as SB3's `PPO` in CartPole with 8 environments" in text
    assert f"{halfcheetah:.1f} times in HalfCheetah, on one thread of an AMD EPYC" in text


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("throughput-bars", {"lunarlander": "2.3", "bipedalwalker": "2.7", "humanoid": "3.2", "hopper": "5.2"}),
        ("throughput-bars-xeon", {"lunarlander": "2.4", "bipedalwalker": "3.0", "humanoid": "3.2", "hopper": "5.0"}),
    ],
)
def test_the_page_has_the_limits_that_rollouts_set(name: str, limits: dict[str, str]) -> None:
    runs = json.loads((ROOT / "results" / f"{name}.json").read_text())["runs"]
    alone = {
        of: f"{median(runs[of]['seconds']['PPO']) / median(runs[of]['rollout_seconds']['PPOClip']):.1f}"
        for of in limits
    }
    *others, last = limits.values()
    text = " ".join((ROOT / "docs" / "speed.md").read_text().split())
    assert alone == limits
    assert f"about {', '.join(others)} and {last}" in text


@pytest.mark.parametrize(
    "file",
    [
        *(f"stepping-{workload}" for workload in ("breakout", "halfcheetah", "hopper", "walker2d", "humanoid")),
        *("stepping-lunarlander", "stepping-bipedalwalker", "training-halfcheetah", "training-humanoid"),
        *(f"stepping-{workload}-xeon" for workload in ("mujoco", "humanoid", "lunarlander", "bipedalwalker")),
        *("training-halfcheetah-xeon", "training-humanoid-xeon"),
    ],
)
def test_the_page_has_the_speeds_of_environments(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stepping", "--report", str(ROOT / "results" / f"{file}.json")]) == 0
    _, _, *rows = capsys.readouterr().out.rstrip().splitlines()
    assert len(rows) >= 3 and "\n".join(rows) in (ROOT / "docs" / "envs.md").read_text()


def test_the_pages_have_what_parts_cost(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("parts-distributions", "parts"):
        assert main(["parts", "--report", str(ROOT / "results" / f"{name}.json")]) == 0
    rows = re.findall(r"^\| (\w+.*?) \| (\d\S+) \(", capsys.readouterr().out, re.MULTILINE)
    speeds = dict(rows)
    howto = ROOT / "docs" / "howto"
    bounded, masked = (
        " ".join((howto / name).read_text().split()) for name in ("bounded_actions.md", "masks_and_memory.md")
    )
    of_state, squashed, beta = (speeds[name] for name in list(speeds)[1:4])
    assert f'`PPOClip` trained {of_state} times as fast with `std="state"`' in bounded
    assert f"{squashed} times with the squashed Gaussian and {beta} times with the Beta distribution" in bounded
    assert f"training was {speeds['MaskableMlpLstmPolicy']} times as fast as with `MlpLstmPolicy`" in masked
    assert f"`MlpLstmPolicy` with a GRU was {list(speeds.values())[-1]} times as fast" in masked
    assert main(["parts", "--report", str(ROOT / "results" / "parts-masks.json")]) == 0
    (speed,) = re.findall(r"^\| MaskableMlpPolicy \| (\S+)", capsys.readouterr().out, re.MULTILINE)
    assert f"`MaskableMlpPolicy` trained {speed} times as fast as `MlpPolicy`" in masked


def test_the_page_has_the_speeds_of_threads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["threads", "--report", str(ROOT / "results" / "threads.json")]) == 0
    assert capsys.readouterr().out.partition("\n\n")[0] in (ROOT / "docs" / "speed.md").read_text()


def test_the_page_has_the_model_of_cores(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cores", "--report", str(ROOT / "results" / "cores.json")]) == 0
    checked, estimated, _ = capsys.readouterr().out.split("\n\n", 2)
    page = (ROOT / "docs" / "speed.md").read_text()
    assert checked in page and estimated in page
    assert main(["cores", "--report", str(ROOT / "results" / "cores-xeon.json")]) == 0
    assert capsys.readouterr().out.partition("\n\n")[0] in page
    runs = json.loads((ROOT / "results" / "cores-xeon.json").read_text())["runs"]
    speeds = {
        name: float(np.median(np.divide(runs[name]["1 process"], runs[name][count])))
        for name, count in (("bipedalwalker", "16"), ("halfcheetah", "8"))
    }
    assert f"BipedalWalker x32 is [{speeds['bipedalwalker']:.1f} times]" in page
    assert "eight threads step twice as fast as one" in page and round(speeds["halfcheetah"]) == 2


@pytest.mark.parametrize("command", ["cold", "paths"])
def test_the_page_has_the_other_speeds(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = {"cold": "cold.json", "paths": "zoo-paths.json"}[command]
    assert main([command, "--report", str(ROOT / "results" / file)]) == 0
    table = capsys.readouterr().out.partition("\n\n")[0].rstrip()
    assert table in (ROOT / "docs" / "speed.md").read_text()


@pytest.mark.parametrize(
    "page, workloads", [("masked", ["scheduling"]), ("recurrent", ["cartpole-novel-1", "cartpole-novel-8"])]
)
def test_the_pages_have_the_speeds_beside_sb3_contrib(
    page: str, workloads: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["throughput", "--report", str(ROOT / "results" / "throughput-contrib.json")]) == 0
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if "PPOClip" in line]
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for workload in workloads:
        [(ratio, rate)] = [(line[2], line[3]) for line in lines if line[0] == f"| {workload}"]
        assert f" | {ratio} | {rate} |" in text


def test_the_page_has_the_speeds_with_many_environments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["throughput", "--report", str(ROOT / "results" / "throughput-n-envs.json")]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "| PPOClip |" in line]
    text = (ROOT / "docs" / "speed.md").read_text()
    assert len(rows) == 8 and all(row in text for row in rows)


def test_the_page_has_the_speeds_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "speed.md").read_text()
    page, over = " ".join(text.split()), {}
    for name in ("throughput-h200", "throughput-h200-8-threads"):
        file = ROOT / "results" / f"{name}.json"
        assert main(["throughput", "--report", str(file)]) == 0
        assert capsys.readouterr().out in text
        for workload, of in json.loads(file.read_text())["runs"].items():
            over[workload] = median(np.divide(of["seconds"]["PPOClip on cpu"], of["seconds"]["PPOClip"]))
    faster, wider = 1 / over["halfcheetah"], 1 / over["halfcheetah-zoo"]
    assert f"trains {faster:.0f} times as fast as the GPU with 64 units, and {wider:.0f} times with 256" in page
    assert f"With the LSTM, it takes {over['cartpole-novel-8']:.1f} times as long" in page
    assert f"takes {over['halfcheetah-wide']:.1f} times as long as the GPU with 1024 units" in page
    assert f"and {over['breakout']:.1f} times with the images of SB3's wrappers" in page


def test_the_page_has_the_estimates_of_the_kl(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kl-estimators", "--report", str(ROOT / "results" / "kl-estimators.json")]) == 0
    assert capsys.readouterr().out in (ROOT / "docs" / "details.md").read_text()


def test_the_table_of_what_can_be_used_has_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["throughput", "--report", str(ROOT / "results" / "throughput-variants.json")]) == 0
    reports = [ROOT / "docs" / name / "report.md" for name in ("table1-text", "masked", "recurrent")]
    measured = re.sub(" +", " ", capsys.readouterr().out + "".join(report.read_text() for report in reports))
    rows = section("Measured results", ROOT / "docs" / "can_i_use.md").splitlines()
    cells = [
        cell for row in rows if row.startswith(("| speed", "| normalised", "| return")) for cell in row.split(" | ")[1:]
    ]
    assert len(cells) == 6 * 4
    for cell in cells:
        assert f"| {cell.removesuffix(' |')} |" in measured


def test_the_other_classes_are_as_fast_as_ppo_clip() -> None:
    measured = json.loads((ROOT / "results" / "throughput-variants.json").read_text())
    for workload in measured["runs"].values():
        seconds = {name: median(runs) for name, runs in workload["seconds"].items()}
        for other in ("PPOAdaptiveKL", "PPOFixedKL", "PPOUnclipped"):
            assert seconds["PPOClip"] / seconds[other] > 0.95


def test_the_workloads_that_reach_their_bar_are_counted() -> None:
    text = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    words = " ".join(text.split())
    rows = re.findall(r"^\| .+? \| ([\d.]+) \(.*?\) \| ([\d.]+) \| [\d.]+ \|$", text, re.MULTILINE)
    said = {3: "Three of the twelve workloads reach their bar", 4: "four of the twelve workloads reached their bar"}
    for of_table in (rows[:12], rows[12:]):
        assert len(of_table) == 12
        assert said[sum(float(median) >= float(bar) for median, bar in of_table)] in words


def test_which_runs_give_the_same_records_again() -> None:
    page = " ".join((ROOT / "docs" / "compare.md").read_text().split())
    same: set[tuple[str, ...]] = set()
    others: set[tuple[str, ...]] = set()
    for name in ("rerun", "rerun-seed2", "rerun-rc1", "rerun-robustness"):
        found = json.loads((ROOT / "results" / f"{name}.json").read_text())
        assert "AMD EPYC" in found["machine"] and found["versions"]["sb3_ppo_variants"] == "1.0.0"
        for run in found["drawn"]:
            (same if run["same"] else others).add((run["version"], run["label"], run["env"]))
    assert {version for version, *_ in same} == {"1.0.0"} and {version for version, *_ in others} == {"1.0.0rc1"}
    assert len(same) == 8 and "eight runs gave the same records, to all digits" in page
    assert len(others) == 3 and "Three runs made with version 1.0.0rc1 did not with 1.0.0" in page
