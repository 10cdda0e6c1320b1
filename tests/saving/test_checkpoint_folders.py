"""Folders of checkpoints: which are kept, damaged ones, and folders of other runs."""

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from resuming import pendulums, steps
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EveryNTimesteps
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from helpers import small
from sb3_ppo_variants import ArgumentError, DamagedFileError, ExactCheckpointCallback, PPOAdaptiveKL, PPOClip


def checkpoints(folder: Path) -> list[Path]:
    small(PPOClip, VecNormalize(pendulums())).learn(128, callback=ExactCheckpointCallback(32, folder))
    return sorted(folder.iterdir())


def test_the_last_ones_are_kept_and_what_a_killed_job_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / f".step_000000096.{16 * 'a'}.tmp"
    left.mkdir()
    (left / "model.zip").touch()
    model = small(PPOClip, pendulums())
    for _ in range(2):
        model.learn(96, callback=ExactCheckpointCallback(32, tmp_path, keep_last=2), reset_num_timesteps=False)
    assert steps(tmp_path) == ["step_000000128", "step_000000160"]


def test_the_end_may_be_told_twice_as_the_zoo_does(tmp_path: Path) -> None:
    """ExperimentManager.learn of rl_zoo3 calls on_training_end of its first callback after model.learn has."""
    callback = ExactCheckpointCallback(100, tmp_path, at_end=True)
    small(PPOClip, pendulums()).learn(64, callback=callback)
    callback.on_training_end()
    assert steps(tmp_path) == ["step_000000000", "step_000000064"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("file", ["model.zip", "state.json", "vecnormalize.pkl", "SHA256SUMS"])
@pytest.mark.parametrize("damage", ["flipped", "truncated", "removed"])
def test_a_damaged_newest_one_falls_back_to_the_one_before(file: str, damage: str, tmp_path: Path) -> None:
    newest = checkpoints(tmp_path)[-1] / file
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "removed":
        newest.unlink()
    else:
        newest.write_bytes(content if damage == "flipped" else content[:-1])
    with pytest.raises(DamagedFileError, match="step_000000096"):
        PPOClip.resume_or_start(newest.parent, "MlpPolicy", VecNormalize(pendulums()))
    with pytest.warns(UserWarning, match=r"step_000000096.* going back to step_000000064"):
        model = PPOClip.resume(tmp_path, VecNormalize(pendulums()))
    assert model.num_timesteps == 64
    model.learn(64, callback=ExactCheckpointCallback(32, tmp_path), reset_num_timesteps=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert PPOClip.resume(tmp_path, VecNormalize(pendulums())).num_timesteps == 96


def test_none_is_whole_or_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="There is no checkpoint in"):
        PPOClip.resume(tmp_path, pendulums())
    for folder in checkpoints(tmp_path):
        (folder / "state.json").unlink()
    for resume in (PPOClip.resume, lambda path, env: PPOClip.resume_or_start(path, "MlpPolicy", env)):
        with pytest.raises(DamagedFileError, match=r"every checkpoint is damaged: .*step_000000032/state.json"):
            resume(tmp_path, VecNormalize(pendulums()))


def test_values_that_replace_those_of_the_run(tmp_path: Path) -> None:
    checkpoints(tmp_path)
    objects = {"learning_rate": 0.5, "clip_range": lambda _: 0.125}
    model = PPOClip.resume(tmp_path, VecNormalize(pendulums()), custom_objects=objects)
    model.learn(model.num_timesteps + 32, reset_num_timesteps=False)
    assert model.policy.optimizer.param_groups[0]["lr"] == 0.5
    assert model.logger.name_to_value["train/clip_range"] == 0.125


def test_another_environment_or_class_is_refused(tmp_path: Path) -> None:
    checkpoints(tmp_path)
    with pytest.raises(ArgumentError, match="env has 0 VecNormalize wrappers, but the run had 1"):
        PPOClip.resume(tmp_path, pendulums())
    with pytest.raises(ArgumentError, match=f"env has 3 environments, but the run in {tmp_path} had 2: pass as many"):
        PPOClip.resume(tmp_path, VecNormalize(make_vec_env("Pendulum-v1", 3)))
    with pytest.raises(ArgumentError, match=r"^env=None, but resume"):
        PPOClip.resume(tmp_path, None)  # type: ignore[arg-type]
    with pytest.raises(DamagedFileError, match="this is a PPOClip, not a PPOAdaptiveKL"):
        PPOAdaptiveKL.resume(tmp_path, VecNormalize(pendulums()))


def test_a_folder_of_another_run_is_refused_before_it_is_touched(tmp_path: Path) -> None:
    before = [path.name for path in checkpoints(tmp_path)]
    other = small(PPOClip, pendulums())
    with pytest.raises(ArgumentError, match=r"path=.*step_000000096 of another run"):
        other.learn(64, callback=ExactCheckpointCallback(32, tmp_path))
    earlier = PPOClip.resume(tmp_path / "step_000000032", VecNormalize(pendulums()))
    with pytest.raises(ArgumentError, match="contains step_000000096 beyond the checkpoint that this run"):
        earlier.learn(64, callback=ExactCheckpointCallback(32, tmp_path), reset_num_timesteps=False)
    assert steps(tmp_path) == before and other.num_timesteps == 0


def test_another_job_in_the_same_folder_is_noticed(tmp_path: Path) -> None:
    class OtherJob(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 32:
                shutil.copytree(tmp_path / "step_000000000", tmp_path / "step_000000064")
            return True

    with pytest.raises(OSError, match=r"not empty.*step_000000064"):
        small(PPOClip, pendulums()).learn(128, callback=[ExactCheckpointCallback(32, tmp_path), OtherJob()])
    assert steps(tmp_path) == ["step_000000000", "step_000000032", "step_000000064"]


def test_other_files_among_the_checkpoints_are_kept(tmp_path: Path) -> None:
    kept = [tmp_path / "step_1" / "data.txt", tmp_path / "step_2", tmp_path / "notes.txt"]
    for path in kept:
        path.parent.mkdir(exist_ok=True)
        path.write_text("precious")
    small(PPOClip, pendulums()).learn(96, callback=ExactCheckpointCallback(32, tmp_path, keep_last=1))
    assert [path.read_text() for path in kept] == 3 * ["precious"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("every", 0), ("every", 1.5), ("path", 3), ("keep_last", 0), ("keep_last", "all"), ("verbose", "yes")],
)
def test_bad_arguments(name: str, value: Any, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"every": 1, "path": tmp_path, name: value}
    with pytest.raises(ArgumentError, match=f"{name}="):
        ExactCheckpointCallback(**arguments)


def test_a_callback_that_is_not_alone_or_not_told_of_rollouts_says_so(tmp_path: Path) -> None:
    model, one, other = small(PPOClip, pendulums()), *(ExactCheckpointCallback(32, tmp_path / name) for name in "ab")
    with pytest.raises(ArgumentError, match="several ExactCheckpointCallbacks: pass one"):
        model.learn(64, callback=[one, CallbackList([other])])
    with pytest.raises(ArgumentError, match="does not see where rollouts begin"):
        model.learn(64, callback=EveryNTimesteps(32, ExactCheckpointCallback(32, tmp_path)))
    assert model.num_timesteps == 0 and not list(tmp_path.iterdir())
