"""Saved models come back as they were, also without unpickling anything, and SB3 and this package read each other's."""

import io
import os
import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sb3_contrib
import torch as th
from masked_envs import MULTI, masked_envs
from recurrence import ragged_envs
from stable_baselines3 import PPO
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import FloatSchedule, LinearSchedule

from helpers import BOX, KICK, VARIANTS, assert_same_policy, assert_same_weights, noise_envs, save, small
from sb3_ppo_variants import ArgumentError, ExactCheckpointCallback, PPOAdaptiveKL, PPOClip, PPOCustom, PPOUnclipped
from sb3_ppo_variants.generators import get_random_state, set_random_state
from sb3_ppo_variants.objectives import Unclipped
from sb3_ppo_variants.separate import SeparateUpdates

OBSERVATIONS = np.zeros((2, 3), np.float32)


def at_times(schedule: Any) -> list[float]:
    return [FloatSchedule(schedule)(progress) for progress in (1, 0.3, 0)]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.filterwarnings("error")
def test_defaults_construct_save_and_load_without_warning(variant: Any) -> None:
    variant.load(save(variant("MlpPolicy", "CartPole-v1", device="cpu")), device="cpu")


# Algorithms of SB3 and sb3-contrib, with the same policy here and there, and their environments.
THEIRS: dict[str, tuple[Any, str, str, Any]] = {
    "PPO": (PPO, "MlpPolicy", "MlpPolicy", lambda: noise_envs(BOX)),
    "MaskablePPO": (None, "MlpPolicy", "MaskableMlpPolicy", lambda: masked_envs(MULTI)),
    "RecurrentPPO": (None, "MlpLstmPolicy", "MlpLstmPolicy", ragged_envs),
}


def their_class(name: str) -> Any:
    return PPO if name == "PPO" else getattr(sb3_contrib, name)


@pytest.mark.parametrize("name", THEIRS)
def test_files_of_sb3_go_on_as_there(name: str) -> None:
    cls, (_, policy, _, make_env) = their_class(name), THEIRS[name]
    file = save(small(cls, make_env(), policy, clip_range=0.1).learn(96))
    both = [cls.load(file, make_env()), PPOClip.load(file, make_env(), fast=False)]
    assert_same_policy(*both)
    for model in both:
        model.set_random_seed(9)
        model.learn(96)
        assert model.logger.name_to_value["train/clip_range"] == 0.1
    assert_same_policy(*both)


@pytest.mark.parametrize("name", THEIRS)
def test_sb3_reads_ours(name: str) -> None:
    cls, (_, _, policy, make_env) = their_class(name), THEIRS[name]
    ours = small(PPOClip, make_env(), policy, learning_rate=LinearSchedule(1e-3, 0.0, 1.0)).learn(96)
    theirs = cls.load(save(ours), make_env())
    assert_same_policy(theirs, ours)
    masks = {"action_masks": np.ones((2, 6), bool)} if name == "MaskablePPO" else {}
    actions, expected = (model.predict(OBSERVATIONS, deterministic=True, **masks)[0] for model in (theirs, ours))
    np.testing.assert_array_equal(actions, expected)
    theirs.learn(48)


@pytest.mark.parametrize("name", ["ent_coef", "vf_coef", "gae_lambda", "target_kl"])
def test_sb3_takes_numbers_in_place_of_schedules(name: str) -> None:
    file = save(small(PPOClip, **{name: LinearSchedule(0.5, 0.25, 1.0)}))
    with pytest.raises(TypeError):
        PPO.load(file, env=noise_envs(BOX)).learn(32)
    PPO.load(file, env=noise_envs(BOX), **{name: 0.5}).learn(32)  # type: ignore[arg-type]


def test_sb3_reads_a_step_size_of_numpy() -> None:
    rate = np.float32(1e-3)
    loaded = PPOClip.load(save(small(PPOClip)), noise_envs(BOX), learning_rate=rate)
    for model in (small(PPOClip, learning_rate=rate), loaded):
        theirs = PPO.load(save(model.learn(64)))
        assert theirs.learning_rate == theirs.policy.optimizer.param_groups[0]["lr"] == float(rate)


def test_sb3_needs_a_clip_range_that_a_file_may_lack() -> None:
    model = small(PPOAdaptiveKL)
    with pytest.raises(AssertionError, match=r"^The learning rate schedule must be a float or a callable, not None"):
        PPO.load(save(model))
    theirs = PPO.load(save(model), clip_range=0.2).predict(OBSERVATIONS, deterministic=True)[0]
    np.testing.assert_array_equal(theirs, model.predict(OBSERVATIONS, deterministic=True)[0])
    for without in (small(PPOUnclipped), small(PPOCustom, objective=Unclipped())):
        trained = PPO.load(save(without), noise_envs(BOX)).learn(64)
        assert trained.logger.name_to_value["train/clip_range"] == 0.2


def test_a_number_of_steps_that_is_no_integer() -> None:
    """``learn(1e6)`` is usual with SB3, which keeps the number as it is."""
    for model in (small(PPO), small(PPOClip)):
        loaded = PPOClip.load(save(model.learn(1e2)), noise_envs(BOX))
        assert (loaded._total_timesteps, loaded.num_timesteps) == (1e2, 128)


@pytest.mark.parametrize("variant", VARIANTS)
def test_load_as_rl_zoo_does_for_enjoyment(variant: Any) -> None:
    custom_objects = {"learning_rate": 0.0, "lr_schedule": lambda _: 0.0, "clip_range": lambda _: 0.0}
    variant.load(save(small(variant)), custom_objects=custom_objects).predict(OBSERVATIONS)


@pytest.mark.parametrize("weights_only", [False, True])
@pytest.mark.parametrize("name", ["learning_rat", "clip_range", "weights_ony"])
def test_names_that_no_attribute_has(name: str, weights_only: bool) -> None:
    cls: Any = PPOUnclipped
    with pytest.raises(ArgumentError, match=rf"^PPOUnclipped has no argument '{name}' \(=0\)"):
        cls.load(save(small(cls)), weights_only=weights_only, **{name: 0})


def test_attributes_that_only_the_file_has() -> None:
    cls: Any = PPOClip
    model = small(cls)
    model.remark = "first"
    assert cls.load(save(model)).remark == "first"
    assert cls.load(save(model), remark="second").remark == "second"


def test_values_that_are_not_allowed() -> None:
    file = save(model := small(PPOClip))
    for given in ({"gamma": 1.5}, {"stats_window_size": 0}, {"policy": "MlpPolic"}):
        with pytest.raises(ArgumentError, match=rf"^{next(iter(given))}=.* is not allowed"):
            PPOClip.load(file, **given)
    with pytest.raises(ArgumentError, match=r"env='CartPole-v1' is the id .* such as gymnasium.make\('CartPole-v1'\)"):
        PPOClip.load(file, env="CartPole-v1")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="env='CartPole-v1' is the id"):
        model.set_env("CartPole-v1")


@pytest.mark.parametrize("weights_only", [False, True])
def test_arguments_whose_attributes_differ_from_them(weights_only: bool) -> None:
    file = save(small(PPOClip).learn(64))
    arguments: Any = dict(stats_window_size=3, rollout_buffer_kwargs=None, policy_kwargs=None, policy="MlpPolicy")
    loaded = PPOClip.load(file, env=noise_envs(BOX), weights_only=weights_only, **arguments)
    assert loaded.ep_info_buffer is not None and loaded.ep_info_buffer.maxlen == 3
    assert (loaded.rollout_buffer_kwargs, loaded.policy_kwargs) == ({}, {})
    assert type(PPOClip.load(file, weights_only=weights_only, policy_class="MlpPolicy").policy) is ActorCriticPolicy


@pytest.mark.parametrize(
    ("name", "of_file", "value"),
    [
        ("updates", None, SeparateUpdates()),
        ("updates", SeparateUpdates(), None),
        ("use_sde", False, True),
        ("policy_kwargs", {"net_arch": [8]}, {"net_arch": [9]}),
    ],
)
def test_arguments_that_need_other_networks(name: str, of_file: Any, value: Any) -> None:
    file = save(small(PPOClip, **{name: of_file}))
    for make in (PPOClip.load, PPOAdaptiveKL.from_ppo):
        make(file, **{name: of_file})
        with pytest.raises(ArgumentError, match=rf"^{name}=.* needs other networks or optimizers than those in"):
            make(file, **{name: value})


@pytest.mark.filterwarnings("ignore:Path .* does not exist. Will create it")  # SB3 says so.
def test_names_are_those_of_sb3(tmp_path: Path) -> None:
    names = []
    for cls in (PPO, PPOClip):
        model, folder = small(cls), tmp_path / cls.__name__
        model.save(folder / "a")
        model.save(str(folder / "b.zip"))
        model.save(folder / "c.model")
        names.append(sorted(os.listdir(folder)))
    assert names[0] == names[1] == ["a.zip", "b.zip", "c.model"]


def test_files_that_are_open(tmp_path: Path) -> None:
    model = small(PPOClip)
    with (tmp_path / "model").open("wb") as file:
        model.save(file)
    with (tmp_path / "model").open("rb") as file:
        assert_same_weights(PPOClip.load(file, device="cpu"), model)
    with pytest.raises(ValueError, match="writable"), (tmp_path / "model").open("rb") as file:
        model.save(file)
    with pytest.raises(TypeError, match="invalid type"):
        model.save(io.StringIO())


def drawn() -> list[float]:
    return [random.random(), np.random.random(), th.rand(()).item()]


class Projected(FlattenExtractor):
    """A features extractor that draws what is in no state."""

    def __init__(self, space: Any):
        super().__init__(space)
        self.projection = th.randn(3)


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("make", [PPOClip.load, PPOUnclipped.from_ppo])
def test_loading_leaves_the_random_generators_alone(
    make: Any, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kick = {"env": noise_envs(KICK), "policy_kwargs": {"features_extractor_class": Projected}}
    model = small(PPOClip, seed=seed, **kick)
    file, state = save(model), get_random_state()
    expected = drawn()
    set_random_state(state)
    of_gpus: list[int] = []
    monkeypatch.setattr(th.cuda, "manual_seed_all", of_gpus.append)
    with nullcontext() if seed is not None else pytest.warns(UserWarning, match="projection was a tensor, no buffer"):
        loaded = make(file, env=kick["env"])
    assert drawn() == expected and not of_gpus
    if seed is not None:  # As in SB3, the seed determines what is in no state.
        assert th.equal(loaded.policy.features_extractor.projection, model.policy.features_extractor.projection)


def test_only_a_class_makes_models_of_files(tmp_path: Path) -> None:
    model = small(PPOClip).learn(32, callback=ExactCheckpointCallback(16, tmp_path))
    file, env, settings = save(model), noise_envs(BOX), {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "seed": 3}
    calls: dict[str, Any] = {
        "load": lambda owner: owner.load(file, env=env),
        "from_ppo": lambda owner: owner.from_ppo(model, env),
        "resume": lambda owner: owner.resume(tmp_path, env),
        "resume_or_start": lambda owner: owner.resume_or_start(tmp_path, "MlpPolicy", env, **settings),
    }
    for name, call in calls.items():
        with pytest.raises(ArgumentError, match=rf"model = PPOClip\.{name}\(\.\.\.\).*set_parameters\(\)"):
            call(model)
        assert type(call(type(model))) is PPOClip


class Announced(PPOClip):
    """An algorithm of a user that extends a class method."""

    @classmethod
    def load(cls, *args: Any, **kwargs: Any) -> Any:
        return super().load(*args, **kwargs)


def test_class_methods_of_ones_own_call_ours() -> None:
    assert type(Announced.load(save(small(Announced)))) is Announced
