"""What a single run of a comparison records."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.callbacks import Supervised
from sb3_ppo_variants.collector import Reads
from sb3_ppo_variants.compare import ALGORITHM_PATHS, records
from sb3_ppo_variants.compare.plan import Conditions, Run, make_plan, read_setting
from sb3_ppo_variants.compare.runs import RunLog, perform

OTHER_TASKS = {
    "contrib_maskable_ppo": ("examples.environments:Scheduling-v0", {"policy": "MaskableMlpPolicy", "n_steps": 32}),
    "contrib_recurrent_ppo": ("examples.environments:CartPoleNoVel-v1", {"policy": "MlpLstmPolicy", "n_steps": 32}),
}


def runs_of(setting: str, env: str = "CartPole-v1", **conditions: Any) -> list[Run]:
    """Return the run of the random policy and that of a setting."""
    return make_plan([read_setting(setting)], [env], 1, [Conditions(**{"timesteps": 64, **conditions})])


def test_a_run_is_told_only_of_the_environments() -> None:
    assert Supervised(RunLog(), progress_bar=False).reads is Reads.ENVS


def test_a_random_policy_keeps_to_the_masks() -> None:
    env, policy = OTHER_TASKS["contrib_maskable_ppo"]
    record = perform(runs_of("contrib_maskable_ppo", env, parameters=policy)[0])
    assert record["status"] == "finished", record["error"]
    assert len(record["last_returns"]) == 100 and record["steps"] == 100 * 12


def test_a_run_without_an_episode_has_no_score() -> None:
    record = perform(runs_of("ppo_clip:n_envs=1,n_steps=64", "Pendulum-v1")[1])
    assert (record["status"], record["score"], record["last_returns"], record["steps"]) == ("finished", None, [], 64)


def test_what_fails_is_recorded(tmp_path: Path) -> None:
    record = perform(runs_of("ppo_clip", "troubled_envs:PaysTooMuch-v0")[0])
    assert record["status"] == "failed" and "ValueError: the returns of episodes are not finite" in record["error"]
    records.write(tmp_path, record)
    assert records.read(tmp_path) == [record]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("setting", [*ALGORITHM_PATHS, "test_compare_plan:Mine:extra=4"])
def test_every_algorithm_is_trained(setting: str) -> None:
    env, policy = OTHER_TASKS.get(setting, ("CartPole-v1", {}))
    setting += ":objective=own_objectives:SPO(0.2)" if setting == "ppo_custom" else ""
    record = perform(runs_of(setting, env, parameters={"n_envs": 1, "n_steps": 32, "batch_size": 32, **policy})[1])
    assert record["status"] == "finished", record["error"]
    assert record["steps"] == 64
    # The record can be written as JSON.
    assert json.loads(json.dumps(record)) == record


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives the same record as one that was never cut, and repeats only the steps after the checkpoint."""
    conditions: Any = {"timesteps": 512, "parameters": {"n_envs": 1, "n_steps": 32, "batch_size": 32}}
    (_, run) = runs_of("ppo_clip", resume_every=128, **conditions)
    whole = perform(run, to_resume=tmp_path / "whole")
    assert whole["status"] == "finished", whole["error"]
    taken: list[int] = []
    note, cut_at = RunLog.note, 300

    def note_or_cut(log: RunLog, step: int, infos: list[Any]) -> None:
        taken.append(step)
        if step == cut_at:
            raise KeyboardInterrupt
        note(log, step, infos)

    monkeypatch.setattr(RunLog, "note", note_or_cut)
    monkeypatch.setattr(time, "perf_counter", lambda: float(len(taken)))
    folders: dict[str, Any] = {"to_resume": tmp_path / "ckpt", "tensorboard": tmp_path / "boards"}
    with pytest.raises(KeyboardInterrupt):
        perform(run, **folders)
    cut_at = 0
    cut = perform(run, **folders)
    assert taken == [*range(1, 301), *range(257, 513)]
    same = ("name", "score", "steps", "episodes", "training")
    assert {part: cut[part] for part in same} == {part: whole[part] for part in same}
    # The seconds of the first attempt count up to the checkpoint.
    assert cut["wall_seconds"] == 512
    assert len(list((tmp_path / "boards" / run.name).glob("*/events.*"))) == 2  # Of both attempts.
    # A run without checkpoints has other episodes, and is another run.
    (_, other) = runs_of("ppo_clip", **conditions)
    assert other.name != run.name and perform(other)["episodes"] != whole["episodes"]


def test_a_run_whose_checkpoints_are_damaged_says_how_to_begin_it_anew(tmp_path: Path) -> None:
    (_, run) = runs_of("ppo_clip", resume_every=64)
    (tmp_path / run.name / "step_000000064").mkdir(parents=True)
    failed = perform(run, to_resume=tmp_path)
    assert failed["status"] == "failed"
    assert failed["error"].strip().endswith(f"; remove {tmp_path / run.name} to begin the run anew")


def test_a_model_that_cannot_be_saved_costs_no_result(tmp_path: Path) -> None:
    (tmp_path / "full").touch()  # A file where the folder would be.
    (_, run) = runs_of("ppo_clip:n_envs=1,n_steps=64")
    with pytest.warns(UserWarning, match=f"^the model of {run.name} could not be saved: "):
        record = perform(run, checkpoints=tmp_path / "full")
    assert record["status"] == "finished" and record["steps"] == 64


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["ppo_clip", "sb3_ppo"])
def test_the_fastest_environments_give_the_same_record(setting: str) -> None:
    # The random policy acts in one environment, of which there is no batch.
    runs = runs_of(setting, "HalfCheetah-v5", entry="mujoco", parameters={"n_steps": 512, "n_envs": 2})
    for run, batch in zip(runs, ("DummyVecEnv", "MujocoVecEnv"), strict=True):
        shorter = replace(run, timesteps=2048)  # The run of the random policy takes 100 episodes.
        first, second = dict(perform(shorter)), dict(perform(shorter, fast_envs=True, cores=2))
        assert (first["vec_env"], second["vec_env"]) == ("DummyVecEnv", batch)
        assert {name for name in first if first[name] != second[name]} <= {"vec_env", "wall_seconds", "cpu_seconds"}
        assert first["score"] is not None


def test_a_run_leaves_nothing_in_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = runs_of("ppo_clip", "HalfCheetah-v5", entry="mujoco", parameters={"n_steps": 64})[1]
    assert perform(run)["status"] == "finished"
    # MuJoCo would warn about this model, in the terminal and in MUJOCO_LOG.TXT.
    assert list(tmp_path.iterdir()) == []
    assert "settotalmass" not in "".join(capfd.readouterr())


def test_what_computed_a_run_is_recorded() -> None:
    mujoco = pytest.importorskip("mujoco")
    assert records.numerics(PPOClip("MlpPolicy", "CartPole-v1", fast=False))["path"] == "reference"
    described = records.circumstances()
    assert described["versions"]["mujoco"] == mujoco.__version__ and records.processor() in described["machine"]


@pytest.mark.slow
def test_runs_log_to_tensorboard_and_learn_the_same(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, run = runs_of("ppo_clip", timesteps=512, parameters={"n_steps": 16, "batch_size": 64})
    logged, plain = perform(run, tensorboard=tmp_path), perform(run)
    assert all(logged[part] == plain[part] for part in ("episodes", "training"))
    events = EventAccumulator(str(tmp_path / run.name / "PPOClip_1"))
    events.Reload()
    # SB3 logs the statistics of an update with the next rollout.
    assert [event.step for event in events.Scalars("train/kl")] == [256, 384, 512, 512]
