"""The choice between the native library and the reference path, and what is said about it."""

from pathlib import Path
from typing import Any

import pytest
import torch as th

from helpers import small
from sb3_ppo_variants import ArgumentError, Objective, PPOClip, PPOCustom
from sb3_ppo_variants.backends import native
from sb3_ppo_variants.backends.choice import choose
from sb3_ppo_variants.backends.native import backend as obstacles

NATIVE = "Training on the fast path: the native library computes the networks"
REFERENCE = "Training on the reference path: "


class Mine(Objective):
    """A user's objective."""

    def loss(self, batch: Any) -> th.Tensor:
        return -(batch.ratio * batch.advantages).mean()


def said(model: Any, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the line that says which path a model uses."""
    capsys.readouterr()
    model.learn(32)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Training on")]
    return line


@pytest.mark.usefixtures("natively")
def test_it_is_said_that_the_library_computes(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(small(verbose=1), capsys) == NATIVE


@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize(
    ("cls", "arguments"), [(PPOClip, {"use_sde": True}), (PPOCustom, {"objective": Mine()})], ids=["gSDE", "own"]
)
def test_it_computes_gsde_and_objectives_of_users(
    cls: Any, arguments: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(small(cls, verbose=1, **arguments), capsys) == NATIVE


def test_without_the_library_pytorch_computes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obstacles, "library", lambda: None)
    assert said(small(verbose=1), capsys) == REFERENCE + (
        f"there is no native library in {Path(native.__file__).parent} (install a C++ compiler and, in a clone of "
        "sb3_ppo_variants, run: pip install --no-deps -e .)"
    )


@pytest.mark.usefixtures("natively")
def test_pytorch_computes_parameters_that_lie_in_pieces(capsys: pytest.CaptureFixture[str]) -> None:
    model = small(verbose=1)
    weight = model.policy.action_net.weight
    weight.data = weight.data.t().contiguous().t()
    assert said(model, capsys) == REFERENCE + "some parameters are not contiguous in memory"


@pytest.mark.usefixtures("natively")
def test_pytorch_computes_other_types_of_numbers() -> None:
    model = small(verbose=1)
    model.policy.half()
    assert choose(model._plan(), fast="auto").why == "the native library does not compute in torch.float16"


@pytest.mark.usefixtures("natively")
def test_what_it_cannot_compute_is_refused_with_fast() -> None:
    with pytest.raises(ArgumentError, match="fast=True is not possible, because the activation is ELU"):
        small(fast=True, policy_kwargs={"activation_fn": th.nn.ELU})
