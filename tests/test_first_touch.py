"""What a user of SB3's PPO tries first: imports, environments and devices."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import stable_baselines3.common.utils
import stable_baselines3.ppo
import torch as th
from stable_baselines3.common.policies import ActorCriticCnnPolicy, ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor

import sb3_ppo_variants
from sb3_ppo_variants import PPOAdaptiveKL, PPOClip, get_system_info
from sb3_ppo_variants.arguments import choose_device


def test_the_system_info_is_that_of_sb3_and_this_package(capsys: pytest.CaptureFixture[str]) -> None:
    info, text = get_system_info()
    theirs, _ = stable_baselines3.common.utils.get_system_info(print_info=False)
    own = info.pop("sb3_ppo_variants")
    assert info == theirs
    assert sb3_ppo_variants.__version__ in own
    assert str(Path(sb3_ppo_variants.__file__).parent) in own
    assert capsys.readouterr().out == f"{text}\n"
    assert own in text


def test_vector_environments_of_gymnasium_are_wrapped(tmp_path: Path) -> None:
    def wrapped() -> Any:
        return pytest.warns(UserWarning, match="made into a DummyVecEnv, with a VecMonitor")

    env: Any = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    with wrapped():
        model = PPOClip("MlpPolicy", env, n_steps=16, batch_size=16).learn(32)
    model.save(tmp_path / "model")
    for call in (PPOClip.load, PPOAdaptiveKL.from_ppo):
        with wrapped():
            assert call(tmp_path / "model", env).learn(32).num_timesteps >= 32
    with wrapped():
        model.set_env(env)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(th.cuda, "is_available", lambda: True)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("asked", "policy", "policy_kwargs", "chosen"),
    [
        ("auto", "MlpPolicy", None, "cpu"),
        ("auto", ActorCriticPolicy, {"net_arch": [8]}, "cpu"),
        ("auto", "MaskableMlpPolicy", None, "cpu"),
        ("auto", "MlpPolicy", {"features_extractor_class": FlattenExtractor}, "cuda"),
        ("auto", "CnnPolicy", None, "cuda"),
        ("auto", ActorCriticCnnPolicy, None, "cuda"),
        ("cuda", "MlpPolicy", None, "cuda"),
        (th.device("cuda:1"), "MlpPolicy", None, "cuda:1"),
    ],
)
def test_the_device_of_a_policy(asked: Any, policy: Any, policy_kwargs: Any, chosen: str) -> None:
    assert choose_device(asked, policy, policy_kwargs) == th.device(chosen)
