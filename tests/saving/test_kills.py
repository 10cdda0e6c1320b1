"""Training runs that are killed, and resumed in other processes."""

import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from resuming import Written, state
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize

from helpers import VARIANTS
from sb3_ppo_variants import ExactCheckpointCallback

TOTAL, EVERY = 1200, 256
N_KILLS = 5
FORK = multiprocessing.get_context("fork")


def envs(env_id: str, vec_env_cls: Any) -> VecEnv:
    start: dict[str, Any] = {"start_method": "fork"} if vec_env_cls is SubprocVecEnv else {}
    env = make_vec_env(env_id, 2, seed=1, vec_env_cls=vec_env_cls, vec_env_kwargs=start)
    return VecNormalize(env) if env_id == "HalfCheetah-v5" else env


def train(variant: Any, env_id: str, vec_env_cls: Any, folder: Path, resumed: bool) -> None:
    """Run training from the beginning or from the last checkpoint to the end, unless it is killed."""
    os.setpgrp()
    env, written = envs(env_id, vec_env_cls), Written()
    if resumed:
        model = variant.resume(folder, env, device="cpu")
        total = model.remaining_timesteps
    else:
        learning_rate = LinearSchedule(1e-3, 0.0, 1.0)
        model = variant("MlpPolicy", env, learning_rate, n_steps=64, n_epochs=2, seed=2, device="cpu")
        total = TOTAL
    model.set_logger(Logger(None, [written]))
    model.learn(total, callback=ExactCheckpointCallback(EVERY, folder), reset_num_timesteps=not resumed)
    env.close()
    (folder / "end").write_bytes(pickle.dumps((state(model), written.values)))


def kill(pid: int) -> None:
    """Kill a process and its workers at once, as a crash of the machine would."""
    os.killpg(pid, signal.SIGKILL)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def ended(*arguments: Any) -> tuple[dict[str, Any], dict[int, dict[str, Any]], float]:
    """Run training in a separate process; return its final state, log and the seconds after the first checkpoint."""
    folder = arguments[3]
    process = FORK.Process(target=train, args=arguments)
    process.start()
    until(lambda: next(folder.glob("step_*"), None) is not None)
    start = time.monotonic()
    process.join()
    assert process.exitcode == 0
    return *pickle.loads((folder / "end").read_bytes()), time.monotonic() - start


@pytest.mark.slow
@pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, SubprocVecEnv])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5"])
def test_a_process_that_is_killed_is_resumed_exactly(
    env_id: str, variant: Any, vec_env_cls: Any, tmp_path: Path
) -> None:
    (tmp_path / "whole").mkdir()
    whole, log, seconds = ended(variant, env_id, vec_env_cls, tmp_path / "whole", False)
    moments = random.Random(f"{env_id} {variant.__name__} {vec_env_cls.__name__}")
    for number in range(N_KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        process = FORK.Process(target=train, args=(variant, env_id, vec_env_cls, folder, False))
        process.start()
        until(lambda folder=folder: next(folder.glob("step_*"), None) is not None)  # type: ignore[misc]
        time.sleep(moments.uniform(0, 0.9 * seconds))
        kill(process.pid or 0)
        process.join()
        resumed, rest, _ = ended(variant, env_id, vec_env_cls, folder, True)
        assert resumed == whole
        assert rest == {step: log[step] for step in rest}


SCRIPT = """
import sys
from pathlib import Path
from stable_baselines3.common.vec_env import SubprocVecEnv
from sb3_ppo_variants import PPOAdaptiveKL
from test_kills import train

if __name__ == "__main__":
    train(PPOAdaptiveKL, "Pendulum-v1", SubprocVecEnv, Path(sys.argv[1]), resumed=sys.argv[2] == "resumed")
"""


@pytest.mark.slow
def test_other_interpreters(tmp_path: Path) -> None:
    def start(folder: str, how: str) -> subprocess.Popen:
        (tmp_path / folder).mkdir(exist_ok=True)
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / folder), how]
        return subprocess.Popen(command, cwd=Path(__file__).parent)

    assert start("whole", "new").wait(300) == 0
    process = start("cut", "new")
    until(lambda: (tmp_path / "cut" / "step_000001024").exists())
    kill(process.pid)
    process.wait()
    assert not (tmp_path / "cut" / "end").exists()
    assert start("cut", "resumed").wait(300) == 0
    (whole, log), (cut, rest) = (pickle.loads((tmp_path / name / "end").read_bytes()) for name in ("whole", "cut"))
    assert cut == whole
    assert rest == {step: log[step] for step in rest}
