"""If a process fails, all others end with an error that names it."""

import os
import signal
import socket
import time
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

from fresh import ended, run_code_anew
from helpers import NoiseEnv
from ranks import together
from sb3_ppo_variants import ArgumentError, NonFiniteError, PPOClip, ProcessError, SeparateUpdates
from sb3_ppo_variants.base.together import checksum

TIMES = 10
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
    ("trouble", "own", "fast"),
    [pytest.param("raise", OSError, True, marks=SLOW), ("nan", NonFiniteError, False)],
)
def test_an_error_in_one_is_an_error_in_all(trouble: str, own: type[Exception], fast: bool) -> None:
    start = time.monotonic()
    errors = together(learn, 3, trouble, 21, fast, timeout=timedelta(minutes=10))
    assert isinstance(errors[1], own)
    for error in (errors[0], errors[2]):
        assert isinstance(error, ProcessError)
        assert f"rank 1 ended with {own.__name__}" in str(error)
    assert time.monotonic() - start < 300, "nobody waits for the timeout"


@pytest.mark.parametrize("trouble", ["kill", pytest.param("stop", marks=SLOW)])
def test_a_process_that_is_killed_or_hangs_is_named(trouble: str) -> None:
    errors = together(learn, 3, trouble, 21, True, timeout=SHORT, lost=1)
    for error in (errors[0], errors[2]):
        assert isinstance(error, ProcessError)
        assert str(error).startswith("rank 1 ended without reporting an error, or did not answer")


def test_a_process_that_takes_the_store_with_it_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    _, error = together(learn, 2, "kill", 21, False, 0, timeout=SHORT, lost=1, address=address)
    assert isinstance(error, ProcessError)
    assert str(error).startswith("the process that holds the group's store is gone, which is rank 0")


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["raise", "nan", "kill", "stop"])
def test_every_time(trouble: str) -> None:
    for time_ in range(TIMES):
        lost = int(trouble in ("kill", "stop"))
        errors = together(learn, 2, trouble, 17 + 3 * time_, time_ % 2 == 0, timeout=SHORT, lost=lost)
        assert isinstance(errors[0], ProcessError)
        assert "rank 1" in str(errors[0])


class Interrupts(BaseCallback):
    """Ctrl-C, which reaches all processes of a terminal."""

    def _on_step(self) -> bool:
        if self.n_calls == 20 + 5 * dist.get_rank():
            raise KeyboardInterrupt
        return True


def go_on(folder: str) -> tuple[int, int, str, int]:
    model = PPOClip("MlpPolicy", NoiseEnv(spaces.Discrete(2)), n_steps=16, batch_size=8, device="cpu")
    with pytest.raises((KeyboardInterrupt, ProcessError)):
        model.learn(320, callback=Interrupts())
    rank = model.processes.rank
    model.save(Path(folder, f"rank{rank}"))
    with pytest.raises(ProcessError) as error:
        model.learn(320)
    model.data_parallel = False
    return rank, model.num_timesteps, str(error.value), model.learn(32).num_timesteps


def test_after_an_interrupt_processes_keep_their_ranks(tmp_path: Path) -> None:
    found = together(go_on, 2, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.zip"]
    for rank, (own, steps, error, alone) in enumerate(found):
        assert own == rank and steps > 0
        assert error.startswith(f"rank {rank} has left its group of 2 processes after an error: start all processes")
        assert alone == 32


def differ(name: str) -> None:
    rank = dist.get_rank()
    different: dict[str, Any] = {
        "n_epochs": 1 + rank,
        "updates": SeparateUpdates(value_learning_rate=1e-3 * (1 + rank)),
    }
    arguments = {name: different[name]} if name in different else {}
    env = NoiseEnv(spaces.Discrete(2 + rank if name == "action_space" else 2))
    model = PPOClip("MlpPolicy", env, n_steps=16, batch_size=8, device="cpu", **arguments)
    try:
        model.learn(64 + (name == "total_timesteps") * rank)
    finally:
        assert model.num_timesteps == 0


@pytest.mark.parametrize(
    "name",
    ["n_epochs", "updates", pytest.param("action_space", marks=SLOW), pytest.param("total_timesteps", marks=SLOW)],
)
def test_differences_are_refused_before_the_first_step(name: str) -> None:
    for error in together(differ, 2, name):
        assert isinstance(error, ArgumentError)
        assert str(error).startswith(f"{name} is ")
        assert "in rank 0 and " in str(error) and "in rank 1: all processes must" in str(error)


class Changes(BaseCallback):
    """Changes a weight of rank 1 before an update."""

    def _on_rollout_end(self) -> None:
        if dist.get_rank() == 1 and self.num_timesteps == 96:
            with th.no_grad():
                next(iter(self.model.policy.parameters()))[0] += 1e-6

    def _on_step(self) -> bool:
        return True


def diverge() -> None:
    model = PPOClip("MlpPolicy", NoiseEnv(spaces.Discrete(2)), n_steps=16, batch_size=8, device="cpu")
    model.learn(320, callback=Changes())


def test_changes_do_not_cancel_in_the_checksum() -> None:
    before = th.tensor([0.3, -0.3])
    after = before + 2.0**-20  # It adds 32 to the bits of one number, and subtracts 32 from those of the other.
    assert after.view(th.int32).tolist() == (before.view(th.int32) + th.tensor([32, -32])).tolist()
    assert checksum([before]) != checksum([after])
    assert checksum([before]) == checksum([before.clone()])


def test_weights_that_differ_are_an_error_at_the_next_update() -> None:
    for error in together(diverge, 3):
        assert isinstance(error, ProcessError)
        assert "the weights of rank 1 differ from those of the other ranks" in str(error)


def test_a_group_is_needed_where_it_is_asked_for() -> None:
    with pytest.raises(ArgumentError, match="data_parallel=True needs a process group: start the script with torchrun"):
        PPOClip("MlpPolicy", "CartPole-v1", data_parallel=True)


WITHOUT_DISTRIBUTED = """
import sys
import torch.distributed as dist
# Such a PyTorch has none of these.
sys.modules["torch.distributed.distributed_c10d"] = None
dist.is_available = lambda: False
del dist.is_initialized, dist.get_rank, dist.get_world_size, dist.init_process_group
from sb3_ppo_variants import PPOClip, init_processes
print(PPOClip("MlpPolicy", "CartPole-v1", n_steps=64).learn(64).num_timesteps, init_processes())
PPOClip("MlpPolicy", "CartPole-v1", data_parallel=True)
"""


def test_a_pytorch_without_distributed_trains_alone() -> None:
    result = ended(run_code_anew, WITHOUT_DISTRIBUTED)
    assert result.stdout == "64 False\n"
    error = "data_parallel=True needs torch.distributed, without which this PyTorch was built"
    assert result.stderr.strip().endswith(f"ArgumentError: {error}")
