"""If a file is damaged, the error names the fault, and nothing is loaded."""

import io
import json
import random
import zipfile
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch as th
from forging import Members, change_state, unzip, zip_members
from stable_baselines3 import PPO

from helpers import BOX, noise_envs, save, small
from sb3_ppo_variants import DamagedFileError, PPOClip


@cache
def saved(cls: Any) -> bytes:
    """Return a file of ours, whose members are hashed, or one of SB3's, whose members are not."""
    return save(small(cls, n_steps=8, policy_kwargs={"net_arch": [8]}).learn(16)).getvalue()


def contents(model: Any) -> str:
    """Return the contents of a loaded model, as text."""
    attributes = {name: repr(value) for name, value in vars(model).items() if isinstance(value, int | float | str)}
    parameters = model.get_parameters()
    optimizer = parameters["policy.optimizer"]
    tensors = {name: tensor.tolist() for name, tensor in parameters["policy"].items()}
    moments = {index: {key: moment.tolist() for key, moment in of.items()} for index, of in optimizer["state"].items()}
    return json.dumps(
        [attributes, tensors, moments, repr(optimizer["param_groups"]), repr(vars(model).get("clip_range"))]
    )


def load(content: bytes) -> Any:
    return PPOClip.load(io.BytesIO(content), device="cpu")


@pytest.mark.parametrize("cls", [PPOClip, PPO])
def test_truncated(cls: Any) -> None:
    content = saved(cls)
    for length in np.linspace(0, len(content) - 1, 45).astype(int):
        # A truncated file may still end with a complete archive, which is inside its last member.
        with pytest.raises(DamagedFileError, match=r"zip archive cannot be read|data is missing"):
            load(content[:length])


@pytest.mark.parametrize("n_flips", [30, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cls", [PPOClip, PPO])
@pytest.mark.parametrize("where", ["anywhere", "structure"])
def test_bit_flips_are_seen_or_change_nothing(cls: Any, n_flips: int, where: str) -> None:
    content = saved(cls)
    whole = contents(load(content))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        directory = archive.start_dir
    numbers = random.Random(0)
    named = 0
    for _ in range(n_flips):
        damaged = bytearray(content)
        damaged[numbers.randrange(directory if where == "structure" else 0, len(content))] ^= 1 << numbers.randrange(8)
        try:
            assert contents(load(bytes(damaged))) == whole
        except DamagedFileError as error:
            assert error.part
            named += 1
    assert named > n_flips / 3


def without(members: Members, name: str) -> Members:
    return {key: member for key, member in members.items() if key != name}


POLICY, OPTIMIZER = "policy.pth", "policy.optimizer.pth"
# A change of the members, and the part that the error names. Files of ours have hashes, with which all are noticed.
FAULTS: dict[str, tuple[Callable[[Members], Members], str]] = {
    "no data": (lambda m: without(m, "data"), "data is missing"),
    "no policy": (lambda m: without(m, POLICY), "the parameters do not fit .*expected .*policy"),
    "no optimizer": (lambda m: without(m, OPTIMIZER), "the parameters do not fit .*policy.optimizer"),
    "a weight of another shape": (
        lambda m: change_state(m, POLICY, lambda state: state.update({"value_net.bias": th.ones(2)})),
        "the parameters do not fit .*value_net.bias",
    ),
}


@pytest.mark.parametrize("cls", [PPOClip, PPO])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_members(fault: str, cls: Any) -> None:
    change, part = FAULTS[fault]
    if cls is PPOClip:
        part = r"[\w.]+ is (not what was saved|missing)"
    file = zip_members(change(unzip(io.BytesIO(saved(cls)))))
    with pytest.raises(DamagedFileError, match=rf"(?s)BytesIO: ({part}|data is not what was saved)"):
        PPOClip.load(file, env=noise_envs(BOX))


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"policy": {"value_net.bias": th.zeros(7)}}, "value_net.bias"),
        ({"policy.optimizer": {"state": {}, "param_groups": []}}, "different number of parameter groups"),
        ({"learning_rate": {}}, "no attribute 'load_state_dict'"),
    ],
)
def test_parameters_are_set_all_or_none(wrong: dict[str, Any], fault: str) -> None:
    model = load(saved(PPOClip))
    before = contents(model)
    zeros = {name: th.zeros_like(parameter) for name, parameter in model.policy.action_net.state_dict().items()}
    with pytest.raises(DamagedFileError, match=rf"(?s)the given parameters: .* do not fit this model: .*{fault}"):
        model.set_parameters({"policy.action_net": zeros, **wrong}, exact_match=False)
    with pytest.raises(DamagedFileError, match=r"the parameters do not fit .*policy.optimizer"):
        model.set_parameters({"policy": model.policy.state_dict()})
    with pytest.raises(DamagedFileError, match="BytesIO: the zip archive"):
        model.set_parameters(io.BytesIO(saved(PPOClip)[:-1]))
    assert contents(model) == before
    model.set_parameters({"policy.action_net": {**zeros, "another": th.ones(1)}}, exact_match=False)
    assert not any(parameter.any() for parameter in model.policy.action_net.parameters())
    assert all(parameter.any() for parameter in model.policy.value_net.parameters())


def test_a_missing_file_is_missing() -> None:
    with pytest.raises(FileNotFoundError):
        PPOClip.load("no/such/file")
