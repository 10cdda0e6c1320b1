"""Small models, and runs that are interrupted and resumed, to compare with uninterrupted runs."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from helpers import small
from sb3_ppo_variants import ExactCheckpointCallback


class Killed(Exception):
    """Ends a run at any point."""


class KillAt(BaseCallback):
    def __init__(self, step: int):
        super().__init__()
        self._step = step

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._step:
            raise Killed
        return True


class Written(KVWriter):
    """Records the logged values by step."""

    def __init__(self) -> None:
        self.values: dict[int, dict[str, Any]] = {}

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        clock = ("time/fps", "time/time_elapsed")
        self.values[step] = {key: value for key, value in key_values.items() if key not in clock}

    def close(self) -> None:
        pass


def state(model: Any) -> dict[str, Any]:
    """Return the complete state of a run, as values that can be compared with ``==``."""
    normalize = model.get_vec_normalize_env()
    return {
        "parameters": _comparable(model.get_parameters()),
        "beta": None if callable(beta := getattr(model, "kl_coef", None)) else beta,
        "objective": repr(model._objective()),
        "counts": (model.num_timesteps, model._n_updates, model._total_timesteps, model.remaining_timesteps),
        "progress": model._current_progress_remaining,
        "episodes": [(episode["r"], episode["l"]) for episode in model.ep_info_buffer],
        "successes": list(model.ep_success_buffer),
        "observation": _comparable(model._last_obs),
        "episode starts": list(model._last_episode_starts),
        "normalization": None if normalize is None else _comparable([normalize.obs_rms, normalize.ret_rms]),
        "returns": None if normalize is None else list(normalize.returns),
        "random": (
            random.getstate(),
            _comparable(np.random.get_state(legacy=False)),
            _comparable([th.get_rng_state(), *th.cuda.get_rng_state_all()]),
        ),
    }


def _comparable(value: Any) -> Any:
    if isinstance(value, RunningMeanStd):
        return _comparable(vars(value))
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(item) for item in value]
    if isinstance(value, np.ndarray | th.Tensor):
        array = value.numpy(force=True) if isinstance(value, th.Tensor) else value
        return (str(array.dtype), array.shape, array.tobytes())
    return value


def run(
    make_model: Callable[[], Any],
    make_env: Callable[[], VecEnv],
    folder: Path,
    total: float,
    every: int,
    kill_at: int | None = None,
    others: Callable[[], list[Any]] = list,
    **learn: Any,
) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """Run training, either to the end or interrupted at a step and resumed.

    :param kill_at: the step at which to interrupt the run; ``None`` for an uninterrupted run
    :param others: creates the callbacks other than the checkpoints
    :return: the final state and the logged values
    """
    written = Written()

    def checkpoints() -> list[Any]:
        return [*others(), ExactCheckpointCallback(every, folder)]

    model = make_model()
    model.set_logger(Logger(None, [written]))
    callbacks = checkpoints() if kill_at is None else [*checkpoints(), KillAt(kill_at)]
    try:
        model.learn(total, callback=callbacks, **learn)
        assert kill_at is None
    except Killed:
        model.env.close()
        # A new process would start with different random states.
        th.manual_seed(kill_at or 0)
        np.random.seed(kill_at)
        random.seed(kill_at)
        model = type(model).resume(folder, make_env())
        model.set_logger(Logger(None, [written]))
        np.random.random(3)
        model.learn(model.remaining_timesteps, callback=checkpoints(), reset_num_timesteps=False, **learn)
    model.env.close()
    return state(model), written.values


def assert_exact(
    make_model: Callable[[], Any],
    make_env: Callable[[], VecEnv],
    folder: Path,
    total: float,
    every: int,
    kill_at: int,
    others: Callable[[], list[Any]] = list,
    **learn: Any,
) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """Assert that a run that is interrupted and resumed is the run that is not, which is returned."""
    whole, cut = (
        run(make_model, make_env, folder / str(at), total, every, at, others, **learn) for at in (None, kill_at)
    )
    assert cut == whole
    return whole


def exact(cls: Any, make_env: Callable[[], VecEnv], folder: Path, kill_at: int = 150, **arguments: Any) -> None:
    """Assert that runs of a small model resume exactly."""
    _, logged = assert_exact(lambda: small(cls, make_env(), **arguments), make_env, folder, 200, 64, kill_at)
    assert len(logged) > 1


def pendulums(vec_env_cls: Any = DummyVecEnv, **arguments: Any) -> VecEnv:
    # Episodes are truncated after ten steps, so that there are episode statistics.
    make = lambda: gym.wrappers.TimeLimit(gym.make("Pendulum-v1"), 10)  # noqa: E731
    return make_vec_env(make, 2, seed=1, vec_env_cls=vec_env_cls, vec_env_kwargs=arguments)


def steps(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
