"""The argument ``fast`` chooses the path, which is reported and changes nothing but the speed."""

from pathlib import Path
from typing import Any

import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.policies import ActorCriticPolicy

from helpers import BOX, IMAGE, VARIANTS, VECTOR, assert_same_weights, named, noise_envs, save, small
from sb3_ppo_variants import ArgumentError, KLAdaptive, Objective, PPOAdaptiveKL, PPOClip, PPOCustom, PPOUnclipped
from sb3_ppo_variants.objectives import EWMA, Clipped, KLPenalized

pytestmark = pytest.mark.usefixtures("natively")
NATIVE = "the fast path: the native library computes the networks"


class Renamed(ActorCriticPolicy):
    """A policy that differs from ActorCriticPolicy only in its name."""


class Mine(Objective):
    """A user's objective."""

    def loss(self, batch: Any) -> th.Tensor:
        return -(batch.ratio * batch.advantages).mean()


def said(model: Any, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a model says about the path that it takes."""
    capsys.readouterr()
    model.learn(32)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Training on")]
    return line.removeprefix("Training on ")


@pytest.mark.parametrize(
    ("cls", "arguments"),
    [
        *((variant, {}) for variant in VARIANTS),
        (PPOClip, {"policy": Renamed}),
        (PPOClip, {"use_sde": True}),
        (PPOCustom, {"objective": Mine()}),
    ],
    ids=named,
)
def test_the_fast_path_is_the_default(cls: Any, arguments: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(small(cls, verbose=1, **arguments), capsys) == NATIVE
    assert said(small(cls, verbose=1, fast=False, **arguments), capsys) == "the reference path: fast=False"
    small(cls, fast=True, **arguments).learn(32)
    assert "Training on" not in capsys.readouterr().out


@pytest.mark.parametrize("value", [1, "yes", None])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^fast=.* is not allowed; allowed: True, False or 'auto'"):
        small(fast=value)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"policy": "CnnPolicy", "observation_space": IMAGE},
        {"use_sde": True},
        {"observation_space": spaces.Discrete(3)},
        {"cls": PPOAdaptiveKL, "learning_rate": KLAdaptive()},
        {"cls": PPOCustom, "objective": EWMA(Clipped(0.2))},
    ],
    ids=str,
)
def test_pytorchs_default_device_does_not_matter(arguments: dict[str, Any], fast: bool) -> None:
    """Tensors on the device "meta" have no numbers, so that using a single one of them fails. SB3 uses none."""

    def make(observation_space: Any = VECTOR, cls: Any = PPOClip, **more: Any) -> Any:
        return small(cls, noise_envs(BOX, observation_space), **more, fast=fast)

    expected, model = make(**arguments).learn(128), make(**arguments)
    with th.device("meta"):
        model.learn(128)
    assert_same_weights(model, expected)


def test_the_objective_of_a_subclass_is_that_of_both_paths() -> None:
    class Held(PPOUnclipped):
        def _objective(self) -> Any:
            return KLPenalized(kl_coef=1e4)

    def kl(cls: Any, fast: bool) -> float:
        env = noise_envs(BOX)
        model = cls("MlpPolicy", env, 3e-3, n_steps=64, batch_size=32, seed=0, device="cpu", fast=fast)
        return model.learn(128).logger.name_to_value["train/kl"]

    for fast in (False, True):
        assert kl(Held, fast) < 0.01 * kl(PPOUnclipped, fast)


def test_the_choice_is_saved_and_may_be_changed(tmp_path: Path) -> None:
    small(fast=False).save(tmp_path / "model")
    assert PPOClip.load(tmp_path / "model").fast is False
    assert PPOClip.load(tmp_path / "model", fast=True).fast is True


def test_a_model_of_sb3_goes_on_on_the_fast_path_and_back(capsys: pytest.CaptureFixture[str]) -> None:
    file = save(small(PPO, n_epochs=1).learn(64))
    ours: Any = PPOClip.load(file, env=noise_envs(BOX), verbose=1)
    ours.learn(32, reset_num_timesteps=False)
    assert "Training on the fast path" in capsys.readouterr().out
    back = save(ours)
    theirs: Any = PPO.load(back, env=noise_envs(BOX))
    for key, state in ours.policy.optimizer.state_dict()["state"].items():
        th.testing.assert_close(theirs.policy.optimizer.state_dict()["state"][key], state)
        assert state["step"] == 2 * 2 + 2
    theirs.learn(32, reset_num_timesteps=False)
    assert theirs.num_timesteps == 64 + 32 + 32
