"""The benchmarks run and report what they measured."""

import json
import sys
from pathlib import Path

import pytest

from helpers import ACTION_SPACES, noise_envs
from sb3_ppo_variants.benchmark import learning, throughput
from sb3_ppo_variants.benchmark.__main__ import main


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


def test_no_pairs_are_refused() -> None:
    with pytest.raises(SystemExit, match="--pairs 0 is not allowed"):
        main(["throughput", "--pairs", "0"])


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joblib", None)
    with pytest.raises(ImportError, match=r"sb3_ppo_variants\[benchmark\]"):
        main(["learning"])


def test_an_unknown_workload_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["throughput", "--workloads", "pong"])
    assert "invalid choice: 'pong'" in capsys.readouterr().err
