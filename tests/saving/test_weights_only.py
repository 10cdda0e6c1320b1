"""``load(..., weights_only=True)`` runs no code from a file. What comes back is tested in ``test_files.py``."""

import base64
import io
import json
import os
import pickle
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sb3_contrib
import torch as th
from forging import seal, serialize, unzip
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import LinearSchedule

from helpers import ACTION_SPACES, BOX, assert_same_policy, assert_same_weights, named, noise_envs, save, small
from sb3_ppo_variants import PickledValueError, PPOAdaptiveKL, PPOClip
from sb3_ppo_variants.saving import files, register_plain


def test_what_is_pickled_is_refused_by_name_with_what_to_pass(nothing_is_unpickled: None) -> None:
    own = type("Own", (th.nn.Tanh,), {})
    model = small(PPOClip, learning_rate=lambda progress: 1e-3 * progress, policy_kwargs={"activation_fn": own})
    file = save(model)
    with pytest.raises(PickledValueError, match=r"policy_kwargs, learning_rate\. Pass your own"):
        PPOClip.load(file, weights_only=True)
    with pytest.raises(PickledValueError, match=r"does not unpickle: policy_kwargs\."):
        PPOClip.load(file, weights_only=True, learning_rate=1e-3)
    known = {"policy_kwargs": {"activation_fn": th.nn.Tanh}, "learning_rate": 1e-3}
    for arguments in ({"custom_objects": known}, {**known}):
        loaded = PPOClip.load(file, weights_only=True, **arguments)
        assert loaded.learning_rate == 1e-3
        assert th.equal(loaded.policy.value_net.weight, model.policy.value_net.weight)


def test_what_a_file_does_not_decide(nothing_is_unpickled: None, tmp_path: Path) -> None:
    model = small(PPOClip, tensorboard_log=tmp_path)
    model.note, model.env = object(), "os:Anything-v0"
    file = io.BytesIO()
    model.save(file, include=["env"])
    with pytest.raises(PickledValueError, match="does not unpickle: note"):
        PPOClip.load(file, weights_only=True)
    loaded = PPOClip.load(file, weights_only=True, note="own")
    assert loaded.tensorboard_log is None and loaded.env is None and vars(loaded)["note"] == "own"
    assert PPOClip.load(file, weights_only=True, note="", tensorboard_log="logs").tensorboard_log == "logs"
    assert not hasattr(PPOAdaptiveKL.from_ppo(file, weights_only=True), "note")


@pytest.mark.parametrize(
    ("name", "policy", "alias"),
    [
        ("PPO", "MlpPolicy", "MlpPolicy"),
        ("MaskablePPO", "MlpPolicy", "MaskableMlpPolicy"),
        ("RecurrentPPO", "MlpLstmPolicy", "MlpLstmPolicy"),
    ],
)
def test_files_of_sb3_load_with_ones_own_values(name: str, policy: str, alias: str, nothing_is_unpickled: None) -> None:
    cls = PPO if name == "PPO" else getattr(sb3_contrib, name)
    env = noise_envs(ACTION_SPACES["Discrete"])
    theirs = small(cls, env, policy)
    file = save(theirs)
    known = {"policy_class": alias, "clip_range": 0.2, "learning_rate": 3e-4, "rollout_buffer_class": None}
    with pytest.raises(PickledValueError, match=r"policy_class, observation_space, .* and env for"):
        PPOClip.load(file, weights_only=True)
    with pytest.raises(PickledValueError, match=r"unpickle: .*policy_class"):
        PPOClip.load(file, env, weights_only=True)
    assert_same_weights(PPOClip.load(file, env, weights_only=True, custom_objects=known), theirs)


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
    if tensors:  # They are never unpickled.
        with pytest.raises(pickle.UnpicklingError):
            PPOClip.load(file, env=noise_envs(BOX), weights_only=True, custom_objects=known)
        assert not marker.exists()
        return
    loaded = PPOClip.load(file, env=noise_envs(BOX), weights_only=True, custom_objects=known, device="cpu")
    assert_same_policy(loaded, model)
    assert not marker.exists()
    with pytest.raises(FileExistsError):
        PPOClip.load(file)
    assert marker.exists()


VALUES = [
    float("inf"),
    [1, [2.0]],
    (1, ("a",)),
    {"a": 1, 2: (3,)},
    deque([{"r": 1.0}], maxlen=3),
    np.float32(0.1),
    np.arange(6, dtype=np.int16).reshape(2, 3),
    spaces.Box(np.array([-1, 0], np.float32), np.array([1, 9], np.float32)),
    spaces.Box(-np.inf, np.inf, (2,), np.float64),
    spaces.Discrete(5, start=2),
    spaces.MultiDiscrete(np.array([[2, 3], [1, 4]]), start=np.array([[1, 0], [0, 1]])),
    spaces.MultiBinary([2, 2]),
    spaces.Dict({"b": spaces.Discrete(2), "a": spaces.MultiBinary(1)}),
    th.nn.Tanh,
    th.optim.Adam,
]


@pytest.mark.parametrize("value", VALUES, ids=named)
def test_plain_values_come_back(value: Any) -> None:
    back = files.decode(json.loads(json.dumps(files.encode(value))))
    assert type(back) is type(value)
    assert np.array_equal(back, value) if isinstance(value, np.ndarray) else back == value
    if isinstance(value, np.ndarray):
        assert back.dtype == value.dtype


@pytest.mark.parametrize(
    "form",
    [
        {"@": "class", "name": "os.system"},
        {"@": "class", "name": "subprocess.Popen"},
        {"@": "class", "name": "torch.optim.adam.Tensor"},
        {"@": "class", "name": "torch.optim.adam._use_grad_for_differentiable"},
        {"@": "array", "dtype": "O", "shape": [1], "data": "AAAA"},
        {"@": "eval", "items": []},
        {"name": "no word"},
    ],
)
def test_a_form_that_a_file_may_not_use(form: Any) -> None:
    members = unzip(save(small(PPOClip)))
    note = json.loads(members["sb3_ppo_variants.json"])
    note["plain"]["action_space"] = form
    file = seal({**members, "sb3_ppo_variants.json": json.dumps(note).encode()})
    with pytest.raises((KeyError, ValueError)):
        PPOClip.load(file, weights_only=True)


@dataclass(frozen=True)
class Dropout:
    """An example of a further argument of a model."""

    probability: float | Schedule
    layers: tuple[int, ...] | None = None


class WithDropout(PPOClip):
    dropout = Dropout(0.5)


def test_a_dataclass_that_is_registered(monkeypatch: pytest.MonkeyPatch, nothing_is_unpickled: None) -> None:
    def with_dropout(dropout: Dropout) -> io.BytesIO:
        model = small(WithDropout)
        model.dropout = dropout
        return save(model)

    monkeypatch.setattr(files, "WORDS", files.WORDS.copy())
    register_plain(Dropout)
    file = with_dropout(Dropout(0.1, layers=(1, 2)))
    assert WithDropout.load(file, weights_only=True).dropout == Dropout(0.1, layers=(1, 2))
    scheduled = WithDropout.load(with_dropout(Dropout(LinearSchedule(0.4, 0.0, 1.0))), weights_only=True)
    assert scheduled.dropout.probability(0.3) == pytest.approx(0.12)  # type: ignore[operator]
    with pytest.raises(PickledValueError, match="does not unpickle: dropout"):
        WithDropout.load(with_dropout(Dropout(lambda progress: progress)), weights_only=True)
