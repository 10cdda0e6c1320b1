"""Training processes that are killed, and resumed in other processes."""

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

import sb3_ppo_variants
from sb3_ppo_variants import ExactCheckpointCallback

TOTAL, EVERY = 1200, 256
N_KILLS = 3
SCRIPT = """
from test_kills import main

if __name__ == "__main__":
    main()
"""


def main() -> None:
    """Run training from the beginning or from the last checkpoint to the end, unless it is killed."""
    name, env_id, vec_env, where, resumed = sys.argv[1:]
    variant, folder = getattr(sb3_ppo_variants, name), Path(where)
    workers = SubprocVecEnv if vec_env == "SubprocVecEnv" else DummyVecEnv
    env: VecEnv = make_vec_env(env_id, 2, seed=1, vec_env_cls=workers)
    env, written = VecNormalize(env) if env_id == "HalfCheetah-v5" else env, Written()
    if resumed:
        model = variant.resume(folder, env, device="cpu")
        total = model.remaining_timesteps
    else:
        rate, total = LinearSchedule(1e-3, 0.0, 1.0), TOTAL
        model = variant("MlpPolicy", env, rate, n_steps=64, n_epochs=2, seed=2, device="cpu")
    model.set_logger(Logger(None, [written]))
    model.learn(total, callback=ExactCheckpointCallback(EVERY, folder), reset_num_timesteps=not resumed)
    env.close()
    (folder / "end").write_bytes(pickle.dumps((state(model), written.values)))


def start(*arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-c", SCRIPT, *arguments]
    path = os.pathsep.join([*map(str, (Path(__file__).parent, Path(__file__).parents[1])), *sys.path])
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, start_new_session=True)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def ended(*arguments: str) -> tuple[dict[str, Any], dict[int, dict[str, Any]], float]:
    """Run training in another process; return its final state, log and the seconds after the first checkpoint."""
    process, folder = start(*arguments), Path(arguments[3])
    until(lambda: next(folder.glob("step_*"), None) is not None)
    began = time.monotonic()
    assert process.wait() == 0
    return *pickle.loads((folder / "end").read_bytes()), time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        ("PPOClip", "CartPole-v1", "DummyVecEnv"),
        ("PPOAdaptiveKL", "Pendulum-v1", "SubprocVecEnv"),
        ("PPOFixedKL", "HalfCheetah-v5", "DummyVecEnv"),
        ("PPOUnclipped", "HalfCheetah-v5", "SubprocVecEnv"),
    ],
)
def test_a_process_that_is_killed_is_resumed_exactly(kind: tuple[str, str, str], tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(N_KILLS + 1)]
    for folder in folders:
        folder.mkdir()
    whole, log, seconds = ended(*kind, str(folders[0]), "")
    moments = random.Random(repr(kind))
    for folder in folders[1:]:
        process = start(*kind, str(folder), "")
        until(lambda folder=folder: next(folder.glob("step_*"), None) is not None)  # type: ignore[misc]
        time.sleep(moments.uniform(0, 0.9 * seconds))
        os.killpg(process.pid, signal.SIGKILL)  # The workers too, as a crash of the machine would.
        process.wait()
        resumed, rest, _ = ended(*kind, str(folder), "resumed")
        assert resumed == whole
        assert rest == {step: log[step] for step in rest}
