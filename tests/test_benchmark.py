"""The benchmarks run and report what they measured."""

import json
import sys
from pathlib import Path

import pytest
import torch as th

from helpers import ACTION_SPACES, noise_envs
from sb3_ppo_variants.benchmark import agreement, cold, gallery, guard, learning, stepping, throughput
from sb3_ppo_variants.benchmark.__main__ import main
from sb3_ppo_variants.benchmark.runs import read


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = throughput.Workload(lambda: noise_envs(ACTION_SPACES["Box"]), "MlpPolicy", {"n_steps": 32})
    monkeypatch.setitem(throughput.WORKLOADS, "cartpole", workload)


def test_throughput(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "runs.json"
    arguments = [
        "--workloads",
        "cartpole",
        "--algorithms",
        "PPOClip",
        "PPOFixedKL",
        "--pairs",
        "3",
        "--json",
        str(file),
    ]
    assert main(["throughput", *arguments]) == 0
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


@pytest.mark.parametrize(("bar", "code"), [(-1e9, 0), (1e9, 1)])
def test_learning_reports_a_missed_bar(
    bar: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = learning.Task("CartPole-v1", n_envs=2, timesteps=64, seeds=2, bar=bar, settings={"n_steps": 32})
    monkeypatch.setattr(learning, "TASKS", [task])
    monkeypatch.setattr(learning, "EVALUATION_EPISODES", 2)
    assert main(["learning", "--jobs", "1"]) == code
    assert capsys.readouterr().out.count("| CartPole-v1 | 64 |") == len(learning.VARIANTS)


def test_throughput_of_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["throughput", "--workloads", "cartpole", "--reference", "--pairs", "1"]) == 0
    assert "| cartpole | PPOClip, fast=False |" in capsys.readouterr().out


def test_peers_say_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sbx", None)
    with pytest.raises(SystemExit, match="pip install sbx-rl"):
        main(["throughput", "--peers"])


def test_workloads_of_many_envs_have_one_size_of_rollout() -> None:
    for name in ("cartpole-1", "cartpole-32", "halfcheetah-128"):
        workload = throughput.WORKLOADS[name]
        assert workload.settings["n_steps"] * int(name.split("-")[1]) == throughput.ROLLOUT
    env = throughput.WORKLOADS["cartpole-32"].make_env()
    assert env.num_envs == 32


def test_cold_processes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(cold.RUNS, "cartpole", 64)
    assert main(["cold", "--workloads", "cartpole", "--pairs", "1"]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[2] for row in rows] == ["PPO", "PPOClip"]
    for row in rows:
        assert float(row[3]) > 0 and 50 < float(row[4].strip(" |")) < 10_000


def test_stepping(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    envs = stepping.WORKLOADS["halfcheetah"]
    few = {name: envs[name] for name in (stepping.REFERENCE, "make_gymnasium_vec_env, sync", "make_envpool_vec_env")}
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
    """Ratios of runs side by side are 2, 4 and 3; 10 environments take 5 steps in 2 seconds."""
    measured = {stepping.REFERENCE: [4.0, 8.0, 6.0], "fast": [2.0, 2.0, 2.0]}
    assert stepping.rows("w", 10, 5, measured)[1] == "| w | fast | 3.00 (2.50 to 3.50) | 25 |"


@pytest.mark.parametrize("name", stepping.WORKLOADS)
def test_environments_of_stepping_have_the_same_spaces(name: str) -> None:
    venvs = [make(1) for make in stepping.WORKLOADS[name].values()]
    for venv in venvs[1:]:
        assert venv.observation_space == venvs[0].observation_space and venv.action_space == venvs[0].action_space
    for venv in venvs:
        venv.close()


@pytest.fixture
def small_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    task = agreement.Task(n_envs=2, timesteps=384, seeds=2, settings={"n_steps": 64})
    monkeypatch.setattr(agreement, "TASKS", {"CartPole-v1": task})


@pytest.mark.usefixtures("small_agreement")
def test_agreement_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "deeper" / "runs.jsonl"
    arguments = ["agreement", "--jobs", "1", "--records", str(file)]
    assert main([*arguments, "--arms", "SB3's PPO"]) == 0
    before = read(file)
    assert len(before) == 2 and all(len(record["curve"]) == agreement.SPANS for record in before)
    assert main(arguments) == 0
    after = read(file)
    assert after[:2] == before and len(after) == 2 * len(agreement.ARMS)
    table = capsys.readouterr().out
    for arm in agreement.ARMS:
        assert f"| CartPole-v1 | 384 | {arm} | 2 |" in table
    # The reference is SB3's PPO bit for bit, so that its episodes are too.
    finals = agreement.finals(after, "CartPole-v1")
    assert sorted(finals["SB3's PPO"].ravel()) == sorted(finals["PPOClip, fast=False"].ravel())


def test_the_report_of_agreement_is_made_of_the_records(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    records = [{"env": "CartPole-v1", "arm": "SB3's PPO", "seed": i, "final": 10.0 * i, "curve": []} for i in range(4)]
    file.write_text("\n".join(json.dumps(record) for record in records) + "\n")
    assert main(["agreement", "--report", "--records", str(file)]) == 0
    # The interquartile mean of 0, 10, 20, 30 is that of 10 and 20.
    assert "| SB3's PPO | 4 | 15 (" in capsys.readouterr().out
    assert len(read(file)) == 4


@pytest.mark.parametrize("command", ["throughput", "cold", "stepping"])
def test_no_pairs_are_refused(command: str) -> None:
    with pytest.raises(SystemExit, match="--pairs 0 is not allowed"):
        main([command, "--pairs", "0"])


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joblib", None)
    with pytest.raises(ImportError, match=r"sb3_ppo_variants\[benchmark\]"):
        main(["learning"])


def test_an_unknown_workload_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["throughput", "--workloads", "pong"])
    assert "invalid choice: 'pong'" in capsys.readouterr().err


def test_gallery_makes_what_has_no_record_and_shows_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = {"env": "CartPole-v1", "seed": 1, "timesteps": 100_096, "recipe_timesteps": 100_000, "cpu_seconds": 90}
    records = tmp_path / "gallery.jsonl"
    records.write_text(json.dumps({**made, "mean": 480.4, "curve": [None, *range(99)]}) + "\n")
    options = ["--envs", "CartPole-v1", "--seeds", "1", "2", "--timesteps", "256", "--jobs", "1"]
    assert main(["gallery", *options, "--records", str(records), "--gallery", str(tmp_path / "page")]) == 0
    runs = [json.loads(line) for line in records.read_text().splitlines()]
    assert [(run["seed"], run["timesteps"]) for run in runs] == [(1, 100_096), (2, 256)]
    assert len(runs[1]["curve"]) == gallery.SPANS
    text = (tmp_path / "page/README.md").read_text()
    assert f"Reached 480, {runs[1]['mean']:.0f} (seeds 1, 2) after" in text
    assert "To reach: 500." in text
    assert (tmp_path / "page/CartPole-v1.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert gallery.summary(gallery.runs_of(runs, "CartPole-v1")[:1]) == (
        "Reached 480 (seed 1) after 100,096 steps, in 1.5 minutes of one core each."
    )


@pytest.mark.parametrize(("bar", "code"), [(-1e9, 1), (1e9, 0)])
def test_the_cost_of_the_guards(
    bar: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guard, "BAR", bar)
    file = tmp_path / "shares.json"
    arguments = ["--workloads", "cartpole", "--reference", "--pairs", "2", "--json", str(file)]
    assert main(["guard", *arguments]) == code
    table = capsys.readouterr().out
    assert "| cartpole | fast |" in table and "| cartpole | reference |" in table
    assert [len(shares) for shares in json.loads(file.read_text()).values()] == [2, 2]


def test_what_has_no_guards_takes_the_same_steps() -> None:
    guarded, unguarded = (
        cls("MlpPolicy", noise_envs(ACTION_SPACES["Box"]), n_steps=16, batch_size=16, seed=0, device="cpu").learn(64)
        for cls in (guard.PPOClip, guard.Unguarded)
    )
    for ours, theirs in zip(guarded.policy.parameters(), unguarded.policy.parameters(), strict=True):
        assert th.equal(ours, theirs)
