"""If a process fails, all others end with an error that names it."""

import os
import re
import signal
import socket
import time
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import numpy as np
import pytest
import torch as th
import torch.distributed as dist
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
from torch.distributed.distributed_c10d import BackendConfig, _get_default_store

from fresh import ended, run_code_anew, run_module
from helpers import NoiseEnv
from ranks import together
from sb3_ppo_variants import ArgumentError, NonFiniteError, PPOAdaptiveKL, PPOClip, ProcessError, SeparateUpdates
from sb3_ppo_variants.processes import current
from sb3_ppo_variants.processes.group import PREFIX
from sb3_ppo_variants.together import checksum

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


def store_of_rank_0() -> str:
    """Return an address where rank 0 holds the store, as without torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize(("trouble", "what"), [("kill", "has ended"), ("stop", "did not answer in time")])
def test_a_process_that_takes_the_store_with_it_is_named(trouble: str, what: str) -> None:
    _, *errors = together(learn, 3, trouble, 21, False, 0, timeout=SHORT, lost=1, address=store_of_rank_0())
    for error in errors:
        assert isinstance(error, ProcessError)
        assert str(error).startswith(f"rank 0, which holds the group's store, {what}")


def slow_to_hear() -> None:
    """Rank 0 raises an error while rank 2 is in a rollout, and would take the store with it."""

    class Slow(Troubled):
        def step(self, action: Any) -> Any:
            if dist.get_rank() == 2 and self._count == 20:
                time.sleep(3)
            return super().step(action)

    PPOClip("MlpPolicy", Slow("raise", 21, 0), n_steps=16, batch_size=8, device="cpu").learn(16 * 3 * 5)


@pytest.mark.slow
def test_the_error_of_the_process_with_the_store_reaches_all() -> None:
    own, *errors = together(slow_to_hear, 3, timeout=timedelta(minutes=10), address=store_of_rank_0())
    assert isinstance(own, OSError)
    for error in errors:
        assert isinstance(error, ProcessError)
        assert str(error) == "rank 0 ended with OSError: the simulator is broken"


STOPPED = """
import os, signal, sys
from datetime import timedelta
import gymnasium as gym
from sb3_ppo_variants import PPOClip, init_processes

class Stops(gym.Wrapper):
    steps = 0
    def step(self, action):
        self.steps += 1
        if self.steps == 21 and os.environ["RANK"] == "0":
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().step(action)

init_processes(timedelta(seconds=6))
try:
    PPOClip("MlpPolicy", Stops(gym.make("CartPole-v1")), n_steps=16, batch_size=8, device="cpu").learn(1000)
except Exception as error:
    print(error, flush=True)
    os.kill(os.getppid(), signal.SIGKILL)  # torchrun would wait half a minute for rank 0.
"""


@pytest.mark.slow
def test_a_process_that_hangs_is_named_in_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED)
    result = ended(run_module, "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script))
    assert "rank 0 ended without reporting an error, or did not answer in time" in result.stdout


RESTARTED = """
import os, sys
from sb3_ppo_variants import PPOClip, init_processes

attempt, rank = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK"))

def fail(*_):
    if rank == attempt:
        raise OSError(f"trouble {attempt}")
    return True

init_processes()
try:
    PPOClip("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=8, device="cpu").learn(1000, fail)
except Exception as error:
    print(f"attempt {attempt}, rank {rank}: {error}", flush=True)
    sys.exit(1)
"""


@pytest.mark.slow
def test_restarted_processes_hear_of_their_own_errors(tmp_path: Path) -> None:
    script = tmp_path / "restarted.py"
    script.write_text(RESTARTED)
    options = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    result = ended(run_module, "torch.distributed.run", *options, str(script))
    for attempt in range(2):
        assert f"attempt {attempt}, rank {attempt}: trouble {attempt}" in result.stdout
    assert "attempt 1, rank 0: rank 1 ended with OSError: trouble 1" in result.stdout


def fails_to_begin() -> None:
    PPOClip("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=8, device="cpu").learn(
        64,
        log_interval=0.5 if dist.get_rank() == 0 else 1,  # type: ignore[arg-type]
    )


def test_an_error_with_which_learn_begins_is_an_error_in_all() -> None:
    own, other = together(fails_to_begin, 2)
    assert isinstance(own, ArgumentError) and isinstance(other, ProcessError)
    assert str(other).startswith("rank 0 ended with ArgumentError: log_interval=0.5 is not allowed")


def too_late() -> None:
    """Rank 1 exchanges numbers once rank 0 has given up."""
    store = _get_default_store()
    while dist.get_rank() == 1 and not store.check([f"{PREFIX}/here/0"]):
        time.sleep(0.05)
    current("auto").average(th.ones(3))


@pytest.mark.slow
def test_processes_that_are_all_there_say_what_each_has_seen() -> None:
    for error in together(too_late, 2, timeout=SHORT):
        assert isinstance(error, ProcessError)
        assert str(error).startswith("all processes are running, but could not exchange data")
        assert re.search("rank 0 says: .*Timed out.*; rank 1 says: .*Connection closed", str(error), re.DOTALL)


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


def normalized_differently() -> None:
    rank = dist.get_rank()
    env = VecNormalize(make_vec_env(lambda: NoiseEnv(spaces.Discrete(2))), norm_obs=rank == 0)
    PPOClip("MlpPolicy", env, n_steps=16, batch_size=8, device="cpu").learn(64)


def test_normalizations_that_differ_are_named() -> None:
    for error in together(normalized_differently, 2):
        assert isinstance(error, ArgumentError)
        assert str(error).startswith("VecNormalize.norm_obs is True in rank 0 and False in rank 1")


class Sets(BaseCallback):
    """Sets an attribute in rank 1 during the second rollout."""

    def __init__(self, name: str, value: Any):
        super().__init__()
        self._owner, _, self._attribute = f"model.{name}".rpartition(".")
        self._value = value

    def _on_step(self) -> bool:
        if dist.get_rank() == 1 and self.n_calls == 20:
            owner: Any = attrgetter(self._owner)(self)
            setattr(owner, self._attribute, self._value)
        return True


# What a callback sets in rank 1, and how the error names the difference.
SET: dict[str, tuple[Any, str]] = {
    "clip_range": (lambda _: 0.1, "clip_range is 0.2 in rank 0 and 0.1 in rank 1"),
    "ent_coef": (0.5, "ent_coef is 0.0 in rank 0 and 0.5 in rank 1"),
    "gae_lambda": (0.5, "gae_lambda is 0.95 in rank 0 and 0.5 in rank 1"),
    "n_epochs": (3, "n_epochs is 2 in rank 0 and 3 in rank 1"),
    "batch_size": (16, "batch_size is 8 in rank 0 and 16 in rank 1"),
    "target_kl": (1e-9, "target_kl is None in rank 0 and 1e-09 in rank 1"),
    "normalize_advantage": (False, "normalize_advantage is True in rank 0 and False in rank 1"),
    "fast": (False, "fast is auto in rank 0 and False in rank 1"),
    "_stats_window_size": (7, "stats_window_size is 100 in rank 0 and 7 in rank 1"),
    "lr_schedule": (lambda _: 0.1, "learning_rate of the update is 0.0003 in rank 0 and 0.1 in rank 1"),
    "kl_coef": (9.0, "kl_coef is 0.5 in rank 0 and 9.0 in rank 1"),
    "rollout_buffer.gamma": (0.5, "rollout_buffer.gamma is 0.99 in rank 0 and 0.5 in rank 1"),
    "policy.log_std.requires_grad": (False, "policy's log_std is (1,) in rank 0 and (1,), frozen in rank 1"),
    "env.gamma": (0.5, "VecNormalize.gamma is 0.99 in rank 0 and 0.5 in rank 1"),
    "env.clip_obs": (1.0, "VecNormalize.clip_obs is 10.0 in rank 0 and 1.0 in rank 1"),
    "env.training": (False, "VecNormalize.training is True in rank 0 and False in rank 1"),
    "env.norm_obs": (False, "VecNormalize.norm_obs is True in rank 0 and False in rank 1"),
}


def set_in_one(name: str) -> None:
    cls = PPOAdaptiveKL if name == "kl_coef" else PPOClip
    env = VecNormalize(make_vec_env(lambda: NoiseEnv(spaces.Box(-1, 1, (1,)))))
    model = cls("MlpPolicy", env, n_steps=16, batch_size=8, n_epochs=2, device="cpu")
    try:
        model.learn(16 * 2 * 4, callback=Sets(name, SET[name][0]))
    finally:
        assert model._n_updates == 2, "the first update is made, and the second one is not begun"


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", SET)
def test_values_that_callbacks_set_in_one_process_are_refused(name: str) -> None:
    for error in together(set_in_one, 2, name, timeout=SHORT):
        assert isinstance(error, ArgumentError), error
        assert str(error).startswith(SET[name][1]), error
        assert "If a callback sets it, let it do so in all of them" in str(error)


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


def with_nccl() -> None:
    with patch("torch.distributed.get_backend_config", lambda: str(BackendConfig(dist.Backend("nccl")))):
        learn("none", 0, False)


def test_a_group_needs_a_backend_for_cpus() -> None:
    """The group of ``init_process_group("nccl")`` exchanges tensors on GPUs only."""
    for error in together(with_nccl, 2):
        assert isinstance(error, ArgumentError) and "but its backends are 'cuda:nccl'" in str(error)


WITHOUT_DISTRIBUTED = """
import sys
import torch.distributed as dist
# Such a PyTorch has none of these.
sys.modules["torch.distributed.distributed_c10d"] = None
dist.is_available = lambda: False
del dist.is_initialized, dist.get_rank, dist.get_world_size, dist.init_process_group, dist.ProcessGroup
from sb3_ppo_variants import PPOClip, init_processes
print(PPOClip("MlpPolicy", "CartPole-v1", n_steps=64).learn(64).num_timesteps, init_processes())
PPOClip("MlpPolicy", "CartPole-v1", data_parallel=True)
"""


def test_a_pytorch_without_distributed_trains_alone() -> None:
    result = ended(run_code_anew, WITHOUT_DISTRIBUTED)
    assert result.stdout == "64 False\n"
    error = "data_parallel=True needs torch.distributed, without which this PyTorch was built"
    assert result.stderr.strip().endswith(f"ArgumentError: {error}")
