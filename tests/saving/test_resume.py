"""A run that is interrupted and resumed gives exactly the results of an uninterrupted run."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from masked_envs import MULTI, masked_envs
from resuming import assert_exact, exact, pendulums, run, state
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack, VecNormalize

from helpers import BOX, IMAGE, VARIANTS, LogRecorder, noise_envs, small
from sb3_ppo_variants import ExactCheckpointCallback, PPOAdaptiveKL, PPOClip
from sb3_ppo_variants.envs import GymnasiumVecEnv, SafeSubprocVecEnv, make_ale_vec_env
from sb3_ppo_variants.generators import get_random_state, set_random_state
from sb3_ppo_variants.saving.checkpoint import Checkpoint


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_class_on_both_paths(variant: Any, fast: bool, tmp_path: Path) -> None:
    exact(variant, pendulums, tmp_path, fast=fast, learning_rate=LinearSchedule(1e-3, 0.0, 1.0))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kill_at", [20, 64, 70, 128, 131, 195])
def test_wherever_it_is_cut(kill_at: int, tmp_path: Path) -> None:
    exact(PPOAdaptiveKL, pendulums, tmp_path, kill_at, desired_kl=1e-3)


class Slowing(VecNormalize):
    """A wrapper whose rewards depend on state that ``VecNormalize`` does not have."""

    def __init__(self, env: VecEnv):
        super().__init__(env)
        self.factor = 1.0

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = super().step_wait()
        self.factor *= 0.99
        return observations, rewards * self.factor, dones, infos


def atari() -> VecEnv:
    gym.register_envs(pytest.importorskip("ale_py"))
    return VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", 2, seed=1), 4)


ENVIRONMENTS: dict[str, Any] = {
    "workers": lambda: pendulums(SafeSubprocVecEnv, start_method="fork"),
    "gymnasium's own": lambda: GymnasiumVecEnv(gym.make_vec("CartPole-v1", 2)),
    "normalised": lambda: VecNormalize(pendulums()),
    "normalised stacks": lambda: VecNormalize(VecFrameStack(pendulums(), 3)),
    "stacks of normalised": lambda: VecFrameStack(VecNormalize(pendulums(), gamma=0.9), 2),
    "normalised twice": lambda: VecNormalize(VecNormalize(pendulums(), norm_obs=False)),
    "normalised by an own wrapper": lambda: Slowing(pendulums()),
    "masked workers": lambda: VecNormalize(masked_envs(MULTI, n_envs=2, vec_env=SafeSubprocVecEnv)),
    "ALE's": lambda: make_ale_vec_env("BreakoutNoFrameskip-v4", 2),
    "lives of Atari": atari,
}
SLOW = pytest.mark.slow
LONG = ("masked workers", "ALE's", "lives of Atari")


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW) if name in LONG else name for name in ENVIRONMENTS])
def test_environments_and_wrappers(name: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"policy": "MaskableMlpPolicy"} if "masked" in name else {}
    if name in ("ALE's", "lives of Atari"):
        more = {"policy_kwargs": {"features_extractor_kwargs": {"features_dim": 8}}}
    exact(PPOClip, ENVIRONMENTS[name], tmp_path, **more)


@pytest.mark.parametrize(
    "vec_env_cls", [DummyVecEnv, pytest.param(SubprocVecEnv, marks=SLOW), pytest.param(SafeSubprocVecEnv, marks=SLOW)]
)
def test_an_environment_whose_episodes_leave_something_behind(vec_env_cls: Any, tmp_path: Path) -> None:
    """BipedalWalker keeps its Box2D world, in which later episodes differ from those of a new one."""
    pytest.importorskip("Box2D")
    make = partial(make_vec_env, "BipedalWalker-v3", 2, seed=1, vec_env_cls=vec_env_cls)
    end, _ = assert_exact(lambda: small(env=make()), make, tmp_path, 2400, 600, 1500)
    assert len(end["episodes"]) > 2


@pytest.mark.parametrize("log_interval", [2, 3, None])
def test_the_log_goes_on_with_the_iterations(log_interval: int | None, tmp_path: Path) -> None:
    make = lambda: small(env=pendulums())  # noqa: E731
    _, logged = assert_exact(make, pendulums, tmp_path, 300, 96, 250, log_interval=log_interval)
    assert list(logged) == ([] if log_interval is None else list(range(32 * log_interval, 321, 32 * log_interval)))


def test_a_run_that_is_cut_twice(tmp_path: Path) -> None:
    whole, _ = run(lambda: small(PPOClip, pendulums()), pendulums, tmp_path / "whole", 200, 64)
    run(lambda: small(PPOClip, pendulums()), pendulums, tmp_path / "cut", 200, 64, 100)
    model = PPOClip.resume(tmp_path / "cut" / "step_000000128", pendulums())
    model.learn(model.remaining_timesteps, reset_num_timesteps=False)
    # run() wrote the checkpoint at 192. Resume from it, because without the callback the last rollout was not seeded.
    model = PPOClip.resume(tmp_path / "cut", pendulums())
    assert model.num_timesteps == 192
    model.learn(model.remaining_timesteps, reset_num_timesteps=False)
    assert state(model) == whole


def test_without_a_seed_checkpoints_of_a_run_share_one(tmp_path: Path) -> None:
    small(PPOClip, pendulums(), seed=None).learn(100, callback=ExactCheckpointCallback(32, tmp_path / "ckpt", None))
    runs: list[Any] = []
    for _ in range(2):
        model = PPOClip.resume(tmp_path / "ckpt" / "step_000000032", pendulums())
        callback = ExactCheckpointCallback(32, tmp_path / f"other{len(runs)}")
        model.learn(model.remaining_timesteps, callback=callback, reset_num_timesteps=False)
        runs.append(state(model))
    assert runs[0] == runs[1]
    seeds = {Checkpoint.read(folder).seed for folder in tmp_path.glob("*/step_*")}
    assert len(seeds) == 1


def test_an_episode_that_is_cut_is_bootstrapped_and_starts_anew(tmp_path: Path) -> None:
    make = lambda: noise_envs(BOX, n_envs=1)  # noqa: E731
    model = small(PPOClip, make(), gae_lambda=1.0, gamma=1.0, n_steps=10, n_epochs=1, batch_size=10, learning_rate=0.0)
    seen: list[Any] = []

    class Look(LogRecorder):
        def _on_rollout_end(self) -> None:
            buffer = model.rollout_buffer
            seen.append((buffer.episode_starts[:, 0].copy(), buffer.returns[-1, 0] - buffer.rewards[-1, 0]))
            seen.append(model.policy.predict_values(model.policy.obs_to_tensor(model._last_obs)[0]).item())

    model.learn(20, callback=[Look(), ExactCheckpointCallback(10, tmp_path)])
    starts, bootstrapped = seen[0]
    # Episodes have 7 steps. The second is cut after 3, and bootstrapped from the value of its last state.
    assert list(np.flatnonzero(starts)) == [0, 7]
    assert bootstrapped == pytest.approx(seen[1], rel=1e-5)
    assert list(np.flatnonzero(seen[2][0])) == [0, 7]
    assert [episode["l"] for episode in model.ep_info_buffer] == []


def test_remaining_timesteps() -> None:
    model = small(PPOClip, pendulums())
    assert model.remaining_timesteps == 0
    model._total_timesteps, model.num_timesteps = 100, 64
    assert model.remaining_timesteps == 36
    assert model.learn(64).remaining_timesteps == 0
    assert model.learn(65).remaining_timesteps == 0  # Rollouts are always completed, so these are 96 steps.


def test_a_run_stays_on_its_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make = lambda: noise_envs(BOX, IMAGE)  # noqa: E731
    small(PPOClip, make(), device="cpu").learn(64, callback=ExactCheckpointCallback(32, tmp_path))
    monkeypatch.setattr(th.cuda, "is_available", lambda: True)
    assert PPOClip.resume(tmp_path, make()).device == th.device("cpu")


def test_a_gpu_that_is_no_longer_there_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(th.cuda, "device_count", lambda: 0)
    with pytest.warns(UserWarning, match="There is no cuda:0"):
        set_random_state({**get_random_state(), "cuda": [np.zeros(16, np.uint8)]})
