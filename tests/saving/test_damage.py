"""If a file is damaged, the error names the fault, and nothing is loaded."""

import io
import json
import random
import zipfile
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch as th
from forging import Members, change_state, serialize, unzip, zip_members
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3

from helpers import ACTION_SPACES, BOX, VARIANTS, noise_envs, save
from sb3_ppo_variants import DamagedFileError, PPOClip, PPOFixedKL


@cache
def saved(cls: Any) -> bytes:
    """Return a file of ours, whose members are hashed, or one of SB3's, whose members are not."""
    file = io.BytesIO()
    env = noise_envs(BOX)
    net_arch = {"net_arch": [8]}
    cls("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu", policy_kwargs=net_arch).learn(16).save(file)
    return file.getvalue()


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


def load(content: bytes, cls: Any = PPOClip) -> Any:
    return cls.load(io.BytesIO(content), device="cpu")


@pytest.mark.parametrize("cls", [PPOClip, PPO])
def test_truncated(cls: Any) -> None:
    content = saved(cls)
    for length in np.linspace(0, len(content) - 1, 45).astype(int):
        # A truncated file may still end with a complete archive, which is inside its last member.
        with pytest.raises(DamagedFileError, match=r"zip archive cannot be read; it wasn't a zip-file|data is missing"):
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


def with_data(members: Members, change: Callable[[dict[str, Any]], Any]) -> Members:
    data = json.loads(members["data"])
    change(data)
    return {**members, "data": json.dumps(data).encode()}


def without(members: Members, name: str) -> Members:
    return {key: member for key, member in members.items() if key != name}


POLICY, OPTIMIZER = "policy.pth", "policy.optimizer.pth"
# A change of the members, and the part that the error names. Files of ours have hashes, with which all are noticed.
FAULTS: dict[str, tuple[Callable[[Members], Members], str]] = {
    "no data": (lambda m: without(m, "data"), "data is missing"),
    "no policy": (lambda m: without(m, POLICY), "policy is missing"),
    "no optimizer": (lambda m: without(m, OPTIMIZER), "policy.optimizer is missing"),
    "no variables": (lambda m: without(m, "pytorch_variables.pth"), "pytorch_variables is missing"),
    "empty data": (lambda m: {**m, "data": b""}, "data is not JSON"),
    "data of a list": (lambda m: {**m, "data": b"[1]"}, "data is not a JSON object"),
    "empty policy": (lambda m: {**m, POLICY: b""}, "policy cannot be read"),
    "policy of a list": (lambda m: {**m, POLICY: serialize([1])}, "policy is a list, not a dictionary"),
    "policy for optimizer": (lambda m: {**m, OPTIMIZER: m[POLICY]}, "policy.optimizer does not fit this model"),
    "another member": (lambda m: {**m, "policy.extra.pth": m[POLICY]}, "policy.extra is not part of this model"),
    "no weight": (
        lambda m: change_state(m, POLICY, lambda state: state.pop("value_net.bias")),
        "policy does not fit this model: .*value_net.bias",
    ),
    "a weight of another shape": (
        lambda m: change_state(m, POLICY, lambda state: state.update({"value_net.bias": th.ones(2)})),
        "policy does not fit this model: .*value_net.bias",
    ),
    "fewer groups": (
        lambda m: change_state(m, OPTIMIZER, lambda state: state["param_groups"].clear()),
        "policy.optimizer does not fit this model",
    ),
    "no policy class": (lambda m: with_data(m, lambda data: data.pop("policy_class")), "policy_class is missing"),
    "no batch size": (lambda m: with_data(m, lambda data: data.pop("batch_size")), "data has no batch_size"),
    "a broken pickle": (
        lambda m: with_data(m, lambda data: data["clip_range"].update({":serialized:": "AAAA"})),
        "clip_range cannot be unpickled",
    ),
}


@pytest.mark.parametrize("cls", [PPOClip, PPO])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_members(fault: str, cls: Any) -> None:
    change, part = FAULTS[fault]
    if cls is PPOClip and not part.endswith("missing"):
        part = r"[\w.]+ is not what was saved"
    file = zip_members(change(unzip(io.BytesIO(saved(cls)))))
    with pytest.raises(DamagedFileError, match=rf"(?s)BytesIO: ({part}|data is not what was saved)"):
        PPOClip.load(file, env=noise_envs(BOX))


@pytest.mark.parametrize("device", ["meta", "cuda:99", 3])
def test_the_device_is_that_of_the_argument(device: Any) -> None:
    """SB3 writes none to its files. One that is there could make the model unusable on this machine."""
    file = zip_members(with_data(unzip(io.BytesIO(saved(PPO))), lambda data: data.update(device=device)))
    assert load(file.getvalue()).device == th.device("cpu")


def test_weights_that_are_not_finite() -> None:
    def change(state: Any) -> None:
        state["action_net.weight"][0, 0] = float("nan")

    file = zip_members(change_state(unzip(io.BytesIO(saved(PPO))), POLICY, change))
    with pytest.warns(UserWarning, match=r"^BytesIO: action_net.weight of the policy has numbers that are not finite"):
        load(file.getvalue())


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"policy": {"value_net.bias": th.zeros(7)}}, "policy does not fit this model: "),
        ({"policy.optimizer": {"state": {}, "param_groups": []}}, "policy.optimizer does not fit this model"),
        ({"nope": {}}, "nope is not part of this model"),
        ({"learning_rate": {}}, "learning_rate is not part of this model"),
    ],
)
def test_parameters_are_set_all_or_none(wrong: dict[str, Any], fault: str) -> None:
    model = load(saved(PPOClip))
    before = contents(model)
    zeros = {name: th.zeros_like(parameter) for name, parameter in model.policy.action_net.state_dict().items()}
    with pytest.raises(DamagedFileError, match=f"the given parameters: {fault}"):
        model.set_parameters({"policy.action_net": zeros, **wrong}, exact_match=False)
    with pytest.raises(DamagedFileError, match=r"policy.optimizer is missing"):
        model.set_parameters({"policy": model.policy.state_dict()})
    with pytest.raises(DamagedFileError, match="BytesIO: the zip archive"):
        model.set_parameters(io.BytesIO(saved(PPOClip)[:-1]))
    assert contents(model) == before
    model.set_parameters({"policy.action_net": {**zeros, "another": th.ones(1)}}, exact_match=False)
    assert not any(parameter.any() for parameter in model.policy.action_net.parameters())
    assert all(parameter.any() for parameter in model.policy.value_net.parameters())


SMALL = {"buffer_size": 10}
OTHERS: dict[Any, tuple[str, str, dict[str, Any]]] = {
    A2C: ("MlpPolicy", "Box", {}),
    SAC: ("MlpPolicy", "Box", SMALL),
    TD3: ("MlpPolicy", "Box", SMALL),
    DDPG: ("MlpPolicy", "Box", SMALL),
    DQN: ("MlpPolicy", "Discrete", SMALL),
}
if find_spec("sb3_contrib"):
    OTHERS[import_module("sb3_contrib").TRPO] = ("MlpPolicy", "Box", {})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("other", OTHERS)
def test_another_algorithm(other: Any, variant: Any) -> None:
    policy, actions, arguments = OTHERS[other]
    env = noise_envs(ACTION_SPACES[actions], n_envs=1)
    file = save(other(policy, env, device="cpu", **arguments))
    with pytest.raises(DamagedFileError, match="BytesIO: data has no"):
        variant.load(file, env=env)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("other", VARIANTS)
def test_another_variant(variant: Any, other: Any) -> None:
    if variant is other:
        derived = type("Derived", (variant,), {})
        assert contents(load(saved(variant), derived)) == contents(load(saved(variant), variant))
        return
    with pytest.raises(DamagedFileError, match=f"this is a {other.__name__}, not a {variant.__name__}"):
        load(saved(other), variant)
    load(saved(variant), variant).set_parameters(io.BytesIO(saved(other)))


def test_a_missing_file_is_missing() -> None:
    with pytest.raises(FileNotFoundError):
        PPOFixedKL.load("no/such/file")
