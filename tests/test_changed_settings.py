"""Settings that are changed after construction are checked before rollouts and updates, on both paths."""

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback, StopTrainingOnMaxEpisodes

from helpers import BOX, VARIANTS, flat_weights, noise_envs
from sb3_ppo_variants import ArgumentError, PPOClip

NAN = float("nan")
N_STEPS, N_ENVS = 16, 2


def model(fast: bool, cls: Any = PPOClip, **arguments: Any) -> Any:
    env = noise_envs(BOX, n_envs=N_ENVS)
    return cls("MlpPolicy", env, n_steps=N_STEPS, batch_size=8, n_epochs=2, seed=0, fast=fast, **arguments)


class At(BaseCallback):
    """Calls a function with the model once, at a place in the second rollout."""

    def __init__(self, place: str, function: Callable[[Any], object]):
        super().__init__()
        self.place, self.function = place, function
        self.rollouts = 0
        self.before: dict[str, Any] = {}

    def _at(self, place: str) -> None:
        if self.rollouts == 2 and place == self.place:
            self.place = "done"
            self.before = deepcopy(self.model.get_parameters())
            self.function(self.model)

    def _on_rollout_start(self) -> None:
        self.rollouts += 1
        self._at("rollout start")

    def _on_step(self) -> bool:
        if self.n_calls == N_STEPS + 5:
            self._at("step")
        return True

    def _on_rollout_end(self) -> None:
        self._at("rollout end")


PLACES = ["rollout start", "step", "rollout end"]
WRONG: list[tuple[str, Any]] = [
    ("n_epochs", 0), ("n_epochs", 1.5), ("batch_size", 0), ("batch_size", -8), ("batch_size", 1), ("gamma", NAN),
    ("ent_coef", NAN), ("vf_coef", -1.0), ("max_grad_norm", -1.0), ("clip_range_vf", 0.0), ("target_kl", -1.0),
    ("normalize_advantage", "no"),
]  # fmt: skip


def assert_unchanged(trained: Any, before: dict[str, Any]) -> None:
    after = trained.get_parameters()
    th.testing.assert_close(after["policy"], before["policy"], rtol=0, atol=0)
    th.testing.assert_close(after["policy.optimizer"], before["policy.optimizer"], rtol=0, atol=0)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("name", "value"), WRONG)
def test_set_by_a_callback(name: str, value: Any, place: str, fast: bool) -> None:
    callback = At(place, lambda trained: setattr(trained, name, value))
    trained = model(fast)
    with pytest.raises(ArgumentError, match=f"^{name}={value!r} is not allowed; allowed: "):
        trained.learn(128, callback)
    assert_unchanged(trained, callback.before)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("cls", VARIANTS)
@pytest.mark.parametrize(("name", "value"), WRONG)
def test_set_before_learn(name: str, value: Any, cls: Any, fast: bool) -> None:
    trained = model(fast, cls).learn(32)
    before, steps, observations = deepcopy(trained.get_parameters()), trained.num_timesteps, trained._last_obs
    setattr(trained, name, value)
    with pytest.raises(ArgumentError, match=f"^{name}={value!r} is not allowed; allowed: "):
        trained.learn(64)
    assert_unchanged(trained, before)
    assert trained.num_timesteps == steps and trained._last_obs is observations


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("n_steps", [N_STEPS // 2, N_STEPS * 2])
def test_another_length_of_rollouts(n_steps: int, fast: bool, tmp_path: Path) -> None:
    callback = At("step", lambda trained: setattr(trained, "n_steps", n_steps))
    trained = model(fast)
    with pytest.raises(ArgumentError, match=f"^n_steps={n_steps} is not the length of the rollout buffer, which was c"):
        trained.learn(160, callback)
    assert trained.num_timesteps == 2 * N_STEPS * N_ENVS
    trained.save(tmp_path / "model")
    loaded = PPOClip.load(tmp_path / "model", noise_envs(BOX), n_steps=n_steps)
    assert loaded.learn(n_steps * N_ENVS).num_timesteps == n_steps * N_ENVS


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("total_timesteps", value) for value in (-5, NAN, None, "64", True)),
        *(("log_interval", value) for value in (0, -1, 1.5, "1", NAN, True)),
        # SB3 calls a class at each step, and training goes on without the callback.
        *(("callback", value) for value in (StopTrainingOnMaxEpisodes, (At("step", print),), [None], 3)),
    ],
)
def test_arguments_of_learn(name: str, value: Any, fast: bool) -> None:
    trained = model(fast).learn(32)
    observations = trained._last_obs
    with pytest.raises(ArgumentError, match=re.escape(f"{name}={value!r} is not allowed; allowed: ")):
        trained.learn(**{"total_timesteps": 64, name: value})
    assert trained.num_timesteps == 32 and trained._last_obs is observations


def test_a_model_loaded_without_an_environment_can_not_learn(tmp_path: Path) -> None:
    model(True).save(tmp_path / "model")
    with pytest.raises(ArgumentError, match=r"^the model has no environment to learn in: pass env to load\(\)"):
        PPOClip.load(tmp_path / "model").learn(64)


@pytest.mark.parametrize(
    ("name", "value"),
    [("device", "cpu"), ("use_sde", np.bool_(False)), ("rollout_buffer_kwargs", None), ("policy_kwargs", None)],
)
def test_values_that_stand_for_those_of_the_model(name: str, value: Any, tmp_path: Path) -> None:
    plain = model(True, device="cpu").learn(64)
    changed = model(True, device="cpu")
    setattr(changed, name, value)
    changed.learn(64).save(tmp_path / "model")
    loaded = PPOClip.load(tmp_path / "model", noise_envs(BOX, n_envs=N_ENVS))
    assert th.equal(flat_weights(changed), flat_weights(plain)) and th.equal(flat_weights(loaded), flat_weights(plain))
    loaded.learn(64)
