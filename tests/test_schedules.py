"""Schedules follow the remaining progress to the end."""

from math import sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.utils import LinearSchedule

from helpers import BOX, LogRecorder, Passive, assert_same_weights, noise_envs, small
from sb3_ppo_variants import ArgumentError, KLAdaptive, PPOClip, PPOFixedKL, SeparateUpdates

NAMES = [
    "learning_rate", "clip_range", "clip_range_vf", "kl_coef", "ent_coef", "vf_coef", "gae_lambda", "target_kl",
]  # fmt: skip
# The rollout, which uses gae_lambda, begins before the progress that the update has.
EXPECTED = {"gae_lambda": [0.4, 0.3, 0.2, 0.1]}


def updates(cls: Any = PPOFixedKL, total_timesteps: int = 256, **arguments: Any) -> list[dict[str, Any]]:
    log = LogRecorder()
    model = cls("MlpPolicy", noise_envs(BOX), n_steps=32, n_epochs=1, **arguments)
    model.learn(total_timesteps, callback=log)
    return log.updates


@pytest.mark.parametrize("name", NAMES)
def test_linear_to_zero(name: str) -> None:
    arguments: dict[str, Any] = {name: LinearSchedule(0.4, 0.0, 1.0)}
    logs = updates(**arguments)
    assert [log[f"train/{name}"] for log in logs] == pytest.approx(EXPECTED.get(name, [0.3, 0.2, 0.1, 0.0]))


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_may_be_undefined_where_the_last_rollout_overshoots(name: str) -> None:
    arguments: dict[str, Any] = {name: lambda progress: 0.4 * sqrt(progress)}
    logs = updates(total_timesteps=200, **arguments)
    # The rollout, and so gae_lambda, is one rollout ahead of the update.
    progress = (1.0, 0.68, 0.36, 0.04) if name == "gae_lambda" else (0.68, 0.36, 0.04, 0.0)
    assert [log[f"train/{name}"] for log in logs] == pytest.approx([0.4 * sqrt(p) for p in progress])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf"), "fast", None])
def test_a_bad_value_is_refused_by_name_at_the_update_that_meets_it(name: str, bad: float) -> None:
    if name == "ent_coef" and bad == -0.1:
        pytest.skip("ent_coef may be negative")
    log = LogRecorder()
    arguments: dict[str, Any] = {name: lambda progress: 0.1 if progress > 0.4 else bad}
    model = PPOFixedKL("MlpPolicy", noise_envs(BOX), n_steps=32, **arguments)
    with pytest.raises(ArgumentError, match=rf"^{name}\(0.25\)={bad!r} is not allowed"):
        model.learn(256, callback=log)
    # The updates before it were completed. gae_lambda takes effect at the rollout, one update later.
    assert model._n_updates == (30 if name == "gae_lambda" else 20)


def test_a_learning_rate_that_is_bad_from_the_start_is_refused_at_construction() -> None:
    with pytest.raises(ArgumentError, match=r"^learning_rate\(1\)=-0.1 is not allowed"):
        PPOClip("MlpPolicy", "CartPole-v1", learning_rate=lambda progress: -0.1)


@pytest.mark.parametrize("name", NAMES[1:])
def test_others_that_are_bad_from_the_start_are_refused_before_the_first_step(name: str) -> None:
    arguments: dict[str, Any] = {name: lambda progress: float("nan")}
    model = PPOFixedKL("MlpPolicy", noise_envs(BOX), n_steps=32, **arguments)
    with pytest.raises(ArgumentError, match=rf"^{name}\(1\)=nan is not allowed"):
        model.learn(64)
    assert model.num_timesteps == 0


@pytest.mark.parametrize("fast", [False, True])
def test_a_schedule_equals_setting_the_numbers(fast: bool) -> None:
    """Each update computes with the values that a callback would set before the rollout, or after it."""

    class Sets(Passive):
        def _on_rollout_start(self) -> None:
            model: Any = self.model
            model.gae_lambda = 0.9 - 0.1 * (1 - model._current_progress_remaining)

        def _on_rollout_end(self) -> None:
            model: Any = self.model
            progress = 1 - self.num_timesteps / 256
            model.ent_coef, model.vf_coef = 0.1 * progress - 0.05, progress
            model.target_kl = 0.01 * progress + 1e-6

    settings: dict[str, Any] = dict(n_steps=32, n_epochs=3, learning_rate=0.01, seed=1, fast=fast)
    wanted = PPOClip("MlpPolicy", noise_envs(BOX), **settings, target_kl=1.0).learn(256, callback=Sets())
    schedules: dict[str, Any] = dict(
        ent_coef=lambda p: 0.1 * p - 0.05,
        vf_coef=lambda p: p,
        target_kl=lambda p: 0.01 * p + 1e-6,
        gae_lambda=lambda p: 0.9 - 0.1 * (1 - p),
    )
    ours = PPOClip("MlpPolicy", noise_envs(BOX), **settings, **schedules).learn(256)
    assert ours._n_updates == wanted._n_updates < 24
    assert_same_weights(ours, wanted)


def test_another_call_of_learn_begins_anew() -> None:
    log = LogRecorder()
    model = PPOClip("MlpPolicy", noise_envs(BOX), n_steps=32, n_epochs=1, gae_lambda=LinearSchedule(0.8, 0.4, 1.0))
    model.learn(128).learn(128, callback=log)
    assert [logged["train/gae_lambda"] for logged in log.updates] == pytest.approx([0.8, 0.6])


def in_groups(parameters: Any, lr: float = 1e-3, **others: Any) -> th.optim.Optimizer:
    """Make an optimizer with four times the step size for the second half of the parameters."""
    first, second = th.tensor_split(th.arange(len(parameters := [*parameters])), 2)
    groups = [{"params": [parameters[i] for i in part], "lr": rate} for part, rate in ((first, lr), (second, 4 * lr))]
    return th.optim.Adam(groups, **others)


class FourTimes(PPO):
    """SB3's, with the step sizes of :func:`in_groups`."""

    def _update_learning_rate(self, optimizers: Any) -> None:
        super()._update_learning_rate(optimizers)
        optimizers.param_groups[1]["lr"] = 4 * optimizers.param_groups[0]["lr"]


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("fast", [False, "auto"])
def test_groups_of_parameters_keep_the_ratios_of_their_step_sizes(fast: Any, replaced: bool) -> None:
    models = []
    for cls, path in ((PPOClip, {"fast": fast}), (FourTimes, {})):
        kwargs = {} if replaced else {"optimizer_class": in_groups}
        model = small(cls, learning_rate=LinearSchedule(2e-3, 0.0, 1.0), policy_kwargs=kwargs, **path)
        if replaced:
            model.policy.optimizer = in_groups(model.policy.parameters(), eps=1e-5)
        models.append(model.learn(64).learn(64))  # The first call ends at a step size of 0.
    assert_same_weights(*models)


@pytest.mark.parametrize("every", ["update", "minibatch"])
def test_groups_of_parameters_keep_their_ratios_where_the_kl_adapts_the_step_size(every: Any) -> None:
    model = small(learning_rate=KLAdaptive(every=every), policy_kwargs={"optimizer_class": in_groups}).learn(96)
    first, second = (group["lr"] for group in model.policy.optimizer.param_groups)
    assert first != 3e-4 and second == 4 * first


def test_a_first_group_without_a_step_size_is_refused() -> None:
    model = small(policy_kwargs={"optimizer_class": in_groups})
    model.policy.optimizer.param_groups[0]["lr"] = 0.0
    with pytest.raises(ArgumentError, match="first group of parameters needs a step size above 0"):
        model.learn(32)


@pytest.mark.parametrize("when", ["_on_training_start", "_on_rollout_start"])
@pytest.mark.parametrize("name", [*NAMES[1:], "value_learning_rate"])
def test_a_schedule_is_first_called_in_learn(name: str, when: str, tmp_path: Path) -> None:
    """SB3 calls that of the step size alone at construction. A schedule may read what a callback makes."""
    later = SimpleNamespace()
    given: dict[str, Any] = {name: lambda progress: later.value}
    if name == "value_learning_rate":
        given = {"updates": SeparateUpdates(value_learning_rate=lambda progress: later.value)}
    model = PPOFixedKL("MlpPolicy", noise_envs(BOX), n_steps=32, n_epochs=1, fast=True, **given)
    model.save(tmp_path / "model")
    PPOFixedKL.load(tmp_path / "model")
    callback = LogRecorder()
    setattr(callback, when, lambda: setattr(later, "value", 0.25))
    model.learn(64, callback)
    assert callback.updates[0][f"train/{name}"] == 0.25
    if name != "value_learning_rate":
        assert getattr(model, name)(1.0) == 0.25
