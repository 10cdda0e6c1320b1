"""The measurements of several processes that train together."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor

from benchmarks import cold, scaling, scaling_learning
from benchmarks.__main__ import main
from benchmarks.scaling_run import Curve
from helpers import NoiseEnv
from sb3_ppo_variants import PPOClip


def test_the_table_of_what_processes_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curves = {"1 process": [[[0, 1.0], [10, 20.0]], [[0, 3.0], [10, 40.0]]], "2 processes": [[[0, 5.0], [10, 7.0]]] * 2}
    file = tmp_path / "learned.json"
    file.write_text(json.dumps({"env": "CartPole-v1", "curves": curves}))
    assert main(["scaling-learning", "--report", str(file), "--picture", str(tmp_path / "curves.png")]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == ["| 1 process | 30 | 20, 40 |", "| 2 processes | 7 | 7, 7 |"]
    assert {each.suffix for each in tmp_path.glob("curves.*")} == {".png", ".svg", ".pdf"}


def test_the_model_of_scaling_by_hand() -> None:
    """One second per update alone, and 2 (W - 1) (38 us + 2 ns n / W) for each of 320 means of n = 11,085 numbers."""
    averages = {"12000": [100e-6], "200000": [476e-6]}
    lines = scaling.model_table(
        {"runs": {"halfcheetah": {"1 process": [2048.0], "2 processes": [3072.0]}}, "averages": averages}
    )
    assert lines[2:] == ["| halfcheetah | 97% | 75% | 85% | 39% | 7% |"]


def test_more_processes_stand_beside_their_prediction() -> None:
    """Four processes that make 1.5 times the steps of one are at 37.5% of what four of them could make."""
    averages = {"12000": [100e-6], "200000": [476e-6]}
    rates = {"1 process": [2048.0], "2 processes": [3072.0], "4 processes": [3072.0], "SB3's PPO": [1000.0]}
    head, _, line = scaling.model_table({"runs": {"halfcheetah": rates}, "averages": averages})
    cells = dict(zip(*([cell.strip() for cell in row.split("|")] for row in (head, line)), strict=True))
    assert (cells["2, as measured"], cells["4, as measured"], cells["8 processes"]) == ("75%", "38%", "85%")


def test_a_curve_ends_with_the_training() -> None:
    """Episodes take 7 steps: 2 of them in the first rollout, and 4 in the two of the run."""
    env, curve = Monitor(NoiseEnv(spaces.Discrete(2))), Curve()
    PPOClip("MlpPolicy", env, n_steps=16, batch_size=16, seed=0, device="cpu").learn(32, callback=curve)
    returns = env.get_episode_rewards()
    assert len(returns) == 4
    steps, means = zip(*curve.points, strict=True)
    assert steps == (16, 32) and means == pytest.approx((np.mean(returns[:2]), np.mean(returns)), abs=0.01)


def test_runs_without_an_episode_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling_learning, "launch", lambda *_: [])
    with pytest.raises(SystemExit, match="--timesteps 5 ends before the first episode of HalfCheetah-v5; pass more"):
        main(["scaling-learning", "--timesteps", "5"])


@pytest.mark.slow
@pytest.mark.parametrize("run", [partial(scaling.launch, 1, "rate", "PPOClip"), partial(cold.measure, "PPO", "pong")])
def test_processes_say_why_they_fail(run: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cold.RUNS, "pong", (("Pong-v99", 1), "MlpPolicy", {}, 64))
    with pytest.raises(SystemExit, match=r"(?s)failed:\n.*(Pong|missing 5 required positional arguments)"):
        run()


def test_processes_are_counted() -> None:
    with pytest.raises(SystemExit, match="--processes must be an integer >= 1, not 0"):
        main(["scaling", "--processes", "0"])
