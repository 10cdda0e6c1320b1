"""The choice between the native library and the paths that take over from it."""

from typing import Any

import pytest
import torch as th

from helpers import ACTION_SPACES, noise_envs
from sb3_ppo_variants import ArgumentError, PPOClip, PPOCustom
from sb3_ppo_variants.backends.choice import choose
from sb3_ppo_variants.backends.native import obstacles
from sb3_ppo_variants.objectives import Clipped

BOX = ACTION_SPACES["Box"]


class Mine(Clipped):
    """A user's objective with both forms of its loss."""

    def loss(self, batch: Any) -> th.Tensor:
        return 2 * super().loss(batch)

    def gradient(self, batch: Any) -> Any:
        losses, d_log_ratio, _ = super().gradient(batch)
        return super().gradient(batch)._replace(losses=2 * losses, d_log_ratio=2 * d_log_ratio)


def said(model: Any, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the line that says which path a model uses."""
    capsys.readouterr()
    model.learn(32)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Training on")]
    return line


def make(cls: Any = PPOClip, **arguments: Any) -> Any:
    return cls("MlpPolicy", noise_envs(BOX), n_steps=16, batch_size=16, device="cpu", verbose=1, **arguments)


@pytest.mark.usefixtures("natively")
def test_it_is_said_that_the_library_computes(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(make(), capsys) == "Training on the fast path: the native library computes the networks"


@pytest.mark.usefixtures("natively")
def test_with_gsde_it_is_said_that_the_library_computes_only_the_updates(capsys: pytest.CaptureFixture[str]) -> None:
    line = "Training on the fast path: rollouts are computed over arrays and updates by the native library, because "
    assert said(make(use_sde=True), capsys) == line + "the policy explores with gSDE"


OVER_ARRAYS = "Training on the fast path: the networks are computed over arrays, because "


def test_without_the_library_arrays_take_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obstacles, "library", lambda: None)
    assert said(make(fast=True), capsys) == OVER_ARRAYS + (
        "the native library was not built (to build it, install a C++ compiler and then: "
        "pip install --force-reinstall --no-deps --no-cache-dir .)"
    )


@pytest.mark.usefixtures("natively")
def test_so_they_do_for_an_objective_of_a_users_own(capsys: pytest.CaptureFixture[str]) -> None:
    model = make(PPOCustom, objective=Mine(0.2))
    assert said(model, capsys) == OVER_ARRAYS + "the native library does not support the objective Mine"


@pytest.mark.usefixtures("natively")
def test_so_they_do_for_parameters_that_lie_in_pieces(capsys: pytest.CaptureFixture[str]) -> None:
    model = make()
    weight = model.policy.action_net.weight
    weight.data = weight.data.t().contiguous().t()
    assert said(model, capsys) == OVER_ARRAYS + "some parameters are not contiguous in memory"


@pytest.mark.usefixtures("natively")
def test_so_they_do_for_other_types_of_numbers() -> None:
    model = make()
    model.policy.half()
    assert obstacles.obstacle(model._plan()) == "the native library does not compute in torch.float16"
    assert choose(model._plan(), fast=True).why.startswith("the networks are computed over arrays")


@pytest.mark.usefixtures("natively")
def test_what_neither_can_compute_takes_the_reference() -> None:
    with pytest.raises(ArgumentError, match="fast=True is not possible, because the activation is ELU"):
        make(fast=True, policy_kwargs={"activation_fn": th.nn.ELU})
