"""Whatever happens while a model is saved, either the old or the new file exists and is complete."""

import errno
import io
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
from stable_baselines3 import PPO

from helpers import BOX, VARIANTS, noise_envs, save
from sb3_ppo_variants import ExactCheckpointCallback, PPOClip
from sb3_ppo_variants.saving import atomic


def model_of(number: int, cls: Any = PPOClip, **arguments: Any) -> Any:
    """Create a model that has its number in every weight and as its number of steps."""
    model = cls("MlpPolicy", noise_envs(BOX), n_steps=8, batch_size=16, device="cpu", **arguments)
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


@pytest.mark.parametrize("room", [0, 1, 1000, 40_000])
def test_no_room_on_the_disk(room: int, tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    model_of(1).save(path)
    old, new = path.read_bytes(), model_of(2)
    assert len(old) > room
    with files_of_at_most(room), pytest.raises(OSError, match="too large"):
        new.save(path)
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["model.zip"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_is_full_only_at_the_end(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "model.zip"
    model_of(1).save(path)
    old = path.read_bytes()
    monkeypatch.setattr(atomic.os, call, fails)
    with pytest.raises(OSError, match="No space left"):
        model_of(2).save(path)
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["model.zip"]


def test_all_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, int]] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        fsync(descriptor)
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        synced.append((kind, len(list(tmp_path.glob("[!.]*")))))

    monkeypatch.setattr(atomic.os, "fsync", note)
    model_of(1).save(tmp_path / "model.zip")
    # The file is synced under its temporary name, and the folder after the file has been renamed.
    assert synced == [("file", 0), ("folder", 1)]


def test_what_cannot_be_pickled(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    model = model_of(1)
    model.save(path)
    old = path.read_bytes()
    model.lock = threading.Lock()
    with pytest.raises(TypeError, match="pickle"):
        model.save(path)
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["model.zip"]


def test_no_room_for_a_checkpoint(tmp_path: Path) -> None:
    env = noise_envs(BOX)
    model = PPOClip("MlpPolicy", env, n_steps=8, batch_size=16, device="cpu")
    model.learn(16, callback=ExactCheckpointCallback(16, tmp_path))
    with files_of_at_most(40_000), pytest.raises(OSError, match="too large"):
        model.learn(64, callback=ExactCheckpointCallback(16, tmp_path), reset_num_timesteps=False)
    assert os.listdir(tmp_path) == ["step_000000000"]
    assert PPOClip.resume(tmp_path, env).num_timesteps == 0


def test_names_are_those_of_sb3(tmp_path: Path) -> None:
    names = []
    for cls in (PPO, PPOClip):
        model, folder = model_of(1, cls), tmp_path / cls.__name__
        with pytest.warns(UserWarning, match="does not exist. Will create it"):
            model.save(folder / "a")
        model.save(str(folder / "b.zip"))
        model.save(folder / "c.model")
        (folder / "d.zip").mkdir()
        with pytest.warns(UserWarning, match="is a folder. Will save instead to"):
            model.save(folder / "d")
        names.append(sorted(os.listdir(folder)))
    assert names[0] == names[1] == ["a.zip", "b.zip", "c.model", "d.zip", "d.zip_2"]


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


@pytest.mark.parametrize("variant", VARIANTS)
def test_files_that_are_open(variant: Any, tmp_path: Path) -> None:
    with (tmp_path / "model").open("wb") as file:
        model_of(7, variant).save(file)
    with (tmp_path / "model").open("rb") as file:
        assert number_of(variant.load(file, device="cpu")) == 7
    with pytest.raises(ValueError, match="writable"), (tmp_path / "model").open("rb") as file:
        model_of(1).save(file)
    with pytest.raises(TypeError, match="invalid type"):
        model_of(1).save(io.StringIO())


@pytest.mark.parametrize("cls", VARIANTS)
@pytest.mark.parametrize("reseed", [False, True])
def test_loading_leaves_the_random_generators_alone(cls: Any, reseed: bool) -> None:
    from sb3_ppo_variants.saving.state import get_random_state, set_random_state

    def drawn() -> list[float]:
        import numpy as np

        return [random.random(), np.random.random(), th.rand(()).item()]

    file = save(model_of(1, cls, seed=5))
    drawn()
    state = get_random_state()
    expected = drawn()
    set_random_state(state)
    cls.load(file, env=noise_envs(BOX), reseed=reseed)
    assert (drawn() == expected) is not reseed
