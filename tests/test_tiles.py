"""The first layer of SB3's convolutional network in the native library, compared with PyTorch's convolution.

It runs on AMX, or on processors without it in an emulation if there is a compiler for it.
"""

import ctypes
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th

from sb3_ppo_variants.backends import native
from sb3_ppo_variants.backends.native.convolutions import Convolve, Selection, has_tiles
from sb3_ppo_variants.backends.native.library import Library, library

EMULATED = Path(__file__).with_name("emulated_tiles.hpp")
COMPILER = shutil.which("g++") or ""


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The functions of tiles.cpp, compiled with an emulation of AMX."""
    built = library()
    if not COMPILER or built is None or not built.use("AVX-512"):
        pytest.skip("this processor has neither AMX nor AVX-512, or there is no compiler")
    file = tmp_path_factory.mktemp("emulated") / "tiles.so"
    source = Path(native.__file__).with_name("tiles.cpp")
    command = [COMPILER, "-std=c++17", "-O2", "-fPIC", "-shared", "-w", "-include", str(EMULATED), str(source)]
    subprocess.run([*command, "-o", str(file)], check=True)
    return ctypes.CDLL(str(file))


@pytest.fixture(autouse=True)
def _tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulate AMX, unless the processor has it."""
    if has_tiles():
        return
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        pytest.skip("of x86-64 processors on Linux")
    functions, find = request.getfixturevalue("emulated"), Library._function

    def function(self: Library, name: str) -> Any:
        """Find the functions for AMX in the emulation."""
        if "tiled" not in name:
            return find(self, name)
        found = getattr(functions, name)
        found.restype = ctypes.c_int64
        return found

    monkeypatch.setattr(Library, "_function", function)


@pytest.mark.parametrize("size", [(36, 36), (84, 84), (37, 45), (64, 141), (40, 276), (210, 160)])
@pytest.mark.parametrize("in_planes", [True, False])
def test_filters_round_no_more_than_single_precision(size: tuple[int, int], in_planes: bool) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 4, *size) if in_planes else (6, *size, 4), dtype=np.uint8)
    rows = np.array([4, 1, 1, 5])
    convolution = th.nn.Conv2d(4, 32, 8, 4)
    outputs, gradients = [], []
    for dtype in (th.float64, th.float32):
        parameters = [parameter.detach().to(dtype).requires_grad_() for parameter in convolution.parameters()]
        in_order = images if in_planes else np.moveaxis(images, -1, 1)
        numbers = th.from_numpy(in_order[rows]).to(dtype) / 255
        weight, bias = parameters
        output = th.relu(th.nn.functional.conv2d(numbers, weight, bias, stride=4))
        outputs.append(output)
        gradients.append((output, parameters))
    parameters = [parameter.detach().clone().requires_grad_() for parameter in convolution.parameters()]
    output = Convolve.apply(Selection(images, rows, True, in_planes), [4], parameters[0] / 255, parameters[1])
    exact, single = outputs
    assert output.shape == exact.shape
    assert (output - exact).abs().max() <= 2 * (single - exact).abs().max()
    # Leave out elements where one output is 0 and another is not, because their gradients differ.
    gradient = (
        th.from_numpy(rng.normal(size=exact.shape)) * ((exact > 0) == (output > 0)) * ((exact > 0) == (single > 0))
    )
    exacts = th.autograd.grad(exact, gradients[0][1], gradient)
    singles = th.autograd.grad(single, gradients[1][1], gradient.float())
    for got, of_single, wanted in zip(
        th.autograd.grad(output, parameters, gradient.float()), singles, exacts, strict=True
    ):
        assert (got - wanted).abs().max() <= 2 * (of_single - wanted).abs().max() + 1e-6 * wanted.abs().max()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_filters_lose_nothing_that_is_not_finite(value: float) -> None:
    weight, bias = th.zeros(32, 4, 8, 8), th.zeros(32)
    weight[3, 1, 2, 2] = value
    selection = Selection(np.ones((1, 4, 36, 36), np.uint8), np.zeros(1, np.int64), tiled=True, in_planes=True)
    output = Convolve.apply(selection, [4], weight.requires_grad_(), bias)
    assert not output[:, 3].isfinite().any() and output[:, 4].isfinite().all()
    ones = th.ones(32, 4, 8, 8, requires_grad=True)
    output = Convolve.apply(selection, [4], ones, bias)
    gradient = th.zeros_like(output)
    gradient[0, 4, 0, 0] = value
    (d_ones,) = th.autograd.grad(output, [ones], gradient)
    assert not d_ones[4].isfinite().any() and d_ones[5].isfinite().all()
