"""If a process fails, all others end with an error that names it."""

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
import torch.distributed as dist
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback

from fresh import ended, run_module
from helpers import NoiseEnv, Passive
from ranks import together
from sb3_ppo_variants import ArgumentError, NonFiniteError, PPOClip, ProcessError, SeparateUpdates

SLOW = pytest.mark.slow
SHORT = timedelta(seconds=8)


class Troubled(NoiseEnv):
    """Causes trouble at one step in one rank."""

    def __init__(self, trouble: str, at: int, rank: int):
        super().__init__(spaces.Box(-1, 1, (1,), np.float32))
        self._trouble, self._at, self._rank, self._count = trouble, at, rank, 0

    def step(self, action: Any) -> Any:
        self._count += 1
        observation, reward, *others = super().step(action)
        if dist.get_rank() == self._rank and self._count == self._at:
            if self._trouble == "raise":
                raise OSError("the simulator is broken")
            if self._trouble == "nan":
                reward = np.nan
            else:
                os.kill(os.getpid(), signal.SIGKILL if self._trouble == "kill" else signal.SIGSTOP)
        return observation, reward, *others


def learn(trouble: str, at: int, fast: bool, rank: int = 1) -> None:
    env: gym.Env = Troubled(trouble, at, rank)
    PPOClip("MlpPolicy", env, n_steps=16, batch_size=8, n_epochs=2, device="cpu", fast=fast).learn(16 * 2 * 5)


@pytest.mark.parametrize(
    ("trouble", "fast", "lost"),
    [("raise", True, 0), pytest.param("nan", False, 0, marks=SLOW), ("kill", True, 1), ("stop", False, 1)],
)
def test_a_process_that_fails_ends_all(trouble: str, fast: bool, lost: int) -> None:
    errors = together(learn, 3, trouble, 21, fast, timeout=SHORT, lost=lost)
    if not lost:
        assert isinstance(errors[1], OSError if trouble == "raise" else NonFiniteError)
    for rank in (0, 2):
        assert isinstance(errors[rank], ProcessError)
        assert str(errors[rank]).startswith(f"rank {rank} cannot communicate with the other processes any more")


RESTARTED = """
import os, sys
from sb3_ppo_variants import PPOClip, init_processes

attempt, rank = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK"))

def fail(*_):
    if rank == 1 and attempt == 0:
        raise OSError("trouble")
    return True

init_processes()
model = PPOClip("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=8, device="cpu").learn(64, fail)
print(f"attempt {attempt}, rank {rank}: {model.num_timesteps}", flush=True)
"""


@pytest.mark.slow
def test_torchrun_restarts_all_processes(tmp_path: Path) -> None:
    script = tmp_path / "restarted.py"
    script.write_text(RESTARTED)
    options = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    result = ended(run_module, "torch.distributed.run", *options, str(script))
    assert "attempt 1, rank 0: 64" in result.stdout and "attempt 1, rank 1: 64" in result.stdout


class Interrupts(BaseCallback):
    """Ctrl-C, which reaches all processes of a terminal."""

    def _on_step(self) -> bool:
        if self.n_calls == 20 + 5 * dist.get_rank():
            raise KeyboardInterrupt
        return True


def save_after_interrupt(folder: str) -> int:
    model = PPOClip("MlpPolicy", NoiseEnv(spaces.Discrete(2)), n_steps=16, batch_size=8, device="cpu")
    with pytest.raises((KeyboardInterrupt, ProcessError)):
        model.learn(320, callback=Interrupts())
    model.save(Path(folder, f"rank{dist.get_rank()}"))
    model.data_parallel = False
    return model.learn(32).num_timesteps


def test_after_an_interrupt_only_rank_0_saves(tmp_path: Path) -> None:
    assert together(save_after_interrupt, 2, str(tmp_path), timeout=SHORT) == [32, 32]
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.zip"]


def differ(name: str) -> None:
    rank = dist.get_rank()
    different: Any = {"n_epochs": 1 + rank, "updates": SeparateUpdates(value_learning_rate=1e-3 * (1 + rank))}
    arguments = {name: different[name]} if name in different else {}
    reset = name != "reset_num_timesteps" or rank == 0
    env = NoiseEnv(spaces.Discrete(2 + rank if name == "action_space" else 2))
    model = PPOClip("MlpPolicy", env, n_steps=16, batch_size=8, device="cpu", **arguments)
    try:
        model.learn(64 + (name == "total_timesteps") * rank, reset_num_timesteps=reset)
    finally:
        assert model.num_timesteps == 0


@pytest.mark.parametrize(
    "name",
    [
        "n_epochs",
        "updates",
        pytest.param("action_space", marks=SLOW),
        pytest.param("total_timesteps", marks=SLOW),
        pytest.param("reset_num_timesteps", marks=SLOW),
    ],
)
def test_differences_are_refused_before_the_first_step(name: str) -> None:
    for error in together(differ, 2, name):
        assert isinstance(error, ArgumentError)
        assert str(error).startswith(f"{name} is ")
        assert "in rank 0 and " in str(error) and "in rank 1: all processes must" in str(error)


class Changes(Passive):
    """Changes a weight of rank 1 before an update."""

    def _on_rollout_end(self) -> None:
        if dist.get_rank() == 1 and self.num_timesteps == 96:
            with th.no_grad():
                next(iter(self.model.policy.parameters()))[0] += 1e-6


def diverge() -> None:
    model = PPOClip("MlpPolicy", NoiseEnv(spaces.Discrete(2)), n_steps=16, batch_size=8, device="cpu")
    model.learn(320, callback=Changes())


def test_weights_that_differ_are_an_error_at_the_next_update() -> None:
    for error in together(diverge, 3):
        assert isinstance(error, ProcessError)
        assert "the weights of rank 1 differ from those of the other ranks" in str(error)


def test_a_group_is_needed_where_it_is_asked_for() -> None:
    with pytest.raises(ArgumentError, match="data_parallel=True needs a process group: start the script with torchrun"):
        PPOClip("MlpPolicy", "CartPole-v1", data_parallel=True)


class Sets(BaseCallback):
    """Sets an argument of rank 1 after the first update."""

    def _on_step(self) -> bool:
        if dist.get_rank() == 1 and self.num_timesteps > 40:
            vars(self.model)["n_epochs"] = 3
        return True


def set_in_one() -> None:
    model = PPOClip("MlpPolicy", NoiseEnv(spaces.Discrete(2)), n_steps=16, batch_size=8, n_epochs=2, device="cpu")
    try:
        model.learn(16 * 2 * 4, callback=Sets())
    finally:
        assert model._n_updates == 2, "the first update is made, and the second one is not begun"


def test_a_value_that_a_callback_sets_in_one_process_is_refused() -> None:
    for error in together(set_in_one, 2, timeout=SHORT):
        assert isinstance(error, ArgumentError), error
        assert str(error).startswith("n_epochs is 2 in rank 0 and 3 in rank 1"), error
        assert "If a callback sets it, let it do so in all of them" in str(error)
