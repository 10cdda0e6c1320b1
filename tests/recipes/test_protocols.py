"""The protocols of the paper's experiments, in recipes and comparisons, and unclipped actions."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from comparing import planned
from gymnasium import spaces
from gymnasium.wrappers import RescaleAction
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecNormalize

from helpers import BOX, LogRecorder, NoiseEnv
from sb3_ppo_variants import ArgumentError, PPOClip
from sb3_ppo_variants.__main__ import main
from sb3_ppo_variants.compare.plan import Conditions, read_config, read_setting, resolve
from sb3_ppo_variants.compare.records import commit
from sb3_ppo_variants.envs import ActionsAsDrawn
from sb3_ppo_variants.recipes import PROTOCOLS, build, recipe

STUDY_FILE = Path(__file__).parents[2] / "benchmarks" / "comparisons" / "table1-study.yml"
STUDY = read_config(str(STUDY_FILE))
BEST = "ppo_clip:clip_range=0.2"


class Taking(NoiseEnv):
    """Records the actions that it receives."""

    def __init__(self, action_space: spaces.Space = BOX):
        super().__init__(action_space)
        self.taken: list[Any] = []

    def step(self, action: Any) -> Any:
        self.taken.append(np.array(action))
        return super().step(action)


class Drawn(BaseCallback):
    """Records the actions that the policy sampled."""

    def __init__(self) -> None:
        super().__init__()
        self.actions: list[Any] = []

    def _on_step(self) -> bool:
        self.actions.append(self.locals["actions"][0])
        return True


@pytest.mark.parametrize("cls", [PPOClip, PPO])
@pytest.mark.parametrize("wide", [False, True])
def test_environments_are_given_actions_as_drawn(cls: Any, wide: bool) -> None:
    env, drawn = Taking(), Drawn()
    wrapped = ActionsAsDrawn(env) if wide else env
    cls("MlpPolicy", wrapped, n_steps=64, n_epochs=1, seed=0, policy_kwargs={"log_std_init": 1.0}).learn(64, drawn)
    expected = np.array(drawn.actions)
    assert np.abs(expected).max() > 2  # Beyond the bounds, which are -1 and 1.
    np.testing.assert_array_equal(env.taken, expected if wide else expected.clip(-1, 1))


def test_the_wrapper_needs_a_box_of_numbers() -> None:
    for space in (spaces.Discrete(3), spaces.Box(0, 5, (2,), np.int64)):
        with pytest.raises(ArgumentError, match="ActionsAsDrawn needs a Box of floating-point actions"):
            ActionsAsDrawn(NoiseEnv(space))
    made = gym.make("Pendulum-v1", max_episode_steps=5)
    assert ActionsAsDrawn(made).spec is not None


def test_scaled_actions_have_no_bounds_to_be_scaled_to() -> None:
    squashed: Any = {"use_sde": True, "policy_kwargs": {"squash_output": True}, "n_steps": 8, "batch_size": 8}
    PPOClip("MlpPolicy", NoiseEnv(BOX), **squashed).learn(8)
    with pytest.raises(ArgumentError, match="squash_output=True scales actions to the bounds"):
        PPOClip("MlpPolicy", ActionsAsDrawn(NoiseEnv(BOX)), **squashed).learn(8)


def test_the_released_code() -> None:
    """https://github.com/openai/baselines, ppo1: run_mujoco.py, pposgd_simple.py and mlp_policy.py."""
    made = recipe("ppo_clip", "Pendulum-v1", protocol="released-code", clip_range=0.1, n_steps=64)
    model: Any = build(made, seed=0)
    normalised = model.get_env()
    assert isinstance(normalised, VecNormalize)
    assert (normalised.norm_obs, normalised.clip_obs, normalised.norm_reward) == (True, 5.0, False)
    assert normalised.env_is_wrapped(ActionsAsDrawn) == [True]
    assert (model.normalize_advantage, model.max_grad_norm) == ("rollout", None)
    assert model.policy.optimizer.defaults["eps"] == 1e-5
    assert [model.clip_range(x) for x in (1.0, 0.5, 0.0)] == [0.1, 0.05, 0.0]
    assert [model.lr_schedule(x) for x in (1.0, 0.5)] == [3e-4, 1.5e-4]
    log = LogRecorder()
    model.learn(128, callback=log)
    assert [update["train/clip_range"] for update in log.updates] == [0.05, 0.0]


def test_the_text() -> None:
    model: Any = build(recipe("ppo_fixed_kl", "Pendulum-v1", protocol="text"), seed=0)
    assert model.get_vec_normalize_env() is None
    assert model.get_env().env_is_wrapped(ActionsAsDrawn) == [True]
    assert (model.normalize_advantage, model.max_grad_norm) == (True, None)
    assert model.lr_schedule(0.0) == 3e-4 and model.clip_range is None


def test_a_protocol_adds_to_networks_and_wrappers() -> None:
    """The eps of OpenAI Baselines and the networks of rl_zoo3; actions as drawn around the other wrappers."""
    tuned: dict[str, Any] = {"entry": "HalfCheetah-v5", "protocol": "released-code"}
    kept = recipe("ppo_clip", "HalfCheetah-v5", **tuned).arguments["policy_kwargs"]
    assert kept["net_arch"] == {"pi": [256, 256], "vf": [256, 256]} and kept["optimizer_kwargs"] == {"eps": 1e-5}
    own = {"net_arch": [8]}
    changed = recipe("ppo_clip", "HalfCheetah-v5", **tuned, policy_kwargs=own).arguments["policy_kwargs"]
    assert changed == {"net_arch": [8], "optimizer_kwargs": {"eps": 1e-5}}
    chosen = {"optimizer_kwargs": {"eps": 1e-3}}
    assert recipe("ppo_clip", "HalfCheetah-v5", **tuned, policy_kwargs=chosen).arguments["policy_kwargs"] == chosen

    atari = "stable_baselines3.common.atari_wrappers.AtariWrapper"
    drawn = "sb3_ppo_variants.envs.ActionsAsDrawn"
    assert recipe("ppo_clip", "Hopper-v5", entry="atari", protocol="text").env_wrapper == [atari, drawn]
    for given, expected in ((RescaleAction, [RescaleAction, drawn]), ([], [drawn]), (None, None)):
        assert recipe("ppo_clip", "Hopper-v5", protocol="text", env_wrapper=given).env_wrapper == expected
    kept = recipe("ppo_clip", "Hopper-v5", protocol="released-code", policy_kwargs={}).arguments["policy_kwargs"]
    assert kept == {"optimizer_kwargs": {"eps": 1e-5}}


def test_a_protocol_that_is_not_known_is_refused() -> None:
    with pytest.raises(ArgumentError, match="protocol='paper' is not allowed; allowed: text, released-code, sb3"):
        recipe("ppo_clip", "Pendulum-v1", protocol="paper")


def hyperparameters(setting: str, **conditions: Any) -> dict[str, Any]:
    return resolve(read_setting(setting), "Reacher-v5", Conditions(entry="mujoco", **conditions)).hyperparameters


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("algorithm", ["ppo_clip", "ppo_fixed_kl"])
def test_a_comparison_follows_the_protocol_that_a_recipe_follows(algorithm: str, name: str) -> None:
    found = hyperparameters(algorithm, protocol=name)
    expected = recipe(algorithm, "Reacher-v5", protocol=name)
    for argument, value in expected.arguments.items():
        same = found[argument]
        assert same == (f"lin_{value(1.0)}" if callable(value) else value), argument
    assert found.get("env_wrapper") == expected.env_wrapper
    assert found["normalize"] == (expected.normalize or expected.normalize is not None)


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "released-code" else pytest.mark.slow) for name in PROTOCOLS]
)
def test_a_run_of_each_protocol(name: str, tmp_path: Path) -> None:
    arguments = ["--algos", BEST, "ppo_adaptive_kl", "--envs", "Pendulum-v1", "--seeds", "1", "--jobs", "1"]
    shorter = ["--timesteps", "512", "-p", "n_steps=128", "--protocol", name, "--out", str(tmp_path)]
    assert main(["compare", *arguments, *shorter]) == 0
    found = [json.loads(file.read_text()) for file in (tmp_path / "records").glob("ppo*")]
    assert {record["conditions"]["protocol"] for record in found} == {name}
    assert {record["commit"] for record in found} == {commit()}
    for record in found:
        kl = record["training"]["kl"]
        # There is one update after each of the four rollouts.
        assert [i for i, value in enumerate(kl) if value is not None] == [24, 49, 74, 99]
        assert ("kl_coef" in record["training"]) == (record["label"] == "ppo_adaptive_kl")
    assert f"## Pendulum-v1, protocol {name} (" in (tmp_path / "report.md").read_text()


def test_a_setting_has_a_protocol_of_its_own() -> None:
    for protocol in PROTOCOLS:
        own = hyperparameters(f"ppo_clip:protocol={protocol}", normalize=True, anneal=True)
        assert own == hyperparameters("ppo_clip", protocol=protocol)
        run = resolve(read_setting(f"ppo_clip:protocol={protocol}"), "Reacher-v5", Conditions())
        assert own == run.hyperparameters
    assert hyperparameters("ppo_clip:clip_range=0.1,protocol=released-code")["clip_range"] == "lin_0.1"
    assert read_setting("ppo_clip:protocol=text").label == "ppo_clip protocol=text"
    with pytest.raises(ArgumentError, match="protocol='txt' is not allowed; allowed: text, re"):
        read_setting("ppo_clip:protocol=txt")


@pytest.mark.parametrize("protocol", ["text", "released-code"])
def test_table_1_at_full_length(protocol: str) -> None:
    made = planned(["--config", "paper-table1", "--protocol", protocol])
    runs = [run for run in made if run.algorithm]
    assert len({run.name for run in runs}) == 231 + 21 and {run.timesteps for run in runs} == {1_000_000}
    of_sb3 = [run for run in runs if run.label.startswith("sb3")]
    assert {run.label for run in of_sb3} == {"sb3_ppo protocol=sb3"}
    (conditions,) = read_config("paper-table1").conditions
    for run in of_sb3:
        assert run.hyperparameters == resolve(read_setting("sb3_ppo"), run.env, conditions).hyperparameters
