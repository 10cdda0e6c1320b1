"""States in files from strangers: what PyTorch reads is read the same, and nothing but states of models is."""

import io
import pickle
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pytest
import torch as th
from forged_states import of_call, of_int, of_string, of_tensor, of_tuple, unzip_state, with_opcodes, zip_state
from forging import serialize
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch import nn

from sb3_ppo_variants.saving.untrusted import UntrustedStateError, read_state


def assert_read_like_pytorch(state: Any) -> None:
    """Compare by what ``torch.save`` writes, which tells tensors, their views and their shared memory apart."""
    content = serialize(state)
    theirs = th.load(io.BytesIO(content), weights_only=True)
    assert unzip_state(serialize(read_state(content))) == unzip_state(serialize(theirs))


class Network(nn.Module):
    """Has shared parameters, buffers and a state besides."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(3, 3).bfloat16())
        self.again = self.layers[0]
        self.register_buffer("repeated", th.ones(1, 2).expand(3, 2))

    def get_extra_state(self) -> Any:
        return {"counts": [1, 2**40, -(2**70)], "name": "é", "rate": 0.1, "none": None, "flags": (True, False)}


NUMBERS = [th.float64, th.float32, th.float16, th.bfloat16, th.complex128, th.complex64]
NUMBERS += [th.int64, th.int32, th.int16, th.int8, th.uint8, th.bool]
whole = th.arange(12.0)
STATES: dict[str, Any] = {
    "nothing": {},
    "every type of numbers": {str(dtype): th.arange(3).to(dtype) for dtype in NUMBERS},
    "views": {"rows": whole.view(3, 4), "columns": whole.view(3, 4).T, "some": whole[2:9:3], "one": whole[5]},
    "no numbers": {"vector": th.zeros(0), "matrix": th.zeros(2, 0)},
    "parameters": {"fixed": nn.Parameter(whole, requires_grad=False), "free": nn.Parameter(whole)},
    "gradients": {"free": th.ones(2, requires_grad=True)},
    "a network": Network().state_dict(),
    "many tensors": {f"layers.{i}.weight": th.full((2,), float(i)) for i in range(1000)},
}


@pytest.mark.parametrize("case", STATES)
def test_states(case: str) -> None:
    assert_read_like_pytorch(STATES[case])


OPTIMIZERS: set[Any] = {
    cls for cls in vars(th.optim).values() if isinstance(cls, type) and issubclass(cls, th.optim.Optimizer)
}
OPTIMIZERS = OPTIMIZERS - {th.optim.Optimizer} | {RMSpropTFLike}


@pytest.mark.parametrize("cls", sorted(OPTIMIZERS, key=str), ids=lambda cls: cls.__name__)
def test_optimizers(cls: Any) -> None:
    parameters = [nn.Parameter(th.ones(2, 2)) for _ in range(3)]
    groups = [{"params": parameters[:1]}, {"params": parameters[1:]}]
    optimizer = cls(parameters if cls is th.optim.LBFGS else groups)

    def closure() -> float:
        for parameter in parameters:
            parameter.grad = th.ones(2, 2)
        return 1.0

    if cls is not th.optim.SparseAdam:
        optimizer.step(closure)
    assert_read_like_pytorch(optimizer.state_dict())


def test_the_version_of_a_module() -> None:
    state = read_state(serialize(nn.BatchNorm1d(2).state_dict()))
    assert type(state) is OrderedDict and state._metadata == {"": {"version": 2}}  # type: ignore[attr-defined]


def test_a_file_from_a_machine_with_the_other_order_of_bytes() -> None:
    entries = unzip_state(serialize({"weights": whole, "flags": th.tensor([True, False])}))
    assert entries["byteorder"].decode() == sys.byteorder
    swapped = np.frombuffer(entries["data/0"], np.float32).byteswap().tobytes()
    other = {"little": b"big", "big": b"little"}[sys.byteorder]
    state = read_state(zip_state({**entries, "data/0": swapped, "byteorder": other}))
    assert state["weights"].tolist() == whole.tolist() and state["flags"].tolist() == [True, False]


ITSELF = pickle.EMPTY_LIST + pickle.BINPUT + b"\xff" + pickle.BINGET + b"\xff" + pickle.APPEND
# Each tuple contains the one before twice.
DOUBLED = 64 * (pickle.BINPUT + b"\xff" + pickle.BINGET + b"\xff" + pickle.TUPLE2)
TEXT = of_string(1000 * "x") + pickle.BINPUT + b"\xff"
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "a function": (
        lambda: zip_state(with_opcodes(of_call("os.system", of_string("true")))),
        r"contains os\.system, which weights_only=True does not read",
    ),
    "a class": (
        lambda: serialize(Counter("ab")),
        r"contains collections\.Counter, which weights_only=True does not read",
    ),
    "a path": (lambda: serialize(Path()), r"contains pathlib\.\w+, which weights_only=True does not read"),
    "an opcode": (lambda: zip_state(with_opcodes(pickle.EMPTY_SET)), "has the opcode EMPTY_SET"),
    "a list in itself": (lambda: zip_state(with_opcodes(ITSELF)), "contains the same list twice"),
    "tuples in tuples": (
        lambda: zip_state(with_opcodes(pickle.NONE + DOUBLED)),
        "repeats more than 26.... values and characters",
    ),
    "empty tuples in tuples": (
        lambda: zip_state(with_opcodes(pickle.EMPTY_TUPLE + DOUBLED)),
        "repeats more than 26.... values and characters",
    ),
    "a text in a list": (
        lambda: zip_state(with_opcodes(of_tuple(TEXT, *[pickle.BINGET + b"\xff"] * 300))),
        "repeats more than 26.... values and characters",
    ),
    "opcodes": (
        lambda: zip_state(with_opcodes(of_tuple(pickle.NONE * 300_000))),
        "has 30.... bytes besides the numbers of its tensors, more than 27....",
    ),
    "attributes": (
        lambda: zip_state(with_opcodes(of_tensor("0", 1, 1, 1) + pickle.EMPTY_DICT + pickle.BUILD)),
        "sets attributes of a Tensor",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_state_contains(case: str) -> None:
    make, fault = REFUSED[case]
    with pytest.raises(UntrustedStateError, match=fault):
        read_state(make())


DAMAGED: dict[str, Callable[[], bytes]] = {
    "numbers that are not there": lambda: zip_state(with_opcodes(of_tensor("0", 10**6, 10**6, 1))),
    "a file that is not there": lambda: zip_state(with_opcodes(of_tensor("more", 1, 1, 1))),
    "half a number": lambda: zip_state(with_opcodes(of_tensor("more", 1, 1, 1), more=b"abc")),
    "a dictionary to copy": lambda: zip_state(with_opcodes(of_call("collections.OrderedDict", pickle.EMPTY_DICT))),
    "no end": lambda: zip_state({"data.pkl": pickle.EMPTY_DICT}),
    "nothing at the end": lambda: zip_state({"data.pkl": pickle.STOP}),
    "an odd number of keys and values": lambda: zip_state(with_opcodes(pickle.NONE + pickle.SETITEMS)),
    "a memo that is not there": lambda: zip_state(with_opcodes(pickle.LONG_BINGET + b"\xff\xff\0\0")),
    "no archive": lambda: pickle.dumps({}),
    "no opcodes": lambda: zip_state({"version": b"3"}),
    "a call of a number": lambda: zip_state(with_opcodes(of_int(3) + of_tuple() + pickle.REDUCE)),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_states_that_are_damaged(case: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, RuntimeError, IndexError, BadZipFile)) as caught:
        read_state(DAMAGED[case]())
    assert not isinstance(caught.value, UntrustedStateError)
