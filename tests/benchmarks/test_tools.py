"""The tools around SB3, each used once as in the documentation."""

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common import callbacks as sb3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sb3_ppo_variants import PPOAdaptiveKL, PPOClip

ENV = "CartPole-v1"
DOCUMENTATION = Path(__file__).parents[2] / "docs/tools.md"


def test_tensorboard(tmp_path: Path) -> None:
    PPOAdaptiveKL("MlpPolicy", ENV, n_steps=64, tensorboard_log=str(tmp_path), kl_coef=3.0, seed=0).learn(128)
    board = EventAccumulator(str(tmp_path / "PPOAdaptiveKL_1")).Reload()
    assert {"train/kl", "train/kl_coef", "rollout/ep_rew_mean", "train/loss"} <= set(board.Tags()["scalars"])
    assert [(event.step, event.value) for event in board.Scalars("train/kl_coef")] == [(128, 3.0)]


def test_progress_bar(capfd: pytest.CaptureFixture[str]) -> None:
    PPOClip("MlpPolicy", ENV, n_steps=64).learn(128, progress_bar=True)
    assert "128/128" in capfd.readouterr().out


@pytest.mark.slow
def test_wandb(tmp_path: Path) -> None:
    import wandb
    from wandb.integration.sb3 import WandbCallback

    with wandb.init(mode="offline", dir=tmp_path, config={"clip_range": 0.1}):
        model = PPOClip("MlpPolicy", ENV, n_steps=64, clip_range=0.1)
        model.learn(128, callback=WandbCallback(model_save_path=str(tmp_path / "saved")))
        assert wandb.config["algo"] == "PPOClip"
    assert PPOClip.load(tmp_path / "saved/model").num_timesteps == 128


def test_every_callback_of_sb3(tmp_path: Path) -> None:
    model = PPOClip("MlpPolicy", make_vec_env(ENV, 2, seed=0), n_steps=64, seed=0)
    evaluation = sb3.EvalCallback(
        make_vec_env(ENV, seed=1),
        callback_on_new_best=sb3.StopTrainingOnRewardThreshold(1e6),
        callback_after_eval=sb3.StopTrainingOnNoModelImprovement(max_no_improvement_evals=9),
        eval_freq=64,
        log_path=str(tmp_path),
        best_model_save_path=str(tmp_path),
        verbose=0,
    )
    seen: list[int] = []

    def note(local: dict[str, Any], _: dict[str, Any]) -> bool:
        seen.append(local["n_steps"])
        return True

    periodic = sb3.EveryNTimesteps(100, sb3.ConvertCallback(note))
    checkpoints = sb3.CheckpointCallback(64, str(tmp_path), name_prefix="ppo")
    model.learn(256, callback=[evaluation, periodic, checkpoints, sb3.StopTrainingOnMaxEpisodes(1000)])
    assert np.load(tmp_path / "evaluations.npz")["timesteps"].tolist() == [128, 256]
    assert seen == [49, 35]
    assert PPOClip.load(tmp_path / "ppo_128_steps").num_timesteps == 128
    assert PPOClip.load(tmp_path / "best_model").n_envs == 2


def test_evaluate_policy() -> None:
    model = PPOClip("MlpPolicy", ENV, seed=0)
    rewards, lengths = evaluate_policy(model, make_vec_env(ENV, seed=0), n_eval_episodes=3, return_episode_rewards=True)
    # Evaluate again by hand. CartPole's reward is 1 for each step.
    env = gym.make(ENV)
    steps: list[int] = []
    observation, _ = env.reset(seed=0)
    while len(steps) < 3:
        ended, step = False, 0
        while not ended:
            action, _ = model.predict(observation, deterministic=True)
            observation, _, terminated, truncated, _ = env.step(action)
            ended, step = terminated or truncated, step + 1
        steps.append(step)
        observation, _ = env.reset()
    assert (rewards, lengths) == (steps, steps)


def test_json_log(tmp_path: Path) -> None:
    from stable_baselines3.common.logger import configure

    model = PPOClip("MlpPolicy", ENV, n_steps=64)
    model.set_logger(configure(str(tmp_path), ["json"]))
    model.learn(128)
    lines = [json.loads(line) for line in (tmp_path / "progress.json").read_text().splitlines()]
    assert lines[-1]["train/n_updates"] == 10
    assert "train/kl" in lines[-1]


def test_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    import huggingface_sb3

    shown = re.findall(r"```python\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)[-1]
    saved = tmp_path / f"ppo-{ENV}.zip"
    # This is how the RL Zoo creates the models on the Hub.
    theirs = PPO("MlpPolicy", ENV, learning_rate=LinearSchedule(1e-3, 0, 1), clip_range=lambda left: 0.2 * left)
    theirs.save(saved)
    download, upload = Mock(return_value=str(saved)), Mock()
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_sb3, "push_to_hub", upload)
    monkeypatch.setenv("TRUST_REMOTE_CODE", "True")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"PPOClip": PPOClip, "make_vec_env": make_vec_env}
    assert shown.count(".learn(50_000)") == 1
    exec(shown.replace(".learn(50_000)", ".learn(1)"), names)
    assert download.call_args.kwargs["filename"] == saved.name
    upload.assert_called_once()
    states = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    ours, expected = (model.predict(states, deterministic=True)[0] for model in (names["model"], theirs))
    np.testing.assert_array_equal(ours, expected)
    names["model"].learn(1)
