"""The classes have the same public interface as SB3's PPO."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

import sb3_ppo_variants
from helpers import BOX, VARIANTS, LogRecorder, noise_envs
from sb3_ppo_variants import PPOAdaptiveKL, PPOClip, PPOFixedKL, PPOUnclipped
from sb3_ppo_variants.ppo import PPOBase

SB3S = inspect.signature(OnPolicyAlgorithm).parameters
THEIRS = inspect.signature(PPO.__init__).parameters
SHARED = {"fast": "auto", "updates": None, "stop": None, "value_loss": None, "data_parallel": "auto"}
OWN: dict[type[PPOBase], dict[str, Any]] = {
    PPOClip: {"clip_range": 0.2, **SHARED},
    PPOFixedKL: {"clip_range": None, "kl_coef": 1.0, **SHARED},
    PPOAdaptiveKL: {"clip_range": None, "desired_kl": 0.01, "kl_coef": 1.0, **SHARED},
    PPOUnclipped: SHARED,
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_signature(variant: Any) -> None:
    assert issubclass(variant, OnPolicyAlgorithm)
    ours = inspect.signature(variant.__init__).parameters
    for name, default in OWN[variant].items():
        assert ours[name].default == default
    shared = [name for name in THEIRS if name != "clip_range"]
    assert [name for name in ours if name not in OWN[variant]] == shared
    for name in shared:
        assert ours[name].default == THEIRS[name].default
        assert ours[name].kind == THEIRS[name].kind


@pytest.mark.parametrize("variant", VARIANTS)
def test_logged_keys(variant: Any) -> None:
    def keys(cls: Any, **arguments: Any) -> set[str]:
        log = LogRecorder()
        cls("MlpPolicy", noise_envs(BOX), n_steps=32, n_epochs=1, **arguments).learn(64, callback=log)
        return set(log.updates[0])

    clip, penalty = {"train/clip_range", "train/clip_fraction"}, {"train/kl_coef"}
    expected = keys(PPO, clip_range_vf=0.2) - clip | {"train/kl"}
    expected |= {PPOClip: clip, PPOUnclipped: set()}.get(variant, penalty)
    assert keys(variant, clip_range_vf=0.2) == expected
    assert keys(variant) == expected - {"train/clip_range_vf"}
    if "clip_range" in OWN[variant]:
        assert keys(variant, clip_range=0.1) == (expected - {"train/clip_range_vf"}) | clip


@pytest.mark.parametrize("variant", VARIANTS)
def test_runs_are_named_after_the_class(variant: Any, tmp_path: Path) -> None:
    model = variant("MlpPolicy", noise_envs(BOX), n_steps=32, n_epochs=1, tensorboard_log=str(tmp_path))
    model.learn(64)
    model.learn(64, tb_log_name="named")
    assert {folder.name for folder in tmp_path.iterdir()} == {f"{variant.__name__}_1", "named_1"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_same_seed_same_run(variant: Any) -> None:
    runs = []
    for _ in range(2):
        log = LogRecorder()
        variant("MlpPolicy", noise_envs(BOX), n_steps=32, seed=4).learn(128, callback=log)
        runs.append([update["train/loss"] for update in log.updates])
    assert runs[0] == runs[1]


def test_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert version("sb3_ppo_variants") == sb3_ppo_variants.__version__


def documented(variant: Any) -> list[str]:
    return re.findall(r":param (\w+):", inspect.getdoc(variant) or "")


@pytest.mark.parametrize("variant", VARIANTS)
def test_help_shows_the_arguments_in_their_order(variant: Any) -> None:
    arguments = [name for name in inspect.signature(variant.__init__).parameters if name != "self"]
    assert set(arguments) <= {*documented(variant), *documented(PPOClip)}
    assert documented(variant) == [name for name in arguments if name in documented(variant)]
