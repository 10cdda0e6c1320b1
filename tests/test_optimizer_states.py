"""Loading refuses optimizer states with options or moments that the optimizer could not take or have made."""

from collections.abc import Callable
from typing import Any

import pytest
import torch as th
from forging import OPTIMIZER, change_state, load, members, seal

from helpers import BOX, noise_envs, save
from sb3_ppo_variants import DamagedFileError, PPOAdaptiveKL, PPOClip, SeparateUpdates


def first(state: Any) -> Any:
    return state["state"][0]


STATES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "eps": (lambda state: state["param_groups"][0].update(eps=-1), "does not take: Invalid epsilon"),
    "betas": (lambda state: state["param_groups"][0].update(betas=(2, 2)), "does not take: Invalid beta"),
    "three betas": (lambda state: state["param_groups"][0].update(betas=(0.9, 0.9, 0.9)), "does not take"),
    "a text": (lambda state: state["param_groups"][0].update(eps="1"), "does not take"),
    "an infinite decay": (lambda state: state["param_groups"][0].update(weight_decay=float("inf")), "weight_decay=inf"),
    "amsgrad without its moments": (lambda state: state["param_groups"][0].update(amsgrad=True), "max_exp_avg_sq"),
    "a moment too many": (lambda state: [m.update(other=m["exp_avg"]) for m in state["state"].values()], "other"),
    "a moment too few": (lambda state: [m.pop("exp_avg_sq") for m in state["state"].values()], "not step"),
    "negative squares": (lambda state: first(state)["exp_avg_sq"].fill_(-1), "exp_avg_sq with invalid values"),
    "steps that were not made": (lambda state: first(state).update(step=th.tensor(-5.0)), "step with .* such as -5"),
    "a moment without dimensions": (lambda state: first(state).update(exp_avg=th.zeros(())), r"exp_avg of shape \(\)"),
    "a NaN": (lambda state: first(state)["exp_avg"].fill_(float("nan")), "exp_avg with .* such as nan"),
    "a moment that is a text": (lambda state: first(state).update(step="5"), "step that is not a number"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("weights_only", [False, True])
@pytest.mark.parametrize("case", STATES)
def test_odd_states_of_the_optimizer(case: str, weights_only: bool) -> None:
    change, fault = STATES[case]
    file = seal(change_state(members(), OPTIMIZER, change))
    with pytest.raises(DamagedFileError, match=rf"BytesIO: policy\.optimizer has .*{fault}"):
        PPOAdaptiveKL.load(file, weights_only=weights_only)


class Mixed(th.optim.Optimizer):
    """Keeps norms of the rows of matrices, and negative sums of squares of vectors."""

    def __init__(self, params: Any, lr: float):
        super().__init__(params, {"lr": lr})

    @th.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient, state = parameter.grad, self.state[parameter]
                if parameter.dim() == 2:
                    state["norms"] = gradient.norm(dim=1) + state.get("norms", 0)
                else:
                    state["sum"] = -(gradient**2) + state.get("sum", 0)
                parameter.sub_(group["lr"] * gradient)


def test_states_of_other_optimizers_hold_finite_numbers() -> None:
    kwargs = {"optimizer_class": Mixed}
    model = PPOClip("MlpPolicy", noise_envs(BOX), n_steps=16, batch_size=16, n_epochs=1, policy_kwargs=kwargs).learn(64)
    parameters: Any = model.get_parameters()
    model.set_parameters(parameters)
    next(iter(parameters["policy.optimizer"]["state"].values()))["sum"][0] = float("inf")
    with pytest.raises(DamagedFileError, match=r"policy\.optimizer has a sum with invalid values, such as inf"):
        model.set_parameters(parameters)


class Bounded(th.optim.Adam):
    """Has an option that is infinite by default, like Prodigy's ``growth_rate``."""

    def __init__(self, params: Any, lr: float, largest: float = float("inf")):
        super().__init__(params, lr)
        self.param_groups[0]["largest"] = largest


class Counting(th.optim.Adam):
    """Keeps a number and a dictionary that belong to no parameter, which PyTorch saves as they are."""

    def step(self, closure: Any = None) -> Any:
        state: Any = self.state
        state["calls"] = state.get("calls", 0) + 1
        state["last"] = {"lr": self.param_groups[0]["lr"]}
        return super().step(closure)


def test_an_option_that_is_infinite_by_design() -> None:
    model = PPOClip("MlpPolicy", noise_envs(BOX), policy_kwargs={"optimizer_class": Bounded})
    file = save(model)
    loaded = PPOClip.load(file)
    assert loaded.policy.optimizer.param_groups[0]["largest"] == float("inf")
    parameters: Any = model.get_parameters()
    parameters["policy.optimizer"]["param_groups"][0]["lr"] = float("inf")
    with pytest.raises(DamagedFileError, match=r"policy\.optimizer has lr=inf"):
        loaded.set_parameters(parameters)


def test_a_state_that_belongs_to_no_parameter() -> None:
    kwargs = {"optimizer_class": Counting}
    model = PPOClip("MlpPolicy", noise_envs(BOX), n_steps=16, batch_size=16, n_epochs=3, policy_kwargs=kwargs).learn(32)
    state: Any = model.policy.optimizer.state
    file = save(model)
    loaded: Any = PPOClip.load(file).policy.optimizer.state
    assert loaded["calls"] == state["calls"] > 1
    assert loaded["last"] == state["last"]


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer_class": th.optim.SGD},
    "momentum": {"optimizer_class": th.optim.SGD, "optimizer_kwargs": {"momentum": 0.9, "nesterov": True}},
    "amsgrad": {"optimizer_kwargs": {"amsgrad": True, "weight_decay": 0.1}},
    "Adafactor": {"optimizer_class": th.optim.Adafactor},
    **{name: {"optimizer_class": getattr(th.optim, name)} for name in ("AdamW", "NAdam", "RAdam", "Adamax", "Rprop")},
    **{name: {"optimizer_class": getattr(th.optim, name)} for name in ("RMSprop", "ASGD", "Adagrad", "Adadelta")},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 64])
def test_what_optimizers_leave_is_not_odd(case: str, steps: int) -> None:
    env = noise_envs(BOX)
    kwargs = OPTIMIZERS[case]
    model = PPOClip("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, device="cpu", policy_kwargs=kwargs)
    file = save(model.learn(steps) if steps else model)
    assert load(file, PPOClip, env=env).learn(32, reset_num_timesteps=False).num_timesteps == steps + 32


def test_optimizers_of_separate_updates_are_checked_too() -> None:
    original = members(PPOClip, updates=SeparateUpdates())
    file = seal(change_state(original, "value_optimizer.pth", lambda state: state["param_groups"][0].update(eps=-1)))
    with pytest.raises(DamagedFileError, match="value_optimizer has options that Adam does not take"):
        load(file, PPOClip)
    assert isinstance(load(seal(original), PPOClip).updates, SeparateUpdates)
