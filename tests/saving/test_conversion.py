"""Models of SB3's PPO, or of another class, continue training with a different objective."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch as th
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.utils import LinearSchedule

from helpers import BOX, VARIANTS, assert_same_policy, noise_envs, save
from sb3_ppo_variants import ArgumentError, Objective, PPOAdaptiveKL, PPOClip, PPOCustom, PPOFixedKL, PPOUnclipped
from sb3_ppo_variants.errors import DamagedFileError, OtherClassError
from sb3_ppo_variants.objectives import Clipped, Unclipped

HYPERPARAMETERS: dict[str, Any] = {
    "learning_rate": LinearSchedule(1e-3, 1e-4, 1.0),
    "n_steps": 16,
    "batch_size": 8,
    "n_epochs": 3,
    "gamma": 0.9,
    "gae_lambda": 0.8,
    "clip_range_vf": 0.4,
    "normalize_advantage": False,
    "ent_coef": 0.01,
    "vf_coef": 0.7,
    "max_grad_norm": 0.6,
    "target_kl": 5.0,
    "stats_window_size": 7,
    "policy_kwargs": {"net_arch": [8], "activation_fn": th.nn.ReLU},
    "seed": 5,
}


def trained(cls: Any = PPO, **more: Any) -> Any:
    own = {} if cls is PPOUnclipped else {"clip_range": 0.3}
    return cls("MlpPolicy", noise_envs(BOX), device="cpu", **{**HYPERPARAMETERS, **own, **more}).learn(64)


def attribute(model: Any, name: str) -> Any:
    value = getattr(model, {"stats_window_size": "_stats_window_size"}.get(name, name))
    return [value(progress) for progress in (1.0, 0.3)] if callable(value) else value


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", ["file", "model", "open file"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("source", [PPO, *VARIANTS])
def test_of_every_class(source: Any, variant: Any, how: str, tmp_path: Path) -> None:
    theirs = trained(source)
    theirs.save(tmp_path / "ppo")
    given: Any = {"file": tmp_path / "ppo", "model": theirs, "open file": save(theirs)}[how]
    model = variant.from_ppo(given, device="cpu")
    assert type(model) is variant
    assert_same_policy(model, theirs)
    assert [attribute(model, name) for name in HYPERPARAMETERS] == [attribute(theirs, n) for n in HYPERPARAMETERS]
    assert (model.num_timesteps, model._n_updates) == (theirs.num_timesteps, theirs._n_updates)
    assert list(model.ep_info_buffer) == list(theirs.ep_info_buffer)
    assert (model.env is theirs.env) == (how == "model")
    fresh = variant("MlpPolicy", noise_envs(BOX))
    for name in ("kl_coef", "desired_kl"):
        assert not hasattr(fresh, name) or attribute(model, name) == attribute(fresh, name)
    if variant is PPOClip:  # It has the same objective as PPO. Others do not take their clip_range from it.
        assert attribute(model, "clip_range") == ([0.2, 0.2] if source is PPOUnclipped else [0.3, 0.3])
    else:
        assert not vars(model).get("clip_range")
    model.set_env(noise_envs(BOX))
    assert model.learn(32, reset_num_timesteps=False).num_timesteps == 96


def test_arguments_of_the_objective_and_others() -> None:
    file = save(trained())
    model = PPOAdaptiveKL.from_ppo(file, env=noise_envs(BOX), desired_kl=0.5, kl_coef=2.0, n_epochs=1, fast=False)
    assert (model.desired_kl, model.kl_coef, model.n_epochs, model.fast) == (0.5, 2.0, 1, False)
    for cls in (PPOAdaptiveKL, PPOClip):
        assert cls.from_ppo(file, clip_range=0.1).clip_range(1.0) == 0.1  # type: ignore[operator, misc]
    assert PPOClip.from_ppo(file, stats_window_size=9)._stats_window_size == 9
    with pytest.raises(ArgumentError, match=r"desired_kl=-1 is not allowed"):
        PPOAdaptiveKL.from_ppo(file, desired_kl=-1)
    with pytest.raises(ArgumentError, match=r"PPOUnclipped has no argument 'desired_kl'"):
        PPOUnclipped.from_ppo(file, desired_kl=1)


def test_an_objective_of_ones_own() -> None:
    file, objective = save(trained()), Unclipped()
    assert PPOCustom.from_ppo(file, objective=objective).objective is objective
    with pytest.raises(ArgumentError, match="objective=None is not allowed"):
        PPOCustom.from_ppo(file)


class KeepsIt(PPOCustom):
    """Makes the objective of each update of an argument that it keeps."""

    def __init__(self, *args: Any, eps: float = 0.2, **kwargs: Any):
        super().__init__(*args, objective=Unclipped(), **kwargs)
        self.eps = eps

    def _objective(self) -> Objective:
        return Clipped(self.eps)


def test_arguments_of_a_class_of_ones_own() -> None:
    kept: Any = KeepsIt.from_ppo(trained(), eps=0.9)
    assert kept._objective() == Clipped(0.9)


def test_without_unpickling() -> None:
    file = save(trained(learning_rate=1e-3, policy_kwargs={}))
    known = {"policy_class": "MlpPolicy", "rollout_buffer_class": None, "clip_range_vf": None}
    model = PPOAdaptiveKL.from_ppo(file, noise_envs(BOX), custom_objects=known, weights_only=True, desired_kl=0.2)
    assert (model.desired_kl, model.gamma) == (0.2, 0.9)


@pytest.mark.parametrize("variant", VARIANTS[1:])
def test_files_with_another_objective_are_refused_by_load(variant: Any) -> None:
    theirs = trained()
    how = rf"; .*{variant.__name__}\.from_ppo\(\)"
    with pytest.raises(OtherClassError, match=f"data is of SB3 or sb3-contrib, not of {variant.__name__}{how}"):
        variant.load(save(theirs))
    with pytest.raises(OtherClassError, match=f"says that this is a PPOClip, not a {variant.__name__}{how}"):
        variant.load(save(trained(PPOClip)))
    ours = variant("MlpPolicy", noise_envs(BOX), policy_kwargs=HYPERPARAMETERS["policy_kwargs"])
    ours.set_parameters(save(theirs))
    assert th.equal(ours.policy.action_net.weight, theirs.policy.action_net.weight)


class First(PPOClip):
    """An algorithm of a user."""


class Second(PPOClip):
    """The same under another name."""


class Penalised(PPOFixedKL):
    """An algorithm of a user with another objective."""


def test_a_class_of_ones_own_may_have_another_name_than_in_the_file() -> None:
    file = save(trained(First))
    assert type(Second.load(file)) is Second and type(PPOClip.load(file)) is PPOClip
    assert type(First.load(save(trained(PPOClip)))) is First
    with pytest.raises(OtherClassError, match="this is a First, not a Penalised"):
        Penalised.load(file)


class Measures(PPOClip):
    """An algorithm of a user that reads the spaces of its environment."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.size = self.observation_space.shape[0]  # type: ignore[index]


def test_a_constructor_may_use_the_environment() -> None:
    file, env = save(trained(Measures)), noise_envs(BOX)
    models = [Measures.load(file, env), Measures.load(file, env, weights_only=True), Measures.from_ppo(trained(), env)]
    assert {model.size for model in models} == {3}


@pytest.mark.parametrize("variant", VARIANTS)
def test_of_what_is_no_ppo(variant: Any) -> None:
    a2c, dqn = (A2C("MlpPolicy", noise_envs(BOX), device="cpu"), save(DQN("MlpPolicy", "CartPole-v1", buffer_size=9)))
    for given, name in ((a2c, "the given A2C"), (save(a2c), "BytesIO"), (dqn, "BytesIO")):
        with pytest.raises(OtherClassError, match=rf"{name}: data has no .*n_epochs"):
            variant.from_ppo(given)
    with pytest.raises(OtherClassError, match=r"data has no .*n_epochs"):
        variant.load(save(a2c))
    with pytest.raises(DamagedFileError, match="the zip archive cannot be read") as caught:
        variant.from_ppo(io.BytesIO(b"no model"))
    assert not isinstance(caught.value, OtherClassError)
