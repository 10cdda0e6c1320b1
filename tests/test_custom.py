"""Custom objectives."""

import io
import re
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th

from helpers import BOX, LogRecorder, flat_weights, noise_envs, small
from sb3_ppo_variants import ArgumentError, Batch, Objective, PPOClip, PPOCustom, PPOFixedKL, SquaredError
from sb3_ppo_variants.errors import PickledValueError
from sb3_ppo_variants.objectives import EWMA, AdaptiveKL, Clipped, KLPenalized, Unclipped

GUIDE = Path(__file__).parent.parent / "docs" / "howto" / "own_objective.md"


@dataclass(frozen=True)
class Hinge(Objective):
    """A penalty on the KL beyond a bound, which adapts and depends on the training progress."""

    bound: float
    updates: int = 0
    needs_kl = True

    def loss(self, batch: Batch) -> th.Tensor:
        return -(batch.ratio * batch.advantages).mean() + 10 * th.relu(batch.kl - self.bound).mean()

    def coefficients(self) -> dict[str, float]:
        return {"bound": self.bound, "updates": self.updates}

    def at(self, progress_remaining: float) -> "Hinge":
        return replace(self, bound=0.01 * progress_remaining)

    def after_update(self, kl: float | None) -> "Hinge":
        assert kl is not None and kl > 0
        return replace(self, updates=self.updates + 1)


def make(objective: Any, **arguments: Any) -> Any:
    settings = {"n_steps": 32, "batch_size": 32, "n_epochs": 2, "learning_rate": 3e-3, "seed": 1, "device": "cpu"}
    return PPOCustom("MlpPolicy", noise_envs(BOX), objective=objective, **{**settings, **arguments})


def test_it_follows_the_progress_and_keeps_its_state() -> None:
    log = LogRecorder()
    model = make(Hinge(0.01)).learn(256, callback=log)
    assert [update["train/bound"] for update in log.updates] == pytest.approx([0.0075, 0.005, 0.0025, 0.0])
    assert [update["train/updates"] for update in log.updates] == [0, 1, 2, 3]
    assert model.objective.updates == 4


def test_saved_with_the_model() -> None:
    model, file = make(Hinge(0.01)).learn(128), io.BytesIO()
    model.save(file)
    loaded: Any = PPOCustom.load(file, env=noise_envs(BOX))
    assert loaded.objective == model.objective and loaded.objective.updates == 2
    loaded.learn(64, reset_num_timesteps=False)
    assert loaded.objective.updates == 3
    with pytest.raises(PickledValueError, match="objective"):
        PPOCustom.load(file, weights_only=True)
    again: Any = PPOCustom.load(file, weights_only=True, custom_objects={"objective": Clipped(0.2)})
    assert again.objective == Clipped(0.2)


@pytest.mark.parametrize("objective", [None, Clipped, "clip"])
def test_what_is_no_objective_is_refused(objective: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^objective=.* is not allowed; allowed: an instance of"):
        make(objective)


@pytest.mark.parametrize(
    ("objective", "name", "value"),
    [
        *((Clipped, "clip_range", value) for value in (-0.1, float("nan"), float("inf"), None, "0.2", th.tensor(0.2))),
        *((KLPenalized, "kl_coef", value) for value in (-1.0, float("nan"), None, "1")),
        *((KLPenalized, "clip_range", value) for value in (-0.1, "0.2")),
        *((AdaptiveKL, "kl_coef", value) for value in (0.0, 1e9)),
        *((AdaptiveKL, "desired_kl", value) for value in (0.0, -0.01, None)),
    ],
)
def test_coefficients_that_the_variants_refuse(objective: Any, name: str, value: Any) -> None:
    good = {Clipped: {}, KLPenalized: {"kl_coef": 1.0}, AdaptiveKL: {"kl_coef": 1.0, "desired_kl": 0.01}}
    with pytest.raises(ArgumentError, match=f"^{name}=.* is not allowed; allowed: "):
        objective(**{**good[objective], name: value})


@pytest.mark.parametrize("method", ["at", "after_update"])
def test_a_method_that_returns_no_objective_is_named(method: str) -> None:
    """The update is undone, and the model keeps its objective."""

    class Forgetful(Hinge):
        pass

    model = make(Forgetful(0.01)).learn(64)
    kept, weights = model.objective, deepcopy(model.policy.state_dict())
    setattr(Forgetful, method, lambda *_: None)
    with pytest.raises(ArgumentError, match=rf"^Forgetful.{method} returned None; allowed: an objective"):
        model.learn(64, reset_num_timesteps=False)
    assert model.objective is kept
    assert all(th.equal(weights[name], value) for name, value in model.policy.state_dict().items())


def test_a_coefficient_must_not_hide_what_is_logged() -> None:
    class Hiding(Hinge):
        def coefficients(self) -> dict[str, float]:
            return {"bound": self.bound, "value_loss": 1.0}

    with pytest.raises(ArgumentError, match=r"^Hiding\.coefficients returned a coefficient named 'value_loss', but"):
        make(Hiding(0.01))


@dataclass(frozen=True)
class Named(SquaredError):
    """A value loss that logs a coefficient under a name."""

    name: str

    def coefficients(self) -> dict[str, float]:
        return {self.name: 5.0}


@pytest.mark.parametrize("name", ["loss", "kl", "clip_range"])
def test_a_coefficient_of_a_value_loss_must_not_hide_what_is_logged(name: str) -> None:
    with pytest.raises(ArgumentError, match=rf"^Named\.coefficients returned a coefficient named '{name}', but"):
        small(PPOClip, value_loss=Named(name))


def test_the_example_of_the_guide() -> None:
    """Simple Policy Optimization has its maximum at a ratio of 1 + eps if the advantage is positive."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
    (block,) = [block for block in blocks if "class SPO" in block]
    namespace: dict[str, Any] = {"__name__": "guide"}
    exec(re.sub(r"learn\([\d_]+\)", "learn(2048)", block), namespace)
    spo = namespace["SPO"](0.2)
    ratio = th.linspace(0.5, 1.5, 1001, dtype=th.float64)
    losses = [spo.loss(Batch(r[None], th.ones(1, dtype=th.float64))).item() for r in ratio]
    assert ratio[int(np.argmin(losses))].item() == pytest.approx(1.2)
    # r A - |A| (r - 1)^2 / (2 eps) = 1.5 - 0.25 / 0.4 for r = 1.5, and -1.5 - 0.25 / 0.4 for the opposite advantage.
    both = Batch(th.tensor([1.5, 1.5]), th.tensor([1.0, -1.0]))
    assert spo.loss(both).item() == pytest.approx(0.625)


def test_the_objectives_of_the_paper_train_as_their_classes_do() -> None:
    for objective, theirs in ((Clipped(0.1), PPOClip), (KLPenalized(kl_coef=3.0), PPOFixedKL)):
        own: dict[str, Any] = {"clip_range": 0.1} if theirs is PPOClip else {"kl_coef": 3.0}
        for fast in (False, True):
            model = make(objective, fast=fast).learn(128)
            other: Any = theirs("MlpPolicy", noise_envs(BOX), 3e-3, 32, 32, 2, seed=1, device="cpu", fast=fast, **own)
            for got, wanted in zip(model.policy.parameters(), other.learn(128).policy.parameters(), strict=True):
                assert th.equal(got, wanted)


class Weighted(Objective):
    """The ratio times a factor, which is where the test says."""

    def __init__(self, factor: Any):
        self.factor = factor

    def loss(self, batch: Batch) -> th.Tensor:
        return -(self.factor.weight.mean() * batch.ratio * batch.advantages).mean()


class WeightedModule(th.nn.Module, Weighted):
    def __init__(self, factor: Any):
        super().__init__()
        self.factor = factor


class WeightedError(SquaredError):
    def __init__(self, factor: Any):
        vars(self)["factor"] = factor


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("factor", [th.nn.Parameter(th.tensor(1.0)), th.nn.Linear(2, 2)])
@pytest.mark.parametrize("make_part", [Weighted, WeightedModule, WeightedError, lambda f: EWMA(Weighted(f))])
def test_learnable_coefficients_are_refused_at_construction(make_part: Any, factor: Any, fast: bool) -> None:
    part = make_part(factor)
    arguments = {"value_loss": part} if isinstance(part, SquaredError) else {"objective": part}
    with pytest.raises(ArgumentError, match="has a learnable tensor, which no optimizer would train: make it a number"):
        make(**{"objective": Clipped(0.2), **arguments}, fast=fast)


@pytest.mark.parametrize("fast", [False, True])
def test_a_network_that_is_not_trained_may_be_read(fast: bool) -> None:
    frozen = th.nn.Linear(2, 2).requires_grad_(False)
    th.nn.init.ones_(frozen.weight)
    learned = make(Weighted(frozen), fast=fast).learn(64)
    th.testing.assert_close(flat_weights(learned), flat_weights(make(Unclipped(), fast=fast).learn(64)))


def test_parameters_of_the_policy_may_be_read_on_the_reference_path() -> None:
    class Decayed(Unclipped):
        def loss(self, batch: Batch) -> th.Tensor:
            return super().loss(batch) + 0.1 * model.policy.action_net.weight.square().sum()

    model = make(Unclipped(), fast=False)
    model.objective = Decayed()
    model.learn(32)
    assert not th.equal(flat_weights(model), flat_weights(make(Unclipped(), fast=False).learn(32)))
