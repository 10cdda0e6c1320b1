"""Models can be saved wherever SB3 can save them."""

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest
from stable_baselines3 import PPO
from test_saving import model_of, not_as_root, number_of

from sb3_ppo_variants import ExactCheckpointCallback, PPOClip
from sb3_ppo_variants.saving import atomic


def test_a_writable_file_in_such_a_folder_is_written_to_as_sb3_does() -> None:
    with not_as_root(), tempfile.TemporaryDirectory() as name:
        path = Path(name, "model.zip")
        model_of(1).save(path)
        os.chmod(name, 0o555)
        model_of(2, PPO).save(path)
        with pytest.warns(UserWarning, match=r"cannot be replaced \(Permission denied\)\. It is overwritten in place"):
            model_of(3).save(path)
        os.chmod(name, 0o755)
        assert number_of(PPOClip.load(path, device="cpu")) == 3
        assert os.listdir(name) == ["model.zip"]


def test_a_file_that_is_mounted_is_written_to_as_sb3_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    path = tmp_path / "model.zip"
    model_of(1).save(path)
    monkeypatch.setattr(atomic.os, "replace", busy)
    with pytest.warns(UserWarning, match="Device or resource busy"):
        model_of(2).save(path)
    assert number_of(PPOClip.load(path, device="cpu")) == 2
    with pytest.raises(OSError, match="busy"):
        model_of(2).save(tmp_path / "other.zip")
    assert os.listdir(tmp_path) == ["model.zip"]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EACCES])
@pytest.mark.parametrize("what", ["folder", "both"])
def test_a_file_system_that_cannot_force_names_to_the_disk(
    code: int, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def fails(descriptor: int) -> None:
        if what == "both" or stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(atomic.os, "fsync", fails)
    model = model_of(1)
    model.save(tmp_path / "model.zip")
    assert number_of(PPOClip.load(tmp_path / "model.zip", device="cpu")) == 1
    model.learn(16, callback=ExactCheckpointCallback(16, tmp_path / "ckpt"))
    assert PPOClip.resume(tmp_path / "ckpt", model.env).num_timesteps == 0


@pytest.mark.parametrize("name", ["a" * 251, "ä" * 125, "a" * 233])
def test_names_that_are_as_long_as_they_can_be(name: str, tmp_path: Path) -> None:
    for number in (1, 2):
        model_of(number).save(tmp_path / name)
        assert os.listdir(tmp_path) == [f"{name}.zip"]
        assert number_of(PPOClip.load(tmp_path / name, device="cpu")) == number
    left = tmp_path / f".{name[:50]}.0123456789abcdef.tmp"
    assert os.fsencode(atomic._choose_temporary(tmp_path / name).name).startswith(os.fsencode(left.name)[:51])


def test_a_model_is_read_where_it_was_written_beside_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    model_of(1).save(tmp_path / "model")
    assert sorted(os.listdir(tmp_path)) == ["model", "model.zip"]
    assert number_of(PPOClip.load(str(tmp_path / "model"), device="cpu")) == 1


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=r"is a folder, not the file of a model: .* model\.zip, .* resume\(\)"):
        PPOClip.load(tmp_path)
