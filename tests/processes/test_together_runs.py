"""Runs of several processes: steps, statistics, callbacks, checkpoints."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
import torch.distributed as dist
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import VecNormalize

from helpers import flat_weights
from ranks import answers
from sb3_ppo_variants import ArgumentError, ExactCheckpointCallback, PPOAdaptiveKL, PPOClip
from sb3_ppo_variants.processes import merge_moments
from sb3_ppo_variants.recipes import recipe

SETTINGS: dict[str, Any] = {"n_steps": 32, "batch_size": 16, "n_epochs": 2, "device": "cpu"}


def test_merged_moments_are_those_of_all_data() -> None:
    rng = np.random.default_rng(0)
    common, *own = (rng.normal(100, 3, (n, 2)) for n in (50, 20, 30))
    before = RunningMeanStd(epsilon=0.0, shape=(2,))
    before.update(common)
    each = [before.copy() for _ in own]
    for moments, data in zip(each, own, strict=True):
        moments.update(data)
    merge_moments(each[0], before, each)
    everything = np.concatenate([common, *own])
    np.testing.assert_allclose(each[0].mean, everything.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(each[0].var, everything.var(axis=0), rtol=1e-9)
    assert each[0].count == 100


class Observer(BaseCallback):
    """Records the observations."""

    def __init__(self) -> None:
        super().__init__()
        self.observations: list[np.ndarray] = []

    def _on_step(self) -> bool:
        assert isinstance(self.training_env, VecNormalize)
        self.observations.append(np.asarray(self.training_env.get_original_obs()))
        return True


def run(folder: str) -> dict[str, Any]:
    rank = dist.get_rank()
    env = VecNormalize(make_vec_env("CartPole-v1", n_envs=2, seed=5))
    model = PPOClip("MlpPolicy", env, **SETTINGS)
    model.set_logger(configure(str(Path(folder, str(rank))), ["csv"]))
    observer = Observer()
    saver = CheckpointCallback(16, str(Path(folder, f"models{rank}")), save_vecnormalize=True)
    evaluation = EvalCallback(
        VecNormalize(make_vec_env("CartPole-v1"), training=False),
        eval_freq=16,
        log_path=str(Path(folder, f"eval{rank}")),
    )
    model.learn(512, callback=[observer, saver, evaluation])
    model.save(Path(folder, f"model{rank}"))
    observed = env.obs_rms
    assert isinstance(observed, RunningMeanStd)
    return {
        "steps": model.num_timesteps,
        "weights": flat_weights(model).numpy(),
        "first": np.array(observer.observations[:5]),
        "mean": observed.mean,
        "returns": env.ret_rms.var,
        "count": observed.count,
        "episodes": [episode["r"] for episode in model.ep_info_buffer or ()],
    }


def test_counts_statistics_and_files_are_those_of_all(tmp_path: Path) -> None:
    first, second = answers(run, 2, str(tmp_path))
    assert first["steps"] == second["steps"] == 512
    for same in ("weights", "mean", "returns", "episodes"):
        np.testing.assert_array_equal(first[same], second[same], err_msg=same)
    assert first["count"] == pytest.approx(512 + 4 + 1e-4, abs=1e-6), "the steps and resets of both"
    # The positions after the first step depend only on the initial states.
    assert not np.isin(first["first"][0, :, [0, 2]], second["first"]).any(), "the environments have seeds of their own"
    assert {path.name for path in tmp_path.iterdir()} >= {"0", "models0", "eval0", "model0.zip"}
    assert not {"models1", "eval1", "model1.zip"} & {path.name for path in tmp_path.iterdir()}
    assert (tmp_path / "0" / "progress.csv").stat().st_size > 0
    assert (tmp_path / "1" / "progress.csv").stat().st_size == 0


RECIPE = recipe("ppo_clip", "CartPole-v1", n_envs=2, normalize=True, **SETTINGS)


class Stops(BaseCallback):
    def _on_step(self) -> bool:
        return not (dist.get_rank() == 1 and self.num_timesteps >= 150)


def stop() -> tuple[int, int, int]:
    model = PPOClip("MlpPolicy", make_vec_env("CartPole-v1", n_envs=2), **SETTINGS)
    stopped = model.learn(1024, callback=Stops()).num_timesteps
    updates = model._n_updates
    return updates, stopped, model.learn(128, reset_num_timesteps=False).num_timesteps


def test_a_callback_that_stops_one_stops_all() -> None:
    for updates, stopped, reached in answers(stop, 2):
        assert updates == 2, "one update of two epochs"
        assert stopped == (64 + 38) * 2, "the steps of both, of which one has stopped 26 steps before the other"
        assert reached == stopped + 128, "the run goes on"


class Seen(BaseCallback):
    """Records the first observations, and the largest number of episodes over which statistics were averaged."""

    first: Any = None
    most = 0

    def _on_training_start(self) -> None:
        self.first = self.model._last_obs

    def _on_step(self) -> bool:
        self.most = max(self.most, len(self.model.ep_info_buffer or ()))
        return True


def seeded() -> list[np.ndarray]:
    """Return the first observations if the ranks have seeds of their own, and if the environments have been reset."""
    found = []
    for seed, reset in ((10 + dist.get_rank(), False), (10, True)):
        model = PPOClip("MlpPolicy", make_vec_env("CartPole-v1", n_envs=2), seed=seed, **SETTINGS)
        assert model.env is not None
        if reset:
            model.env.reset()
        model.learn(64, callback=(seen := Seen()))
        found.append(np.asarray(seen.first))
    return found


def test_seeds_of_all_environments_differ() -> None:
    env = gym.make("CartPole-v1")
    (first, first_reset), (second, second_reset) = answers(seeded, 2)
    np.testing.assert_array_equal(first, [env.reset(seed=seed)[0] for seed in (10, 11)])
    for of_second in (second, second_reset):
        np.testing.assert_array_equal(of_second, [env.reset(seed=seed)[0] for seed in (12, 13)])
    assert not np.isin(first, second).any() and not np.isin(first_reset, second_reset).any()


def part(folder: str, until: int, resumed: bool) -> tuple[np.ndarray, float]:
    env = VecNormalize(make_vec_env("CartPole-v1", n_envs=2, seed=1))
    checkpoints = ExactCheckpointCallback(256, folder)
    if resumed:
        model = PPOAdaptiveKL.resume(folder, env, device="cpu")
        model.learn(until - model.num_timesteps, reset_num_timesteps=False, callback=checkpoints)
    else:
        model = PPOAdaptiveKL("MlpPolicy", env, seed=4, **SETTINGS)
        model.learn(until, callback=checkpoints)
    return flat_weights(model).numpy(), model.kl_coef


def whole_and_cut(folder: str) -> tuple[np.ndarray, float]:
    whole = part(f"{folder}/whole", 512, False)
    part(f"{folder}/cut", 384, False)
    return whole


def test_a_resumed_run_is_the_run_that_went_on(tmp_path: Path) -> None:
    whole = answers(whole_and_cut, 2, str(tmp_path))
    resumed = answers(part, 2, str(tmp_path / "cut"), 512, True)
    for (expected, expected_coef), (found, coef) in zip(whole, resumed, strict=True):
        np.testing.assert_array_equal(found, expected)
        assert coef == expected_coef
    with pytest.raises(ArgumentError, match="the run had 2 processes and cannot be resumed exactly with 1"):
        part(str(tmp_path / "cut"), 512, True)


def drawn(seeded: str) -> tuple[list[float], list[int]]:
    if "torch" in seeded:
        th.manual_seed(0)
    if "numpy" in seeded:
        np.random.seed(0)
    model = PPOClip("MlpPolicy", make_vec_env("CartPole-v1"), **SETTINGS)
    model.learn(64)
    return th.rand(3).tolist(), np.random.permutation(9).tolist()


@pytest.mark.parametrize("seeded", ["torch", "torch and numpy"])
def test_processes_have_random_numbers_of_their_own(seeded: str) -> None:
    (noise, order), (other_noise, other_order) = answers(drawn, 2, seeded)
    assert noise != other_noise and order != other_order


def submitted_again(folder: str) -> list[int]:
    reached = []
    for total in (256, 384, 512):
        env = make_vec_env("CartPole-v1", n_envs=2)
        keys: Any = {"keys": {"alpha", "beta", "gamma", "delta"}}  # Sets have another order in each process.
        kwargs = {"features_extractor_class": Chosen, "features_extractor_kwargs": keys, "net_arch": [256, 256]}
        model = PPOClip.resume_or_start(folder, "MlpPolicy", env, seed=1, policy_kwargs=kwargs, **SETTINGS)
        model.learn_to(total, callback=ExactCheckpointCallback(128, folder, at_end=True))
        reached.append(model.num_timesteps)
    return reached


class Chosen(FlattenExtractor):
    def __init__(self, observation_space: gym.Space, keys: set[str]):
        super().__init__(observation_space)


def test_all_processes_find_the_checkpoint_that_was_written_last(tmp_path: Path) -> None:
    assert answers(submitted_again, 2, str(tmp_path)) == [[256, 384, 512]] * 2


def compiled_weights() -> list[list[float]]:
    """Train with a policy, and with the same one compiled, as a whole and in part."""
    weights = []
    for part in (None, "policy", "mlp_extractor"):
        model: Any = PPOClip("MlpPolicy", make_vec_env("CartPole-v1", n_envs=2), seed=1, fast=False, **SETTINGS)
        if part is not None:
            owner = model if part == "policy" else model.policy
            setattr(owner, part, th.compile(getattr(owner, part), backend="eager"))
        weights.append(flat_weights(model.learn(64)).tolist())
    return weights


@pytest.mark.slow
def test_policies_that_pytorch_compiles_train_together() -> None:
    first, second = answers(compiled_weights, 2)
    assert first == second
    assert first[1] == first[0] and first[2] == first[0]
