"""The benchmarks run and report their measurements."""

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3.common.vec_env import VecNormalize

from benchmarks import agents, gallery, stepping, throughput, workloads
from benchmarks.__main__ import TOOLS, main
from helpers import BOX, noise_envs
from sb3_ppo_variants import __main__ as package
from sb3_ppo_variants.compare import records as of_compare


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = workloads.Workload(lambda: noise_envs(BOX), "MlpPolicy", {"n_steps": 32})
    monkeypatch.setitem(workloads.WORKLOADS, "cartpole", workload)


def test_throughput(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "runs.json"
    arguments = ["--workloads", "cartpole", "--algorithms", "PPOClip", "PPOFixedKL", "--pairs", "3"]
    assert main(["throughput", *arguments, "--json", str(file)]) == 0
    table = capsys.readouterr().out
    assert "| cartpole | PPO | 1.00 (1.00 to 1.00) |" in table
    assert main(["throughput", "--report", str(file)]) == 0
    assert capsys.readouterr().out == table
    runs = json.loads(file.read_text())["runs"]["cartpole"]
    assert runs["steps"] == 64
    for name in ("PPO", "PPOClip", "PPOFixedKL"):
        assert f"| cartpole | {name} |" in table
        pairs = list(zip(runs["rollout_seconds"][name], runs["seconds"][name], strict=True))
        assert len(pairs) == 3
        assert all(0 < rollout < whole for rollout, whole in pairs)


def test_peers_say_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sbx", None)
    with pytest.raises(SystemExit, match="pip install sbx-rl"):
        main(["throughput", "--peers"])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", workloads.BARS)
def test_workloads_with_a_bar(name: str) -> None:
    """SB3's PPO and ours have the same spaces and the same number of environments."""
    workload = workloads.WORKLOADS[name]
    theirs, ours = workload.env(ours=False), workload.env()
    assert (theirs.observation_space, theirs.action_space) == (ours.observation_space, ours.action_space)
    assert theirs.num_envs == ours.num_envs
    for env in (theirs, ours):
        env.close()
    assert name not in ("halfcheetah-zoo", "bipedalwalker") or isinstance(ours, VecNormalize)


def test_the_table_of_bars() -> None:
    """The ratios of paired runs are 2, 4 and 3."""
    runs = {"hopper": {"seconds": {"PPO": [4.0, 8.0, 6.0], "PPOClip": [2.0, 2.0, 2.0]}}}
    assert throughput.bars(runs)[2:] == ["| Hopper, 1 environment | 3.00 (2.50 to 3.50) | 5 | 5.5 |"]


def test_stepping(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    envs = stepping.WORKLOADS["halfcheetah"]
    few = {name: envs[name] for name in (stepping.REFERENCE, "make_mujoco_vec_env, 1 thread", "EnvPool")}
    monkeypatch.setitem(stepping.WORKLOADS, "halfcheetah", few)
    file = tmp_path / "runs.json"
    small = ["--workloads", "halfcheetah", "--n-envs", "2", "--steps", "5", "--pairs", "3"]
    assert main(["stepping", *small, "--json", str(file)]) == 0
    table = capsys.readouterr().out
    assert f"| halfcheetah | {stepping.REFERENCE} | 1.00 (1.00 to 1.00) |" in table
    assert main(["stepping", "--report", str(file)]) == 0
    assert capsys.readouterr().out == table
    runs = json.loads(file.read_text())["runs"]["halfcheetah"]
    assert list(runs) == list(few) and all(len(seconds) == 3 and min(seconds) > 0 for seconds in runs.values())


def test_the_table_of_stepping() -> None:
    """The ratios of paired runs are 2, 4 and 3; 10 environments take 5 steps in 2 seconds."""
    measured = {stepping.REFERENCE: [4.0, 8.0, 6.0], "fast": [2.0, 2.0, 2.0]}
    assert stepping.rows("w", 10, 5, measured)[1] == "| w | fast | 3.00 (2.50 to 3.50) | 25 |"


# The function that measures, for each command with a file for results.
MEASURING = {
    "interpolation": "figures.interpolation.line",
    "kl-estimators": "figures.estimators.measure",
    "scaling": "scaling.launch",
    "stepping": "stepping.measure",
    "threads": "threads.measure",
    "throughput": "throughput.measure",
}


@pytest.mark.parametrize("command", MEASURING)
def test_folders_for_results_are_made_first(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "new/folder/results.json"

    def measure(*_: object, **__: object) -> None:
        assert file.parent.is_dir()
        raise KeyboardInterrupt

    monkeypatch.setattr(f"benchmarks.{MEASURING[command]}", measure)
    with pytest.raises(KeyboardInterrupt):
        main([command, "--json", str(file)])


def test_the_help_lists_the_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--help"])
    listed = re.findall(r"^    ([\w-]+)(?:  |$)", capsys.readouterr().out, re.MULTILINE)
    assert listed == [*TOOLS]


MADE: dict[str, Any] = {
    "env": "CartPole-v1", "seed": 1, "timesteps": 100_096, "recipe_timesteps": 100_000, "cpu_seconds": 90,
    "mean": 480.4, "curve": [None, *range(99)],
}  # fmt: skip


def test_gallery_makes_what_has_no_record_and_shows_all(tmp_path: Path) -> None:
    records = tmp_path / "gallery.jsonl"
    records.write_text(json.dumps({**MADE, "timesteps": 256}) + "\n")
    options = ["--envs", "CartPole-v1", "--seeds", "1", "2", "--timesteps", "256", "--jobs", "1"]
    assert main(["gallery", *options, "--records", str(records), "--gallery", str(tmp_path / "page")]) == 0
    runs = [json.loads(line) for line in records.read_text().splitlines()]
    assert [(run["seed"], run["timesteps"]) for run in runs] == [(1, 256), (2, 256)]
    assert len(runs[1]["curve"]) == gallery.SPANS
    text = (tmp_path / "page/README.md").read_text()
    assert f"Reached 480, {runs[1]['mean']:.0f} (seeds 1, 2) after 256 steps of the recipe's 100,000" in text
    assert "Goal: 500." in text
    assert "\n## CartPole-v1 (0% of the recipe's steps)\n" in text
    assert "500 ± 0 (v1, 100k)" in text and "490 ± 6 (v1, 500k)" in text
    assert (tmp_path / "page/CartPole-v1.png").read_bytes().startswith(b"\x89PNG")


def test_gallery_takes_runs_of_a_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, records, published = tmp_path / "runs", tmp_path / "gallery.jsonl", tmp_path / "agents"
    plan = ["--algos", "ppo_clip", "--envs", "CartPole-v1", "--seeds", "2", "--timesteps", "512"]
    assert package.main(["compare", *plan, "--checkpoints", "--jobs", "1", "--out", str(runs)]) == 0
    monkeypatch.setattr(agents, "AGENTS", published)
    options = ["--records", str(records), "--gallery", str(tmp_path / "page"), "--jobs", "1"]
    # The last time, nothing is new.
    for seeds in (["--seeds", "1"], [], []):
        assert main(["gallery", "--runs", str(runs), *seeds, *options]) == 0
        assert len(gallery.read(records)) == (1 if seeds else 2)
    with pytest.raises(SystemExit, match=r"^--timesteps 9 cannot change how long the runs of --runs were"):
        main(["gallery", "--runs", str(runs), "--timesteps", "9", *options])
    trained = {run["seed"]: run for run in of_compare.read(runs / "records") if run["label"] == "ppo_clip"}
    rows = gallery.read(records)
    assert [(row["seed"], row["timesteps"]) for row in rows] == [(0, 512), (1, 512)]
    for row in rows:
        # The first of 100 spans of 5.12 steps ends at step 5.
        ended = {math.ceil(step / 5.12) - 1 for step in trained[row["seed"]]["episodes"]["ends"]}
        assert {span for span, value in enumerate(row["curve"]) if value is not None} == ended
    assert round(agents.published(published / "CartPole-v1").mean, 2) == rows[1]["mean"] != rows[0]["mean"]


def test_gallery_shows_the_mean_of_the_seeds_beside_the_scores_of_others() -> None:
    runs = [{**MADE, "env": "Walker2d-v5", "mean": mean, "recipe_timesteps": 200_192} for mean in (1000, 1400)]
    cells = [cell.strip() for cell in gallery.beside({"Walker2d-v5": runs}).splitlines()[-1].strip("|").split("|")]
    assert cells == [
        "Walker2d-v5 (50% of the recipe's steps)", "100,096", "1200 ± 283", "2", "3479 ± 822 (v3, 1M)",
        "2288 ± 572 (v4, 1M)", "",
    ]  # fmt: skip


def test_gallery_shows_the_longest_runs(tmp_path: Path) -> None:
    records = tmp_path / "gallery.jsonl"
    whole, cut, other = ({**MADE, **of} for of in ({}, {"seed": 2, "timesteps": 1024}, {"env": "Pendulum-v1"}))
    records.write_text("\n".join(map(json.dumps, [whole, cut, other])))
    found = gallery.read(records)
    assert found == [whole, other, cut]
    assert gallery.summary(gallery.runs_of(found, "CartPole-v1")) == (
        "Reached 480 (seed 1) after 100,096 steps, in 1.5 minutes of one core."
    )
    assert gallery.missing(found, "CartPole-v1", [1, 2, 3], None) == [2, 3]
    assert gallery.missing(found, "CartPole-v1", [1, 2, 3], 1024) == [3]
