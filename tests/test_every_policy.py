"""Any policy, saved, is the same policy; killed and resumed, the same run; on any path, the same update."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from engine_models import MODELS
from gymnasium import spaces
from masked_envs import MASKED_SPACES, masked_envs, masked_hybrid_envs
from recurrence import SMALL, ragged_envs
from resuming import exact
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.utils import FloatSchedule, LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from helpers import (
    ACTION_SPACES,
    BOX,
    IMAGE,
    KEYS,
    KICK,
    PRIVILEGED,
    VECTOR,
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


Model = tuple[Callable[[], VecEnv], str, dict[str, Any]]
# The environments, the policy and the other arguments of each model.
POLICIES: dict[str, Model] = {
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
    "masks, LSTM": (lambda: masked_envs(MASKED_SPACES["Discrete"]), "MaskableMlpLstmPolicy", {"policy_kwargs": SMALL}),
}


def of_engines(
    action_space: spaces.Space,
    observation_space: spaces.Space = VECTOR,
    policy: str = "",
    masked: bool = False,
    **arguments: Any,
) -> Model:
    make = masked_envs if masked else noise_envs
    policy = policy or ("MaskableMlpPolicy" if masked else "MlpPolicy")
    return lambda: make(action_space, observation_space), policy, arguments


# All models that are saved and resumed: also those whose updates tests/engines compares, and with other arguments.
KINDS: dict[str, Model] = {
    **POLICIES,
    **{f"engines: {name}": of_engines(**arguments) for name, arguments in MODELS.items()},
    "schedules": of_engines(
        BOX, learning_rate=LinearSchedule(1e-3, 1e-4, 0.5), clip_range_vf=LinearSchedule(0.2, 0.1, 1.0)
    ),
    "RMSprop": of_engines(BOX, policy_kwargs={"optimizer_class": th.optim.RMSprop, "optimizer_kwargs": {"alpha": 0.9}}),
    "a buffer": of_engines(BOX, rollout_buffer_class=RolloutBuffer),
    "all terms": of_engines(BOX, clip_range_vf=0.3, ent_coef=0.01, gamma=np.float64(0.9)),
}
PATHS: tuple[Any, ...] = (False, "auto")
# What decides about updates.
UPDATES: dict[str, dict[str, Any]] = {
    "joint": {},
    "separate": {"updates": {"policy_epochs": 2, "value_epochs": 1}},
    "by the KL": {"learning_rate": KLAdaptive(learning_rate=1e-3, desired_kl=0.01), "clip_range_vf": 0.2},
}


def model_of(cls: Any, name: str, **more: Any) -> Any:
    make_envs, policy, arguments = KINDS[name]
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


def at_times(schedule: Any) -> list[float]:
    return [FloatSchedule(schedule)(progress) for progress in (1, 0.3, 0)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("weights_only", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_a_loaded_model_is_the_saved_one(name: str, weights_only: bool, request: pytest.FixtureRequest) -> None:
    model = model_of(PPOAdaptiveKL, name).learn(64)
    if weights_only:
        request.getfixturevalue("nothing_is_unpickled")
    loaded = PPOAdaptiveKL.load(save(model), env=model.env, device="cpu", weights_only=weights_only)
    assert_same_policy(loaded, model)
    assert loaded.kl_coef == model.kl_coef and loaded.policy_kwargs == model.policy_kwargs
    for attribute, value in vars(model).items():
        if isinstance(value, bool | int | float | str | spaces.Space):
            assert getattr(loaded, attribute) == value, attribute
        elif isinstance(value, FloatSchedule) or attribute == "learning_rate":
            assert at_times(getattr(loaded, attribute)) == at_times(value)
    assert loaded.learn(32, reset_num_timesteps=False).num_timesteps > model.num_timesteps


@pytest.mark.parametrize("name", ["beta", "squashed", "hybrid", "two critics"])
def test_policies_save_themselves(name: str, tmp_path: Path) -> None:
    policy = model_of(PPOClip, name).policy
    policy.save(str(tmp_path / "policy"))
    for other in (type(policy).load(str(tmp_path / "policy")), pickle.loads(pickle.dumps(policy)), deepcopy(policy)):
        th.testing.assert_close(other.state_dict(), policy.state_dict(), rtol=0, atol=0)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "updates"),
    [*((name, "joint") for name in KINDS), *((name, of) for name in POLICIES for of in UPDATES if of != "joint")],
)
def test_a_run_that_is_killed_and_resumed_is_the_whole_run(name: str, updates: str, tmp_path: Path) -> None:
    make_envs, policy, arguments = KINDS[name]
    observed = make_envs().observation_space
    normalized = isinstance(observed, spaces.Box) and observed.dtype != np.uint8
    make = (lambda: VecNormalize(make_envs())) if normalized else make_envs
    exact(PPOAdaptiveKL, make, tmp_path, policy=policy, **{**arguments, **UPDATES[updates]})
