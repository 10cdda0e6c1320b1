"""Models of SB3's PPO, or of another class, continue training with a different objective."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.utils import LinearSchedule

from helpers import BOX, VARIANTS, noise_envs
from sb3_ppo_variants import (
    ArgumentError,
    DamagedFileError,
    Objective,
    OtherClassError,
    PPOAdaptiveKL,
    PPOClip,
    PPOCustom,
    PPOFixedKL,
    PPOUnclipped,
)
from sb3_ppo_variants.objectives import Clipped, Unclipped

HYPERPARAMETERS: dict[str, Any] = {
    "learning_rate": LinearSchedule(1e-3, 1e-4, 1.0),
    "n_steps": 16,
    "batch_size": 8,
    "n_epochs": 3,
    "gamma": 0.9,
    "gae_lambda": 0.8,
    "clip_range": 0.3,
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
OF_OBJECTIVE = ("clip_range",)


def trained(cls: Any = PPO, **more: Any) -> Any:
    arguments = {**HYPERPARAMETERS, **more}
    if cls in (PPOUnclipped, PPOCustom):
        del arguments["clip_range"]
    return cls("MlpPolicy", noise_envs(BOX), device="cpu", **arguments).learn(64)


def saved(model: Any, folder: Path) -> Path:
    model.save(folder / "ppo")
    return folder / "ppo.zip"


def attribute(model: Any, name: str) -> Any:
    value = getattr(model, {"stats_window_size": "_stats_window_size"}.get(name, name))
    return [value(progress) for progress in (1.0, 0.3)] if callable(value) else value


def assert_converted(model: Any, source: Any) -> None:
    for name in [name for name in HYPERPARAMETERS if name not in OF_OBJECTIVE]:
        assert attribute(model, name) == attribute(source, name), name
    theirs = source.get_parameters()
    for owner, state in model.get_parameters().items():
        assert str(state) == str(theirs[owner])
    assert (model.num_timesteps, model._n_updates) == (source.num_timesteps, source._n_updates)
    assert list(model.ep_info_buffer) == list(source.ep_info_buffer)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", ["file", "model", "open file"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_of_sb3(variant: Any, how: str, tmp_path: Path) -> None:
    source = trained()
    file = saved(source, tmp_path)
    given: Any = {"file": file, "model": source, "open file": io.BytesIO(file.read_bytes())}[how]
    model = variant.from_ppo(given, device="cpu")
    assert type(model) is variant
    assert_converted(model, source)
    assert (model.env is source.env) == (how == "model")
    fresh = variant("MlpPolicy", noise_envs(BOX))
    for name in ("kl_coef", "desired_kl"):
        assert not hasattr(fresh, name) or attribute(model, name) == attribute(fresh, name)
    # Only PPOClip has the same objective as PPO.
    assert attribute(model, "clip_range") == [0.3, 0.3] if variant is PPOClip else not vars(model).get("clip_range")


def test_it_trains_on_as_ppo_would() -> None:
    """PPOClip has the same objective as PPO, so the next update is the same."""
    source = trained(clip_range_vf=None)
    model = PPOClip.from_ppo(source, env=noise_envs(BOX), device="cpu", fast=False)
    for one in (source, model):
        one.set_env(noise_envs(BOX))
        one.set_random_seed(2)
        one.learn(32, reset_num_timesteps=False)
    weights = source.policy.state_dict()
    for name, weight in model.policy.state_dict().items():
        np.testing.assert_allclose(weight, weights[name], rtol=1e-4, atol=1e-6)


def test_arguments_of_the_objective_and_others(tmp_path: Path) -> None:
    file = saved(trained(), tmp_path)
    model = PPOAdaptiveKL.from_ppo(file, env=noise_envs(BOX), desired_kl=0.5, kl_coef=2.0, n_epochs=1, fast=False)
    assert (model.desired_kl, model.kl_coef, model.n_epochs, model.fast) == (0.5, 2.0, 1, False)
    assert model.learn(32, reset_num_timesteps=False).num_timesteps == 96
    assert PPOAdaptiveKL.from_ppo(file, clip_range=0.1).clip_range(1.0) == 0.1  # type: ignore[operator, misc]
    assert PPOClip.from_ppo(file, clip_range=0.1).clip_range(1.0) == 0.1  # type: ignore[operator]
    assert PPOClip.from_ppo(file, stats_window_size=9)._stats_window_size == 9
    with pytest.raises(ArgumentError, match=r"desired_kl=-1 is not allowed"):
        PPOAdaptiveKL.from_ppo(file, desired_kl=-1)
    with pytest.raises(ArgumentError, match=r"PPOUnclipped.from_ppo has no entry 'desired_kl'"):
        PPOUnclipped.from_ppo(file, desired_kl=1)


def test_an_objective_of_ones_own(tmp_path: Path) -> None:
    file = saved(trained(), tmp_path)
    objective: Objective = Unclipped()
    model = PPOCustom.from_ppo(file, env=noise_envs(BOX), objective=objective)
    assert model.objective is objective
    model.learn(32, reset_num_timesteps=False)
    with pytest.raises(ArgumentError, match="objective=None is not allowed"):
        PPOCustom.from_ppo(file)


class MakesIt(PPOCustom):
    """Makes its objective of an argument that it does not keep."""

    def __init__(self, *args: Any, eps: float = 0.2, **kwargs: Any):
        super().__init__(*args, objective=Clipped(eps), **kwargs)


class KeepsIt(PPOCustom):
    """Makes the objective of each update of an argument that it keeps."""

    def __init__(self, *args: Any, eps: float = 0.2, **kwargs: Any):
        super().__init__(*args, objective=Unclipped(), **kwargs)
        self.eps = eps

    def _objective(self) -> Objective:
        return Clipped(self.eps)


@pytest.mark.parametrize("cls", [MakesIt, KeepsIt])
def test_arguments_of_a_class_of_ones_own(cls: Any) -> None:
    source = trained()
    given = {"objective": Clipped(0.3)} if cls is MakesIt else {"eps": 0.3}
    model = cls.from_ppo(source, n_epochs=1, stats_window_size=9, **given)
    assert (model.n_epochs, model.ep_info_buffer.maxlen) == (1, 9)
    model.learn(32, reset_num_timesteps=False)
    assert model.logger.name_to_value["train/clip_range"] == 0.3
    # These are a name that nothing has, those of *args and **kwargs, and an attribute that is no argument.
    for name in ("epss", "args", "kwargs", "self", "_n_updates", *(["eps"] if cls is MakesIt else [])):
        match = rf"^{cls.__name__}\.from_ppo cannot set {name}=1, because .* keeps batch_size, .*, objective, .*"
        with pytest.raises(ArgumentError, match=match):
            cls.from_ppo(source, **{name: 1})
    with pytest.raises(ArgumentError, match=f"^{cls.__name__}.from_ppo has no entry 'policy'"):
        cls.from_ppo(source, policy="MlpPolicy")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("source", VARIANTS)
def test_of_another_class_of_ours(source: Any, variant: Any) -> None:
    model = trained(source)
    made = variant.from_ppo(model)
    assert type(made) is variant
    assert_converted(made, model)
    made.learn(32, reset_num_timesteps=False)


def test_without_unpickling(tmp_path: Path) -> None:
    file = saved(trained(learning_rate=1e-3, policy_kwargs={}), tmp_path)
    known = {"policy_class": "MlpPolicy", "rollout_buffer_class": None, "clip_range_vf": None}
    model = PPOAdaptiveKL.from_ppo(file, noise_envs(BOX), custom_objects=known, weights_only=True, desired_kl=0.2)
    assert (model.desired_kl, model.gamma) == (0.2, 0.9)


@pytest.mark.parametrize("variant", VARIANTS[1:])
def test_a_healthy_file_of_another_class_is_not_called_damaged(variant: Any, tmp_path: Path) -> None:
    match = rf"ppo\.zip: data is of SB3's PPO, not of {variant.__name__}; .*{variant.__name__}\.from_ppo\(\)"
    with pytest.raises(OtherClassError, match=match):
        variant.load(saved(trained(), tmp_path))
    with pytest.raises(
        OtherClassError, match=rf"says that this is a PPOClip, not a {variant.__name__}; .*from_ppo\(\)"
    ):
        variant.load(saved(trained(PPOClip), tmp_path))


class First(PPOClip):
    """An algorithm of a user."""


class Second(PPOClip):
    """The same under another name."""


class Penalised(PPOFixedKL):
    """An algorithm of a user with another objective."""


def test_a_class_of_ones_own_may_have_another_name_than_in_the_file(tmp_path: Path) -> None:
    file = saved(trained(First), tmp_path)
    assert type(Second.load(file)) is Second and type(PPOClip.load(file)) is PPOClip
    with pytest.raises(OtherClassError, match="this is a First, not a Penalised"):
        Penalised.load(file)


class Measures(PPOClip):
    """An algorithm of a user that reads the spaces of its environment."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.size = self.observation_space.shape[0]  # type: ignore[index]


def test_a_constructor_may_use_the_environment(tmp_path: Path) -> None:
    file, env = saved(trained(Measures), tmp_path), noise_envs(BOX)
    models = [
        Measures.load(file, env),
        Measures.load(file, env, verbose=0, ent_coef=0.1),
        Measures.load(file, env, weights_only=True),
        Measures.from_ppo(trained(PPO), env),
    ]
    assert {model.size for model in models} == {env.observation_space.shape[0]}  # type: ignore[index]
    with pytest.raises(ArgumentError, match=r"^Measures\.load has no argument 'learning_rat'"):
        Measures.load(file, env, learning_rat=1e-3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_of_what_is_no_ppo(variant: Any, tmp_path: Path) -> None:
    a2c = A2C("MlpPolicy", noise_envs(BOX), device="cpu")
    for given in (a2c, saved(a2c, tmp_path)):
        with pytest.raises(OtherClassError, match=r"(the given A2C|ppo\.zip): data has no batch_size, n_epochs"):
            variant.from_ppo(given)
    (tmp_path / "ppo.zip").write_bytes(b"no model")
    with pytest.raises(DamagedFileError) as caught:
        variant.from_ppo(tmp_path / "ppo.zip")
    assert not isinstance(caught.value, OtherClassError)
