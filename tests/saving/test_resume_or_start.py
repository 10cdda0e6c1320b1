"""A script that is submitted repeatedly continues where it stopped."""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from resuming import KillAt, Killed, pendulums, state, steps
from scipy.interpolate import interp1d
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from helpers import VARIANTS, small
from sb3_ppo_variants import ArgumentError, ExactCheckpointCallback, KLAdaptive, PPOClip, PPOCustom
from sb3_ppo_variants.objectives import AdaptiveKL, Clipped, Unclipped
from sb3_ppo_variants.saving.checkpoint import Checkpoint

ARGUMENTS: dict[str, Any] = {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "seed": 3, "device": "cpu"}


def start(cls: Any, folder: Path, policy: Any = "MlpPolicy", workers: Any = DummyVecEnv, **more: Any) -> Any:
    env = VecNormalize(pendulums(workers, **({} if workers is DummyVecEnv else {"start_method": "fork"})))
    return cls.resume_or_start(folder, policy, env, **{**ARGUMENTS, **more})


def submitted(cls: Any, folder: Path, others: Any = (), total: float = 200, **more: Any) -> Any:
    """Run the script."""
    return start(cls, folder, **more).learn_to(total, [ExactCheckpointCallback(64, folder, at_end=True), *others])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_goes_on_until_it_is_done(variant: Any, tmp_path: Path) -> None:
    whole = submitted(variant, tmp_path / "whole")
    for kill_at in (20, 100, 180):
        with pytest.raises(Killed):
            submitted(variant, tmp_path / "cut", [KillAt(kill_at)])
    cut = submitted(variant, tmp_path / "cut")
    assert state(cut) == state(whole)
    assert whole.num_timesteps == 224  # 200 steps, rounded up to complete rollouts.
    again = submitted(variant, tmp_path / "cut", [KillAt(1)])  # There is nothing left to do.
    assert state(again) == state(whole)
    assert steps(tmp_path / "cut")[-1] == "step_000000224"


def job(folder: Path, workers: Any) -> None:
    """Run the script in a process group of its own."""
    os.setpgrp()
    submitted(PPOClip, folder, total=2000, workers=workers)


def newest(folder: Path) -> int:
    return max((int(path.name.removeprefix("step_")) for path in folder.glob("step_*")), default=-1)


@pytest.mark.parametrize("workers", [DummyVecEnv, SubprocVecEnv])
def test_jobs_that_are_killed(workers: Any, tmp_path: Path) -> None:
    whole, folder = submitted(PPOClip, tmp_path / "whole", total=2000, workers=workers), tmp_path / "cut"
    moments = random.Random(workers.__name__)
    for reached in (0, 300, 800, 1200):
        process = multiprocessing.get_context("fork").Process(target=job, args=(folder, workers))
        process.start()
        while newest(folder) < reached:
            assert process.is_alive()
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.05))
        os.killpg(process.pid or 0, signal.SIGKILL)  # The workers too, as a crash of the machine would.
        process.join()
        assert process.exitcode == -signal.SIGKILL
    cut = submitted(PPOClip, folder, total=2000, workers=workers)
    assert state(cut) == state(whole)
    cut.env.close()
    whole.env.close()


def test_numbers_of_numpy_are_the_same_arguments(tmp_path: Path) -> None:
    submitted(PPOClip, tmp_path, total=64)
    same: dict[str, Any] = {"n_steps": np.int64(16), "gamma": np.float64(0.99), "use_sde": np.bool_(False)}
    start(PPOClip, tmp_path, **same, normalize_advantage=np.bool_(True), max_grad_norm=np.float32(0.5))
    with pytest.raises(ArgumentError, match=r"^gamma=0.98, but the run in .* has 0.99"):
        start(PPOClip, tmp_path, gamma=np.float64(0.98))


def falling(progress: float) -> float:
    return 1e-3 * progress


def falling_slowly(progress: float) -> float:
    return 1e-3 * (0.5 + progress / 2)


def interpolated(last: float) -> Any:
    """Return a schedule whose values are arrays without dimensions."""
    return interp1d([-1, 0, 1], [0, 0, last])


class OnePolicy(ActorCriticPolicy):
    pass


class OtherPolicy(ActorCriticPolicy):
    pass


@pytest.mark.parametrize(
    ("name", "of_run", "value"),
    [
        ("n_epochs", 2, 3),
        ("seed", 3, 4),
        ("learning_rate", 1e-3, falling),
        ("learning_rate", falling, falling_slowly),
        ("learning_rate", interpolated(3e-4), interpolated(1e-4)),
        ("clip_range", falling, 0.2),
        ("policy", "MlpPolicy", OnePolicy),
        ("policy", OnePolicy, OtherPolicy),
        ("policy_kwargs", {"net_arch": [8], "ortho_init": True}, {"net_arch": [16], "ortho_init": True}),
        ("objective", Clipped(0.2), Clipped(0.4)),
        ("objective", Clipped(0.2), Unclipped()),
        ("objective", AdaptiveKL(kl_coef=1.0, desired_kl=1e-6), AdaptiveKL(kl_coef=1.0, desired_kl=0.02)),
        ("learning_rate", KLAdaptive(desired_kl=1e-6), KLAdaptive(desired_kl=0.02)),
    ],
)
def test_arguments_of_another_run_are_refused(name: str, of_run: Any, value: Any, tmp_path: Path) -> None:
    cls: Any = PPOCustom if name == "objective" else PPOClip
    model = submitted(cls, tmp_path, **{name: of_run}, total=64)
    assert start(cls, tmp_path, **{name: of_run}).num_timesteps == model.num_timesteps == 64
    with pytest.raises(ArgumentError, match=rf"^{name}=.*, but the run in .* has "):
        start(cls, tmp_path, **{name: value})


class Anneals(BaseCallback):
    """Changes an argument during the run."""

    def _on_step(self) -> bool:
        self.model.ent_coef = 0.01  # type: ignore[attr-defined]
        return True


def test_arguments_that_changed_during_the_run_are_those_of_its_beginning(tmp_path: Path) -> None:
    model = small(PPOClip, VecNormalize(pendulums()), learning_rate=KLAdaptive(desired_kl=1e-4)).learn(64)
    assert model.learning_rate != KLAdaptive(desired_kl=1e-4)
    for total in (128, 192):
        model.learn_to(total, callback=[ExactCheckpointCallback(32, tmp_path, at_end=True), Anneals()])
        model = start(PPOClip, tmp_path, learning_rate=KLAdaptive(desired_kl=1e-4))
        assert (model.num_timesteps, model.ent_coef) == (total, 0.01)


def test_what_may_be_another(tmp_path: Path) -> None:
    submitted(PPOClip, tmp_path / "ckpt", policy_kwargs={"net_arch": [8], "ortho_init": False})
    others: dict[str, Any] = {"verbose": 1, "tensorboard_log": str(tmp_path / "logs")}
    others["policy_kwargs"] = {"ortho_init": False, "net_arch": [8]}  # In another order.
    model = submitted(PPOClip, tmp_path / "ckpt", **others)
    assert (model.verbose, model.tensorboard_log) == (1, others["tensorboard_log"])


@pytest.mark.parametrize("total", [-5, float("nan"), "64", True, None])
def test_numbers_of_steps(total: Any, tmp_path: Path) -> None:
    model = start(PPOClip, tmp_path)
    for method in (model.learn_to, model.learn):
        with pytest.raises(ArgumentError, match=rf"^total_timesteps={total!r} is not allowed; allowed: a number >= 0$"):
            method(total)
    with pytest.raises(TypeError, match="reset_num_timesteps"):
        model.learn_to(64, reset_num_timesteps=True)
    assert model.learn_to(0).num_timesteps == 0


class Ends(BaseCallback):
    """Stops training within the second rollout, or raises an error after it."""

    def __init__(self, how: str):
        super().__init__()
        self._how = how

    def _on_step(self) -> bool:
        return self._how != "stopped" or self.num_timesteps < 40

    def _on_rollout_end(self) -> None:
        if self._how == "failed" and self.num_timesteps >= 64:
            raise ZeroDivisionError


@pytest.mark.parametrize("how", ["whole", "stopped", "failed"])
@pytest.mark.parametrize("at_end", [True, False])
def test_the_last_checkpoint_is_of_training_that_no_error_ended(how: str, at_end: bool, tmp_path: Path) -> None:
    callbacks = [ExactCheckpointCallback(1000, tmp_path, at_end=at_end), Ends(how)]
    try:
        small(PPOClip, pendulums()).learn(64, callback=callbacks)
    except ZeroDivisionError:
        assert how == "failed"
    last = {"whole": ["step_000000064"], "stopped": ["step_000000040"], "failed": []}[how] if at_end else []
    assert steps(tmp_path) == ["step_000000000", *last]


def test_a_run_that_a_callback_stopped_goes_on(tmp_path: Path) -> None:
    model = submitted(PPOClip, tmp_path, [Ends("stopped")], total=96)
    assert Checkpoint.read(tmp_path / "step_000000040").iterations == 1  # The rollout that was stopped does not count.
    model.learn(64, reset_num_timesteps=False)
    resumed = PPOClip.resume(tmp_path, VecNormalize(pendulums())).learn(64, reset_num_timesteps=False)
    assert resumed.num_timesteps == 104 and state(resumed) == state(model)
