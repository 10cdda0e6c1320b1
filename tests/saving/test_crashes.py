"""Whatever happens while a model or a checkpoint is saved, either the old or the new one exists and is complete."""

import errno
import multiprocessing
import os
import random
import resource
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch as th

from helpers import BOX, noise_envs, small
from sb3_ppo_variants import ArgumentError, ExactCheckpointCallback, PPOClip
from sb3_ppo_variants.saving import files


def model_of(number: int) -> Any:
    """Create a model that has its number in every weight and as its number of steps."""
    model = small(PPOClip)
    renumber(model, number)
    return model


def renumber(model: Any, number: int) -> None:
    model.num_timesteps = number
    with th.no_grad():
        for weight in model.policy.parameters():
            weight.fill_(number)


def number_of(model: Any) -> int:
    (number,) = {weight for tensor in model.policy.parameters() for weight in tensor.unique().tolist()}
    assert number == model.num_timesteps
    return int(number)


def save_again_and_again(path: Path, started: Any) -> None:
    model = model_of(1)
    for number in range(2, 1_000_000):
        started.set()
        renumber(model, number)
        model.save(path)


@pytest.mark.parametrize("n_kills", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_a_process_that_is_killed_while_it_saves(n_kills: int, tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    model_of(1).save(path)
    fork = multiprocessing.get_context("fork")
    numbers = []
    for kill in range(n_kills):
        started = fork.Event()
        process = fork.Process(target=save_again_and_again, args=(path, started))
        process.start()
        started.wait(60)
        time.sleep(random.Random(kill).uniform(0, 0.3))
        process.kill()
        process.join()
        numbers.append(number_of(PPOClip.load(path, device="cpu")))
    assert len(set(numbers)) > 1


@contextmanager
def files_of_at_most(n_bytes: int) -> Iterator[None]:
    old, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (old, hard))


def fail(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("fails", [0, 1000, 40_000, "fsync", "replace", "pickle"])
def test_failed_saves_leave_the_old_file(fails: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.zip"
    model_of(1).save(path)
    old, new = path.read_bytes(), model_of(2)
    if isinstance(fails, int):
        assert len(old) > fails
        with files_of_at_most(fails), pytest.raises(OSError, match="too large"):
            new.save(path)
    elif fails == "pickle":
        new.policy_kwargs = {"lock": threading.Lock()}
        with pytest.raises(ArgumentError, match=r"^the attribute 'policy_kwargs' cannot be saved.*_thread\.lock"):
            new.save(path)
    else:
        monkeypatch.setattr(files.os, fails, fail)
        with pytest.raises(OSError, match="No space left"):
            new.save(path)
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["model.zip"]


def test_no_room_for_a_checkpoint(tmp_path: Path) -> None:
    env = noise_envs(BOX)
    model = small(PPOClip, env).learn(32, callback=ExactCheckpointCallback(32, tmp_path))
    with files_of_at_most(40_000), pytest.raises(OSError, match="too large"):
        model.learn(64, callback=ExactCheckpointCallback(32, tmp_path), reset_num_timesteps=False)
    assert os.listdir(tmp_path) == ["step_000000000"]
    assert PPOClip.resume(tmp_path, env).num_timesteps == 0


def test_all_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, int]] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        fsync(descriptor)
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        synced.append((kind, len(list(tmp_path.glob("[!.]*")))))

    monkeypatch.setattr(files.os, "fsync", note)
    model_of(1).save(tmp_path / "model.zip")
    # The file is synced under its temporary name, and the folder after the file has been renamed.
    assert synced == [("file", 0), ("folder", 1)]


def test_permissions_and_links_are_those_of_an_open_file(tmp_path: Path) -> None:
    model = model_of(1)
    (tmp_path / "opened").open("wb").close()
    model.save(tmp_path / "new.zip")
    assert (tmp_path / "new.zip").stat().st_mode == (tmp_path / "opened").stat().st_mode
    os.chmod(tmp_path / "new.zip", 0o640)
    (tmp_path / "link.zip").symlink_to(tmp_path / "new.zip")
    model.save(tmp_path / "link.zip")
    assert (tmp_path / "link.zip").is_symlink()
    assert stat.S_IMODE((tmp_path / "new.zip").stat().st_mode) == 0o640
    model.save("/dev/null")
    assert Path("/dev/null").is_char_device()
