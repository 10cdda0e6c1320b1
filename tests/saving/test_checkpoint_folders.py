"""Folders of checkpoints: which are kept, damaged ones, and folders of other runs."""

import warnings
from pathlib import Path
from typing import Any

import pytest
from resuming import pendulums, steps
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from helpers import small
from sb3_ppo_variants import ArgumentError, DamagedFileError, ExactCheckpointCallback, PPOAdaptiveKL, PPOClip


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    small(PPOClip, pendulums()).learn(200, callback=ExactCheckpointCallback(32, tmp_path, keep_last=2))
    assert steps(tmp_path) == ["step_000000160", "step_000000192"]


def test_what_a_killed_job_left_is_removed(tmp_path: Path) -> None:
    left = [tmp_path / f".step_{step:09d}.{16 * 'a'}.tmp" for step in (0, 96)]
    for folder in left:
        folder.mkdir()
        (folder / "model.zip").touch()
    small(PPOClip, pendulums()).learn(64, callback=ExactCheckpointCallback(64, tmp_path))
    assert steps(tmp_path) == ["step_000000000"]


def test_the_end_may_be_told_twice_as_the_zoo_does(tmp_path: Path) -> None:
    """ExperimentManager.learn of rl_zoo3 calls on_training_end of its first callback after model.learn has."""
    callback = ExactCheckpointCallback(100, tmp_path, at_end=True)
    small(PPOClip, pendulums()).learn(64, callback=callback)
    callback.on_training_end()
    assert steps(tmp_path) == ["step_000000000", "step_000000064"]


def checkpoints(folder: Path) -> list[Path]:
    small(PPOClip, VecNormalize(pendulums())).learn(128, callback=ExactCheckpointCallback(32, folder))
    return sorted(folder.iterdir())


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
    with pytest.warns(UserWarning, match=r"step_000000096.* going back to step_000000064"):
        model = PPOClip.resume(tmp_path, VecNormalize(pendulums()))
    assert model.num_timesteps == 64
    model.learn(64, callback=ExactCheckpointCallback(32, tmp_path), reset_num_timesteps=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert PPOClip.resume(tmp_path, VecNormalize(pendulums())).num_timesteps == 96


def test_none_is_whole(tmp_path: Path) -> None:
    for folder in checkpoints(tmp_path):
        (folder / "state.json").unlink()
    with pytest.raises(DamagedFileError, match=r"every checkpoint is damaged: .*step_000000032: state.json is missing"):
        PPOClip.resume(tmp_path, VecNormalize(pendulums()))


def test_values_that_replace_those_of_the_run(tmp_path: Path) -> None:
    checkpoints(tmp_path)
    objects = {"learning_rate": 0.5, "clip_range": lambda _: 0.125}
    model = PPOClip.resume(tmp_path, VecNormalize(pendulums()), custom_objects=objects)
    model.learn(model.num_timesteps + 32, reset_num_timesteps=False)
    assert model.policy.optimizer.param_groups[0]["lr"] == 0.5
    assert model.logger.name_to_value["train/clip_range"] == 0.125


def test_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="There is no checkpoint in"):
        PPOClip.resume(tmp_path, pendulums())


def test_another_environment_is_refused(tmp_path: Path) -> None:
    checkpoints(tmp_path)
    with pytest.raises(ArgumentError, match="env has 0 VecNormalize wrappers, but the run had 1"):
        PPOClip.resume(tmp_path, pendulums())
    with pytest.raises(ArgumentError, match=f"env has 3 environments, but the run in {tmp_path} had 2: pass as many"):
        PPOClip.resume(tmp_path, VecNormalize(make_vec_env("Pendulum-v1", 3)))


def test_another_class_is_refused(tmp_path: Path) -> None:
    checkpoints(tmp_path)
    with pytest.raises(DamagedFileError, match="this is a PPOClip, not a PPOAdaptiveKL"):
        PPOAdaptiveKL.resume(tmp_path, VecNormalize(pendulums()))


def test_a_folder_of_another_run_is_refused_before_it_is_touched(tmp_path: Path) -> None:
    before = [path.name for path in checkpoints(tmp_path)]
    with pytest.raises(ArgumentError, match=r"path=.*step_000000096 of another run"):
        small(PPOClip, pendulums()).learn(64, callback=ExactCheckpointCallback(32, tmp_path))
    earlier = PPOClip.resume(tmp_path / "step_000000032", VecNormalize(pendulums()))
    with pytest.raises(ArgumentError, match="contains step_000000096 beyond the checkpoint that this run"):
        earlier.learn(64, callback=ExactCheckpointCallback(32, tmp_path), reset_num_timesteps=False)
    assert steps(tmp_path) == before


@pytest.mark.parametrize("step", [0, 64])
@pytest.mark.parametrize("kept", ["step_{step:09d}", "step_{step:09d}/notes.txt", "step_{step:09d}/model.zip"])
def test_what_is_no_checkpoint_is_not_replaced(kept: str, step: int, tmp_path: Path) -> None:
    path = tmp_path / kept.format(step=step)
    path.parent.mkdir(exist_ok=True)
    path.write_text("precious")
    model = small(PPOClip, pendulums())
    with pytest.raises(ArgumentError, match=f"contains step_{step:09d} of another run"):
        model.learn(96, callback=ExactCheckpointCallback(32, tmp_path, keep_last=1))
    assert path.read_text() == "precious"
    assert model.num_timesteps == 0


@pytest.mark.parametrize("step", [0, 32])
def test_another_job_that_takes_over_the_run_meanwhile_is_noticed(step: int, tmp_path: Path) -> None:
    class TakesOver(BaseCallback):
        def _on_training_start(self) -> None:
            if step == 0:
                self._learn(small(PPOClip, pendulums(), seed=2))

        def _on_step(self) -> bool:
            if step == self.num_timesteps:
                self._learn(PPOClip.resume(tmp_path, pendulums()))
            return True

        def _learn(self, model: Any) -> None:
            model.learn_to(step + 64, callback=ExactCheckpointCallback(32, tmp_path, keep_last=1, at_end=True))

    with pytest.raises(FileExistsError, match=f"step_{step + 64:09d} was written during this training, so another run"):
        small(PPOClip, pendulums()).learn(128, callback=[ExactCheckpointCallback(32, tmp_path), TakesOver()])
    assert steps(tmp_path) == [f"step_{step + 64:09d}"]
    assert PPOClip.resume(tmp_path, pendulums()).seed == (2 if step == 0 else 3)


def test_files_among_the_checkpoints_are_kept(tmp_path: Path) -> None:
    kept = [tmp_path / "step_1" / "data.txt", tmp_path / "step_2", tmp_path / "step_000000032" / "notes.txt"]
    small(PPOClip, pendulums()).learn(64, callback=ExactCheckpointCallback(32, tmp_path))
    for path in kept:
        path.parent.mkdir(exist_ok=True)
        path.write_text("precious")
    model = PPOClip.resume(tmp_path, pendulums())
    model.learn(96, callback=ExactCheckpointCallback(32, tmp_path, keep_last=1), reset_num_timesteps=False)
    assert [path.read_text() for path in kept] == 3 * ["precious"]
    assert steps(tmp_path) == ["step_000000032", "step_000000096", "step_1", "step_2"]


@pytest.mark.parametrize("emptied", [True, False])
def test_a_damaged_one_is_named_alone(emptied: bool, tmp_path: Path) -> None:
    folder = checkpoints(tmp_path)[-1]
    for path in folder.iterdir() if emptied else [folder / "SHA256SUMS"]:
        path.unlink()
    with pytest.raises(DamagedFileError, match="step_000000096: SHA256SUMS is missing"):
        PPOClip.resume_or_start(folder, "MlpPolicy", VecNormalize(pendulums()))


def test_learning_goes_on_in_the_same_folder(tmp_path: Path) -> None:
    model = small(PPOClip, pendulums())
    for _ in range(2):
        model.learn(64, callback=ExactCheckpointCallback(32, tmp_path, None), reset_num_timesteps=False)
    assert steps(tmp_path) == [f"step_{step:09d}" for step in (0, 32, 64, 96)]


def test_two_of_them_are_refused(tmp_path: Path) -> None:
    two = [ExactCheckpointCallback(32, tmp_path / name) for name in "ab"]
    with pytest.raises(ArgumentError, match="several ExactCheckpointCallbacks: pass one"):
        small(PPOClip, pendulums()).learn(64, callback=[two[0], CallbackList([two[1]])])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "value"),
    [("every", 0), ("every", 1.5), ("path", 3), ("keep_last", 0), ("keep_last", "all"), ("verbose", "yes")],
)
def test_bad_arguments(name: str, value: Any, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"every": 1, "path": tmp_path, name: value}
    with pytest.raises(ArgumentError, match=f"{name}="):
        ExactCheckpointCallback(**arguments)


def test_a_callback_that_is_not_told_of_rollouts_says_so(tmp_path: Path) -> None:
    from stable_baselines3.common.callbacks import EveryNTimesteps

    model = small(PPOClip, pendulums())
    with pytest.raises(RuntimeError, match="does not see where rollouts begin"):
        model.learn(64, callback=EveryNTimesteps(32, ExactCheckpointCallback(32, tmp_path)))
    assert model.num_timesteps == 0
