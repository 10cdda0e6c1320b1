"""Any policy, saved, is the same policy; killed and resumed, the same run; on any path, the same update."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch as th
from gymnasium import spaces
from masked_envs import MASKED_SPACES, masked_envs, masked_hybrid_envs
from recurrence import SMALL, ragged_envs
from resuming import exact
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from helpers import (
    ACTION_SPACES,
    BOX,
    IMAGE,
    KEYS,
    KICK,
    PRIVILEGED,
    assert_same_policy,
    collect,
    flat_weights,
    noise_envs,
    save,
    small,
    update,
)
from sb3_ppo_variants import KLAdaptive, PPOAdaptiveKL, PPOClip, PPOFixedKL

GRU = {**SMALL, "memory": "gru"}
ONLY_IF = {"only_if": {"force": ["choice", 1]}}


# The environments, the policy and the other arguments of each model.
POLICIES: dict[str, tuple[Callable[[], VecEnv], str, dict[str, Any]]] = {
    "numbers": (lambda: noise_envs(BOX), "MlpPolicy", {}),
    "choices": (lambda: noise_envs(ACTION_SPACES["Discrete"]), "MlpPolicy", {}),
    "gSDE": (lambda: noise_envs(BOX), "MlpPolicy", {"use_sde": True}),
    "beta": (lambda: noise_envs(BOX), "MlpPolicy", {"policy_kwargs": {"distribution": "beta"}}),
    "squashed": (
        lambda: noise_envs(BOX),
        "MlpPolicy",
        {"policy_kwargs": {"distribution": "squashed_gaussian", "std": "state"}},
    ),
    "hybrid": (lambda: noise_envs(KICK), "MlpPolicy", {"policy_kwargs": ONLY_IF}),
    "two critics": (lambda: noise_envs(BOX, PRIVILEGED), "MultiInputPolicy", {"policy_kwargs": KEYS}),
    "images": (
        lambda: noise_envs(ACTION_SPACES["Discrete"], IMAGE),
        "CnnPolicy",
        {"policy_kwargs": {"share_features_extractor": False}},
    ),
    "masks": (lambda: masked_envs(MASKED_SPACES["Discrete"]), "MaskableMlpPolicy", {}),
    "hybrid masks": (lambda: masked_hybrid_envs(KICK), "MaskableMlpPolicy", {}),
    "LSTM": (ragged_envs, "MlpLstmPolicy", {"policy_kwargs": SMALL}),
    "GRU": (ragged_envs, "MlpLstmPolicy", {"policy_kwargs": GRU}),
    "hybrid LSTM": (lambda: noise_envs(KICK), "MlpLstmPolicy", {"policy_kwargs": {**SMALL, **ONLY_IF}}),
    "two critics, LSTM": (
        lambda: noise_envs(BOX, PRIVILEGED),
        "MultiInputLstmPolicy",
        {"policy_kwargs": {**KEYS, **SMALL}},
    ),
    "masks, LSTM": (
        lambda: masked_envs(MASKED_SPACES["Discrete"]),
        "MaskableMlpLstmPolicy",
        {"policy_kwargs": SMALL},
    ),
}
PATHS: tuple[Any, ...] = (False, "auto")
# What decides about updates.
UPDATES: dict[str, dict[str, Any]] = {
    "joint": {},
    "separate": {"updates": {"policy_epochs": 2, "value_epochs": 1}},
    "by the KL": {"learning_rate": KLAdaptive(learning_rate=1e-3, desired_kl=0.01), "clip_range_vf": 0.2},
}
on_every_policy = pytest.mark.parametrize("name", POLICIES)


def model_of(cls: Any, name: str, **more: Any) -> Any:
    make_envs, policy, arguments = POLICIES[name]
    return small(cls, make_envs(), policy, **{**arguments, **more})


@pytest.mark.sampled(3)
@pytest.mark.parametrize("updates", UPDATES)
@pytest.mark.parametrize("name", [name for name in POLICIES if name != "gSDE"])  # Its graph cannot be copied.
@pytest.mark.parametrize("cls", [PPOClip, PPOFixedKL])
def test_both_paths_make_the_same_update(cls: Any, name: str, updates: str) -> None:
    model = collect(model_of(cls, name, n_epochs=1, **UPDATES[updates]))
    model.env = None  # SB3's wrappers cannot be copied.
    reference, fast = (update(model, path) for path in PATHS)
    assert not th.equal(flat_weights(reference), flat_weights(model))
    th.testing.assert_close(flat_weights(fast), flat_weights(reference), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("weights_only", [True, False])
@on_every_policy
def test_a_loaded_model_is_the_saved_one(name: str, weights_only: bool) -> None:
    model = model_of(PPOAdaptiveKL, name).learn(32)
    loaded = PPOAdaptiveKL.load(save(model), env=model.env, weights_only=weights_only)
    assert_same_policy(loaded, model)
    assert loaded.kl_coef == model.kl_coef and loaded.policy_kwargs == model.policy_kwargs
    loaded.learn(32)


@pytest.mark.parametrize("name", ["beta", "squashed", "hybrid", "two critics"])
def test_policies_save_themselves(name: str, tmp_path: Path) -> None:
    policy = model_of(PPOClip, name).policy
    policy.save(str(tmp_path / "policy"))
    for other in (type(policy).load(str(tmp_path / "policy")), pickle.loads(pickle.dumps(policy)), deepcopy(policy)):
        th.testing.assert_close(other.state_dict(), policy.state_dict(), rtol=0, atol=0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("updates", UPDATES)
@on_every_policy
def test_a_run_that_is_killed_and_resumed_is_the_whole_run(name: str, updates: str, tmp_path: Path) -> None:
    make_envs, policy, arguments = POLICIES[name]
    normalized = isinstance(make_envs().observation_space, spaces.Box) and name != "images"
    make = (lambda: VecNormalize(make_envs())) if normalized else make_envs
    exact(PPOAdaptiveKL, make, tmp_path, policy=policy, **{**arguments, **UPDATES[updates]})
