"""What a single run of a comparison records."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sb3_ppo_variants.__main__ import main
from sb3_ppo_variants.callbacks import Supervised
from sb3_ppo_variants.collector import Told
from sb3_ppo_variants.compare import records
from sb3_ppo_variants.compare.execution import RunState, Tracking, perform
from sb3_ppo_variants.compare.options import ALGORITHM_PATHS
from sb3_ppo_variants.compare.plan import make_plan
from sb3_ppo_variants.compare.settings import Conditions, read_setting

pytestmark = pytest.mark.usefixtures("blank_pictures")


def test_a_run_is_told_only_of_the_environments() -> None:
    _, run = make_plan([read_setting("ppo_clip")], ["CartPole-v1"], 1, Conditions()).runs
    assert Supervised(RunState(run, None), progress_bar=False).told is Told.ENVS


OTHER_TASKS = {
    "contrib_maskable_ppo": ("examples.environments:Scheduling-v0", {"policy": "MaskableMlpPolicy", "n_steps": 32}),
    "contrib_recurrent_ppo": ("examples.environments:CartPoleNoVel-v1", {"policy": "MlpLstmPolicy", "n_steps": 32}),
}


def test_a_random_policy_keeps_to_the_masks() -> None:
    env, policy = OTHER_TASKS["contrib_maskable_ppo"]
    (run, _) = make_plan(
        [read_setting("contrib_maskable_ppo")], [env], 1, Conditions(timesteps=64, parameters=policy)
    ).runs
    record = perform(run)
    assert record["status"] == "finished", record["error"]
    assert len(record["last_returns"]) == 100 and record["steps"] == 100 * 12


def test_a_run_without_an_episode_has_no_score() -> None:
    (_, run) = make_plan([read_setting("ppo_clip:n_envs=1")], ["Pendulum-v1"], 1, Conditions(timesteps=64)).runs
    record = perform(replace(run, hyperparameters={**run.hyperparameters, "n_steps": 64}))
    assert (record["status"], record["score"], record["last_returns"], record["steps"]) == ("finished", None, [], 64)


def test_returns_without_a_finite_mean_are_a_failed_run(tmp_path: Path) -> None:
    run, _ = make_plan([read_setting("ppo_clip")], ["troubled_envs:PaysTooMuch-v0"], 1, Conditions(timesteps=64)).runs
    record = perform(run)
    assert record["status"] == "failed" and "ValueError: the returns are too large for a mean" in record["error"]
    assert records.Writer(tmp_path).write(record) == [record]


def test_an_error_about_a_file_can_be_reported(tmp_path: Path) -> None:
    run, _ = make_plan([read_setting("ppo_clip")], ["troubled_envs:LacksFile-v0"], 1, Conditions(timesteps=64)).runs
    (tmp_path / "records").mkdir()
    records.Writer(tmp_path / "records").write(perform(run))
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert r"FileNotFoundError: no caf\udce9" in (tmp_path / "report.md").read_text(encoding="utf-8")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("setting", [*ALGORITHM_PATHS, "test_compare:Mine:extra=4"])
def test_every_algorithm_is_trained(setting: str) -> None:
    env, policy = OTHER_TASKS.get(setting, ("CartPole-v1", {}))
    setting += ":objective=own_objectives:SPO(0.2)" if setting == "ppo_custom" else ""
    conditions = Conditions(timesteps=64, parameters={"n_envs": 1, "n_steps": 32, "batch_size": 32, **policy})
    (_, run) = make_plan([read_setting(setting)], [env], 1, conditions).runs
    record = perform(run)
    assert record["status"] == "finished", record["error"]
    assert record["steps"] == 64
    # The record can be written as JSON.
    assert json.loads(json.dumps(record)) == record


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives the same record as one that was never cut, and repeats only the steps after the checkpoint."""
    parameters = {"n_envs": 1, "n_steps": 32, "batch_size": 32}
    conditions = Conditions(timesteps=512, parameters=parameters, resume_every=128)
    (_, run) = make_plan([read_setting("ppo_clip")], ["CartPole-v1"], 1, conditions).runs
    whole = perform(run)
    assert whole["status"] == "finished", whole["error"]
    taken: list[int] = []
    note, cut_at = RunState.note, 300

    def note_or_cut(state: RunState, step: int, infos: list[Any]) -> None:
        taken.append(step)
        if step == cut_at:
            raise KeyboardInterrupt
        note(state, step, infos)

    monkeypatch.setattr(RunState, "note", note_or_cut)
    monkeypatch.setattr(time, "perf_counter", lambda: float(len(taken)))
    folders: dict[str, Any] = {"to_resume": tmp_path / "ckpt", "tracking": Tracking(tmp_path / "boards")}
    with pytest.raises(KeyboardInterrupt):
        perform(run, **folders)
    cut_at = 0
    cut = perform(run, **folders)
    assert taken == [*range(1, 301), *range(257, 513)]
    same = ("name", "score", "steps", "episodes", "training")
    assert {part: cut[part] for part in same} == {part: whole[part] for part in same}  # type: ignore[literal-required]
    # The seconds of the first attempt count up to the checkpoint.
    assert cut["wall_seconds"] == 512
    # A run without checkpoints has other episodes, and is another run.
    (_, other) = make_plan([read_setting("ppo_clip")], ["CartPole-v1"], 1, replace(conditions, resume_every=None)).runs
    assert other.name != run.name and perform(other)["episodes"] != whole["episodes"]
    assert len(list((tmp_path / "boards" / run.name).glob("events.*"))) == 2  # Of both attempts.


def test_a_run_whose_checkpoints_are_damaged_says_how_to_begin_it_anew(tmp_path: Path) -> None:
    (_, run) = make_plan([read_setting("ppo_clip")], ["CartPole-v1"], 1, Conditions(timesteps=64, resume_every=64)).runs
    folder = tmp_path / run.name
    (folder / "step_000000064").mkdir(parents=True)
    failed = perform(run, to_resume=tmp_path)
    assert failed["status"] == "failed"
    assert failed["error"].strip().endswith(f"; remove {folder} to begin the run anew")


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["ppo_clip", "sb3_ppo"])
def test_the_fastest_environments_give_the_same_record(setting: str) -> None:
    conditions = Conditions(timesteps=2048, entry="mujoco", parameters={"n_steps": 512, "n_envs": 2})
    # The random policy acts in one environment, of which there is no batch.
    runs = make_plan([read_setting(setting)], ["HalfCheetah-v5"], 1, conditions).runs
    for run, batch in zip(runs, ("DummyVecEnv", "MujocoVecEnv"), strict=True):
        shorter = replace(run, timesteps=2048)  # The run of the random policy takes 100 episodes.
        one, other = perform(shorter), perform(shorter, fast_envs=True, cores=2)
        first, second = dict(one), dict(other)
        assert (first["vec_env"], second["vec_env"]) == ("DummyVecEnv", batch)
        assert {name for name in first if first[name] != second[name]} <= {"vec_env", "wall_seconds", "cpu_seconds"}
        assert first["score"] is not None


def test_a_run_leaves_nothing_in_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    conditions = Conditions(timesteps=64, entry="mujoco", parameters={"n_steps": 64})
    (_, run) = make_plan([read_setting("ppo_clip")], ["HalfCheetah-v5"], 1, conditions).runs
    assert perform(run)["status"] == "finished"
    # MuJoCo would warn about this model, in the terminal and in MUJOCO_LOG.TXT.
    assert list(tmp_path.iterdir()) == []
    assert "settotalmass" not in "".join(capfd.readouterr())


def test_an_old_environment_is_warned_of_once(capfd: pytest.CaptureFixture[str]) -> None:
    # This needs a process of its own, because pytest keeps warnings until the tests have ended.
    code = """
from sb3_ppo_variants.compare.execution import check, perform
from sb3_ppo_variants.compare.plan import make_plan
from sb3_ppo_variants.compare.settings import Conditions, read_setting
conditions = Conditions(timesteps=64, entry="mujoco", parameters={"n_steps": 64})
settings = [read_setting(name) for name in ("ppo_clip", "ppo_unclipped")]
runs = [run for run in make_plan(settings, ["HalfCheetah-v4"], 1, conditions).runs if run.algorithm]
check(runs)
assert {perform(run)["status"] for run in runs} == {"finished"}
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert capfd.readouterr().err.count("HalfCheetah-v4 is out of date") == 1
