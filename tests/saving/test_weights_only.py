"""``load(..., weights_only=True)`` reads everything that a model needs, and runs no code from the file."""

import base64
import io
import json
import os
import pickle
from ast import literal_eval
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from forging import seal, serialize, unzip
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import FloatSchedule, LinearSchedule

from helpers import ACTION_SPACES, BOX, VARIANTS, VECTOR, assert_same_policy, assert_same_weights, noise_envs, save
from sb3_ppo_variants import ArgumentError, DamagedFileError, PickledValueError, PPOAdaptiveKL, PPOClip
from sb3_ppo_variants.saving import plain, register_plain

DICT = spaces.Dict({"vector": spaces.Box(-1, 1, (2,)), "image": spaces.Box(0, 255, (36, 36, 1), np.uint8)})


def small(
    cls: Any, actions: spaces.Space = BOX, observations: Any = VECTOR, policy: str = "MlpPolicy", **more: Any
) -> Any:
    env = noise_envs(actions, observations)
    return cls(policy, env, n_steps=16, batch_size=16, n_epochs=1, device="cpu", **more)


def assert_same(ours: Any, theirs: Any) -> None:
    assert_same_policy(ours, theirs)
    for name, value in vars(theirs).items():
        if name.startswith("_last_"):
            assert getattr(ours, name) is None  # The environment is reset before training continues.
        elif isinstance(value, bool | int | float | str | spaces.Space | dict):
            assert getattr(ours, name) == value, name
        elif isinstance(value, FloatSchedule) or name == "learning_rate":
            assert at_times(getattr(ours, name)) == at_times(value)


def at_times(schedule: Any) -> list[float]:
    return [FloatSchedule(schedule)(progress) for progress in (1, 0.3, 0)]


CASES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "schedules": {"learning_rate": LinearSchedule(1e-3, 1e-4, 0.5), "clip_range": LinearSchedule(0.2, 0.1, 1.0)},
    "networks": {"policy_kwargs": {"activation_fn": th.nn.ReLU, "net_arch": {"pi": [8], "vf": [8, 8]}}},
    "an optimizer": {"policy_kwargs": {"optimizer_class": th.optim.RMSprop, "optimizer_kwargs": {"alpha": 0.9}}},
    "betas": {"policy_kwargs": {"activation_fn": th.nn.Tanh, "optimizer_kwargs": {"betas": (0.8, 0.9)}}},
    "a buffer": {"rollout_buffer_class": RolloutBuffer},
    "gsde": {"use_sde": True},
    "discrete": {"actions": spaces.Discrete(3)},
    "several": {"actions": spaces.MultiDiscrete([2, 4])},
    "binary": {"actions": spaces.MultiBinary(3)},
    "dictionaries": {"observations": DICT, "policy": "MultiInputPolicy"},
    "images": {"observations": spaces.Box(0, 255, (36, 36, 3), np.uint8), "policy": "CnnPolicy"},
    "a clipped value function": {"clip_range_vf": 0.3},
    "a number of numpy": {"gamma": np.float64(0.9)},
}


@pytest.mark.parametrize("case", CASES)
def test_all_that_a_model_of_ours_has(case: str, nothing_is_unpickled: None) -> None:
    model = small(PPOClip, **CASES[case]).learn(64)
    loaded: Any = PPOClip.load(save(model), weights_only=True, device="cpu")
    assert_same(loaded, model)
    assert list(loaded.ep_info_buffer) == list(model.ep_info_buffer)
    loaded.set_env(model.env)
    loaded.learn(32, reset_num_timesteps=False)
    assert loaded.num_timesteps == 96


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_class(variant: Any, nothing_is_unpickled: None, tmp_path: Path) -> None:
    model = small(variant).learn(64)
    model.save(tmp_path / "model")
    loaded = variant.load(tmp_path / "model", env=noise_envs(BOX), weights_only=True, device="cpu")
    assert_same(loaded, model)


def test_what_is_pickled_is_refused_by_name_with_what_to_pass(nothing_is_unpickled: None) -> None:
    own = type("Own", (th.nn.Tanh,), {})
    model = small(PPOClip, learning_rate=lambda progress: 1e-3 * progress, policy_kwargs={"activation_fn": own})
    file = save(model)
    with pytest.raises(PickledValueError, match=r"policy_kwargs, learning_rate\. Pass .*'learning_rate': 3e-4"):
        PPOClip.load(file, weights_only=True)
    with pytest.raises(PickledValueError, match=r"does not unpickle: policy_kwargs\."):
        PPOClip.load(file, weights_only=True, learning_rate=1e-3)
    known = {"policy_kwargs": {"activation_fn": th.nn.Tanh}, "learning_rate": 1e-3}
    for arguments in ({"custom_objects": known}, {**known}):
        loaded = PPOClip.load(file, weights_only=True, **arguments)
        assert loaded.learning_rate == 1e-3
        assert th.equal(loaded.policy.value_net.weight, model.policy.value_net.weight)


def test_what_is_ignored_is_not_refused(nothing_is_unpickled: None, tmp_path: Path) -> None:
    model = small(PPOClip, tensorboard_log=tmp_path)
    model.note = object()
    file = save(model)
    loaded = PPOClip.load(file, weights_only=True)
    assert loaded.tensorboard_log is None and not hasattr(loaded, "note")
    assert PPOClip.load(file, weights_only=True, tensorboard_log="logs").tensorboard_log == "logs"
    assert not hasattr(PPOAdaptiveKL.from_ppo(file, weights_only=True), "note")


def test_a_file_of_sb3(nothing_is_unpickled: None) -> None:
    theirs = small(PPO, policy_kwargs={"net_arch": [8]}).learn(64)
    file = save(theirs)
    known = {"policy_class": "MlpPolicy", "clip_range": 0.2, "rollout_buffer_class": None}
    with pytest.raises(PickledValueError, match=r"observation_space.* or env for the spaces"):
        PPOClip.load(file, weights_only=True, custom_objects=known)
    for name in known:
        objects = {key: value for key, value in known.items() if key != name}
        with pytest.raises(PickledValueError, match=rf"does not unpickle: {name}\. .*custom_objects={{'{name}': "):
            PPOClip.load(file, env=noise_envs(BOX), weights_only=True, custom_objects=objects)
    loaded = PPOClip.load(file, env=noise_envs(BOX), weights_only=True, custom_objects=known, device="cpu")
    assert_same(loaded, theirs)
    loaded.learn(64, reset_num_timesteps=False)


@pytest.mark.parametrize(
    ("name", "policy", "alias"),
    [("MaskablePPO", "MlpPolicy", "MaskableMlpPolicy"), ("RecurrentPPO", "MlpLstmPolicy", "MlpLstmPolicy")],
)
def test_files_of_sb3_contrib_load_as_advised(name: str, policy: str, alias: str, nothing_is_unpickled: None) -> None:
    theirs = small(getattr(pytest.importorskip("sb3_contrib"), name), ACTION_SPACES["Discrete"], policy=policy)
    file, env = save(theirs), noise_envs(ACTION_SPACES["Discrete"])
    with pytest.raises(PickledValueError, match=r"custom_objects=\{") as refused:
        PPOClip.load(file, env, weights_only=True)
    advised = literal_eval(str(refused.value).partition("custom_objects=")[2])
    assert advised["policy_class"] == alias
    ours = PPOClip.load(file, env, weights_only=True, custom_objects=advised)
    assert_same_weights(ours, theirs)
    if name == "MaskablePPO":
        with pytest.raises(DamagedFileError, match="policy_class is ActorCriticPolicy, which ignores the action masks"):
            PPOClip.load(file, env, weights_only=True, custom_objects={**advised, "policy_class": "MlpPolicy"})


class Canary:
    """Creates a folder when it is unpickled."""

    def __init__(self, marker: Path):
        self._marker = str(marker)

    def __reduce__(self) -> Any:
        return os.mkdir, (self._marker,)


def with_canaries(file: io.BytesIO, marker: Path, tensors: bool) -> io.BytesIO:
    """Return the file with a canary in place of every pickle in ``data`` and, if ``tensors``, those of the tensors."""
    members = unzip(file)
    data = json.loads(members["data"])
    pickled = [name for name, value in data.items() if isinstance(value, dict) and ":serialized:" in value]
    assert len(pickled) >= 6
    for name in pickled:
        data[name][":serialized:"] = base64.b64encode(pickle.dumps(Canary(marker))).decode()
    members["data"] = json.dumps(data).encode()
    for name in [name for name in members if name.endswith(".pth")] if tensors else []:
        members[name] = serialize(Canary(marker))
    return seal(members)


@pytest.mark.parametrize("cls", [PPOClip, PPO])
@pytest.mark.parametrize("tensors", [False, True])
def test_canaries(cls: Any, tensors: bool, tmp_path: Path) -> None:
    marker = tmp_path / "unpickled"
    model = small(cls).learn(64)
    file = with_canaries(save(model), marker, tensors)
    known = {"policy_class": "MlpPolicy", "clip_range": 0.2, "rollout_buffer_class": None}
    try:
        loaded = PPOClip.load(file, env=noise_envs(BOX), weights_only=True, custom_objects=known, device="cpu")
        assert_same(loaded, model)
        assert not tensors
    except DamagedFileError as error:
        assert tensors
        assert error.part in ("policy", "pytorch_variables")
    assert not marker.exists()
    with pytest.raises(DamagedFileError):
        PPOClip.load(file)
    # Without weights_only, the canaries in data are unpickled. Tensors are never unpickled in this way.
    assert marker.exists() is not tensors


def test_an_environment_that_a_file_names_is_not_made(nothing_is_unpickled: None) -> None:
    model = small(PPOClip)
    model.env = "os:Anything-v0"
    file = io.BytesIO()
    model.save(file, include=["env"])
    assert PPOClip.load(file, weights_only=True).env is None


@dataclass(frozen=True)
class Dropout:
    """An example of a further argument of a model."""

    probability: float | Schedule
    layers: tuple[int, ...] | None = None


class WithDropout(PPOClip):
    dropout = Dropout(0.5)


@pytest.fixture
def dropout_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "WORDS", plain.WORDS.copy())
    register_plain("Dropout", Dropout)


def with_dropout(dropout: Dropout) -> io.BytesIO:
    model = small(WithDropout)
    model.dropout = dropout
    return save(model)


def test_a_dataclass_that_is_registered(dropout_is_plain: None, nothing_is_unpickled: None) -> None:
    file = with_dropout(Dropout(0.1, layers=(1, 2)))
    assert WithDropout.load(file, weights_only=True).dropout == Dropout(0.1, layers=(1, 2))
    scheduled = WithDropout.load(with_dropout(Dropout(LinearSchedule(0.4, 0.0, 1.0))), weights_only=True)
    assert at_times(scheduled.dropout.probability) == pytest.approx([0.4, 0.12, 0.0])
    with pytest.raises(PickledValueError, match="does not unpickle: dropout"):
        WithDropout.load(with_dropout(Dropout(lambda progress: progress)), weights_only=True)


def test_what_cannot_be_registered(dropout_is_plain: None) -> None:
    @dataclass
    class Counter:
        count: int = field(default=0, init=False)

    register_plain("Dropout", Dropout)  # Registering it again changes nothing.
    for word in ("Dropout", "tuple", "class"):
        with pytest.raises(ArgumentError, match=f"word='{word}' already stands for another class"):
            register_plain(word, Counter)
    for cls in (Counter, Path):
        with pytest.raises(ArgumentError, match="is not a dataclass that can be created from its fields"):
            register_plain("other", cls)
