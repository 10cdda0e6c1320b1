"""Loading restores what was saved, and changes only what it is asked to change."""

import io
import warnings
import zipfile
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import ConstantSchedule, LinearSchedule

from helpers import BOX, VARIANTS, assert_same_weights, noise_envs, save
from sb3_ppo_variants import (
    ArgumentError,
    DamagedFileError,
    PPOAdaptiveKL,
    PPOClip,
    PPOCustom,
    PPOFixedKL,
    PPOUnclipped,
    SeparateUpdates,
)
from sb3_ppo_variants.objectives import Unclipped


def small(cls: Any, **arguments: Any) -> Any:
    return cls("MlpPolicy", noise_envs(BOX), n_steps=32, batch_size=16, n_epochs=2, seed=1, device="cpu", **arguments)


@pytest.mark.parametrize("variant", VARIANTS)
def test_round_trip(variant: Any, tmp_path: Path) -> None:
    model = small(variant, learning_rate=1e-3, clip_range_vf=0.3, ent_coef=0.01).learn(128)
    model.save(tmp_path / "model")
    loaded = variant.load(tmp_path / "model", env=noise_envs(BOX))
    assert_same_weights(loaded, model)
    moments, loaded_moments = model.policy.optimizer.state_dict(), loaded.policy.optimizer.state_dict()
    assert moments["state"].keys() == loaded_moments["state"].keys()
    assert th.equal(moments["state"][0]["exp_avg"], loaded_moments["state"][0]["exp_avg"])
    for name in ("ent_coef", "batch_size", "n_epochs", "num_timesteps", "_n_updates"):
        assert getattr(loaded, name) == getattr(model, name)
    assert isinstance(loaded.clip_range_vf.value_schedule, ConstantSchedule)
    assert loaded.clip_range_vf.value_schedule.val == 0.3
    observation = np.zeros((2, 3), dtype=np.float32)
    assert np.array_equal(
        model.predict(observation, deterministic=True)[0], loaded.predict(observation, deterministic=True)[0]
    )
    loaded.learn(64, reset_num_timesteps=False)
    assert loaded.num_timesteps == 192


@pytest.mark.parametrize("total", [1e2, 64.5, np.float32(1e2), float("inf")])
@pytest.mark.parametrize("cls", [PPOClip, PPO])
def test_a_number_of_steps_that_is_no_integer(cls: Any, total: Any) -> None:
    """``learn(1e6)`` is usual with SB3, which keeps the number as it is."""
    model = small(cls).learn(total, callback=lambda variables, _: variables["self"].num_timesteps < 128)
    assert PPO.load(save(model))._total_timesteps == total
    for loaded in (PPOClip.load(save(model), noise_envs(BOX)), PPOAdaptiveKL.from_ppo(model)):
        assert (loaded._total_timesteps, loaded.num_timesteps) == (total, 128)
        assert loaded.learn(1e2, reset_num_timesteps=False).num_timesteps == 256


@pytest.mark.parametrize("variant", VARIANTS)
def test_defaults_construct_save_and_load_without_warning(variant: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        file = save(variant("MlpPolicy", "CartPole-v1", device="cpu"))
        variant.load(file, device="cpu")


def test_beta_is_state_that_load_restores() -> None:
    model = small(PPOAdaptiveKL, kl_coef=2.0, desired_kl=10.0).learn(64 * 3)
    assert model.kl_coef == 0.25
    for given, kl_coef in (({}, 0.25), ({"kl_coef": 8.0}, 8.0), ({"desired_kl": 0.02}, 0.25)):
        loaded = PPOAdaptiveKL.load(save(model), env=noise_envs(BOX), **cast(Any, given))
        assert (loaded.kl_coef, loaded.desired_kl) == (kl_coef, given.get("desired_kl", 10.0))
    loaded.desired_kl = 10.0
    loaded.learn(64, reset_num_timesteps=False)
    assert loaded.kl_coef == 0.125


def test_schedules_are_saved() -> None:
    file = save(small(PPOFixedKL, clip_range=LinearSchedule(0.2, 0.1, 1.0), kl_coef=LinearSchedule(4.0, 0.0, 1.0)))
    loaded: Any = PPOFixedKL.load(file)
    assert loaded.clip_range(0.5) == pytest.approx(0.15)
    assert loaded.kl_coef(0.5) == pytest.approx(2.0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_load_as_rl_zoo_does_for_enjoyment(variant: Any) -> None:
    file = save(small(variant))
    custom_objects = {"learning_rate": 0.0, "lr_schedule": lambda _: 0.0, "clip_range": lambda _: 0.0}
    variant.load(file, custom_objects=custom_objects).predict(np.zeros(3, dtype=np.float32))


def test_arguments_are_checked_at_load() -> None:
    file = save(small(PPOClip))
    with pytest.raises(ArgumentError, match=r"gamma=1\.5 is not allowed"):
        PPOClip.load(file, gamma=1.5)
    with pytest.raises(ArgumentError, match=r"stats_window_size=0 is not allowed"):
        PPOClip.load(file, stats_window_size=0)


@pytest.mark.parametrize("weights_only", [False, True])
def test_names_that_no_attribute_has(weights_only: bool) -> None:
    file = save(small(PPOUnclipped))
    cls: Any = PPOUnclipped
    for name in ("learning_rat", "clip_range", "weights_ony"):
        match = rf"^PPOUnclipped\.load has no argument '{name}' \(=0\), and neither .* are batch_size, .*, updates"
        with pytest.raises(ArgumentError, match=match):
            cls.load(file, weights_only=weights_only, **{name: 0})


def test_attributes_that_only_the_file_has() -> None:
    cls: Any = PPOClip
    model = small(cls)
    model.remark = "first"
    assert cls.load(save(model)).remark == "first"
    assert cls.load(save(model), remark="second").remark == "second"


def test_an_id_instead_of_an_environment() -> None:
    model: Any = small(PPOClip)
    file = save(model)
    with pytest.raises(ArgumentError, match=r"env='CartPole-v1' is the id .* such as gymnasium.make\('CartPole-v1'\)"):
        PPOClip.load(file, env="CartPole-v1")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="env='CartPole-v1' is the id"):
        model.set_env("CartPole-v1")


@pytest.mark.parametrize("weights_only", [False, True])
def test_arguments_whose_attributes_differ_from_them(weights_only: bool) -> None:
    file, env = io.BytesIO(), make_vec_env("CartPole-v1")
    PPOClip("MlpPolicy", env, n_steps=256, batch_size=256, n_epochs=1).learn(256).save(file)
    arguments: Any = dict(stats_window_size=3, rollout_buffer_kwargs=None, policy_kwargs=None, policy="MlpPolicy")
    loaded = PPOClip.load(file, env=env, weights_only=weights_only, **arguments)
    assert len(loaded.ep_info_buffer or ()) == 3
    assert (loaded.rollout_buffer_kwargs, loaded.policy_kwargs) == ({}, {})
    loaded.learn(256, reset_num_timesteps=False)
    assert len(loaded.ep_info_buffer or ()) == 3
    assert type(PPOClip.load(file, weights_only=weights_only, policy_class="MlpPolicy").policy) is ActorCriticPolicy


def moments_of_values(parameters: dict[str, Any]) -> th.Tensor:
    return parameters["value_optimizer"]["state"][0]["exp_avg"]


@pytest.mark.parametrize("weights_only", [False, True])
def test_a_second_optimizer(weights_only: bool) -> None:
    model = small(PPOClip, updates=SeparateUpdates()).learn(64)
    trained = moments_of_values(model.get_parameters())
    assert trained.count_nonzero() > 0
    file = save(model)
    assert "value_optimizer.pth" in zipfile.ZipFile(file).namelist()
    loaded: Any = PPOClip.load(file, weights_only=weights_only)
    assert th.equal(moments_of_values(loaded.get_parameters()), trained)
    other = small(PPOClip, updates=SeparateUpdates())
    for parameters in (file, model.get_parameters()):
        other.set_parameters(parameters)
        assert th.equal(moments_of_values(other.get_parameters()), trained)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("weights_only", [False, True])
@pytest.mark.parametrize(
    ("name", "of_file", "value"),
    [
        ("updates", None, SeparateUpdates()),
        ("updates", SeparateUpdates(), None),
        ("use_sde", False, True),
        ("policy_kwargs", {"net_arch": [8]}, {"net_arch": [9]}),
    ],
)
def test_arguments_that_need_other_networks(name: str, of_file: Any, value: Any, weights_only: bool) -> None:
    file = save(small(PPOClip, **{name: of_file}))
    for make in (PPOClip.load, PPOAdaptiveKL.from_ppo):
        make(file, weights_only=weights_only, **{name: of_file})
        with pytest.raises(ArgumentError, match=rf"^{name}=.* needs other networks or optimizers than those in"):
            make(file, weights_only=weights_only, **{name: value})


def test_other_settings_of_separate_updates() -> None:
    file = save(small(PPOClip, updates=SeparateUpdates()))
    assert PPOClip.load(file, updates={"policy_epochs": 3}).updates.policy_epochs == 3  # type: ignore[union-attr]


def test_a_model_of_sb3_goes_on_as_ppoclip() -> None:
    file = io.BytesIO()
    theirs = small(PPO, clip_range=0.1).learn(64)
    theirs.save(file)
    ours = PPOClip.load(file, env=noise_envs(BOX))
    assert_same_weights(ours, theirs)
    ours.learn(64)
    assert ours.logger.name_to_value["train/clip_range"] == 0.1


@pytest.mark.parametrize("variant", [PPOAdaptiveKL, PPOFixedKL, PPOUnclipped])
def test_a_model_of_sb3_has_another_objective_than_the_others(variant: Any) -> None:
    file = io.BytesIO()
    theirs = small(PPO)
    theirs.save(file)
    with pytest.raises(DamagedFileError, match=f"is of SB3's PPO, not of {variant.__name__}; set_parameters"):
        variant.load(file)
    ours = small(variant)
    ours.set_parameters(file)
    assert th.equal(ours.policy.action_net.weight, theirs.policy.action_net.weight)


def test_sb3_reads_a_ppoclip() -> None:
    file = io.BytesIO()
    ours = small(PPOClip).learn(64)
    ours.save(file)
    theirs = PPO.load(file, env=noise_envs(BOX)).learn(64)
    assert theirs.num_timesteps == 64


@pytest.mark.parametrize("name", ["ent_coef", "vf_coef", "gae_lambda", "target_kl"])
def test_sb3_takes_numbers_in_place_of_schedules(name: str) -> None:
    file = save(small(PPOClip, **{name: LinearSchedule(0.5, 0.25, 1.0)}))
    with pytest.raises(TypeError):
        PPO.load(file, env=noise_envs(BOX)).learn(32)
    file.seek(0)
    PPO.load(file, env=noise_envs(BOX), **{name: 0.5}).learn(32)  # type: ignore[arg-type]


def test_sb3_reads_a_step_size_of_numpy() -> None:
    rate = np.float32(1e-3)
    loaded = PPOClip.load(save(small(PPOClip)), noise_envs(BOX), learning_rate=rate)
    changed = small(PPOClip).learn(64)
    changed.learning_rate = rate
    for model in (small(PPOClip, learning_rate=rate), loaded, changed):
        theirs = PPO.load(save(model.learn(64)))
        assert theirs.learning_rate == theirs.policy.optimizer.param_groups[0]["lr"] == float(rate)


def test_sb3_loads_the_policy_of_a_file_without_a_clip_range(tmp_path: Path) -> None:
    model = PPOAdaptiveKL("MlpPolicy", noise_envs(BOX), n_steps=16, batch_size=16)
    model.save(tmp_path / "model")
    with pytest.raises(AssertionError, match=r"^The learning rate schedule must be a float or a callable, not None"):
        PPO.load(tmp_path / "model")
    observations = np.zeros((2, 3), np.float32)
    theirs = PPO.load(tmp_path / "model", clip_range=0.2).predict(observations, deterministic=True)[0]
    np.testing.assert_array_equal(theirs, model.predict(observations, deterministic=True)[0])


@pytest.mark.parametrize(("variant", "own"), [(PPOUnclipped, {}), (PPOCustom, {"objective": Unclipped()})])
def test_sb3_clips_where_a_file_has_no_clip_range(variant: Any, own: dict[str, Any]) -> None:
    theirs = PPO.load(save(small(variant, **own)), noise_envs(BOX)).learn(64)
    assert theirs.logger.name_to_value["train/clip_range"] == 0.2
