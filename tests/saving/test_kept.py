"""Files keep all of a model, with the types of values, or say what they do not keep."""

import enum
import threading
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.distributions import SquashedDiagGaussianDistribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.save_util import load_from_zip_file, save_to_zip_file
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from helpers import BOX, VARIANTS, assert_same_policy, assert_same_weights, named, noise_envs, save, small
from sb3_ppo_variants import ArgumentError, ExactCheckpointCallback, PPOAdaptiveKL, PPOClip, PPOFixedKL, SeparateUpdates
from sb3_ppo_variants.errors import OtherClassError

Pair = namedtuple("Pair", "a b")


class Color(enum.Enum):
    RED = 1


VALUES: list[Any] = [
    {1: 10}, {(1, 2): 3.0}, {None: 1, True: 2, 1.5: 3}, {Color.RED: (1,)}, Color.RED, HTTPStatus.OK, {1, 2},
    OrderedDict(b=1, a=(2,)), defaultdict(int, a=1), {"inside": Pair(1, [2])}, np.str_("a"), np.float64(2), range(3),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=named)
def test_attributes_keep_their_types(value: Any) -> None:
    model, children = small(), []  # type: ignore[var-annotated]
    model.table, model.tree = value, {"children": children}
    children.append(model.tree)
    loaded: Any = PPOClip.load(save(model))
    assert loaded.tree["children"] == [loaded.tree]
    back = loaded.table
    assert back == value and repr(back) == repr(value) and type(back) is type(value)


@pytest.mark.parametrize("value", [threading.Lock(), (number for number in [1])], ids=["lock", "generator"])
def test_what_cannot_be_saved_is_left_out_or_refused_by_name(value: Any) -> None:
    model = small()
    model.policy_kwargs = {"features_extractor_kwargs": {"own": value}}
    with pytest.raises(ArgumentError, match=r"^the attribute 'policy_kwargs' cannot be saved, because .* pickle"):
        save(model)
    model.policy_kwargs, model.held = {}, value
    with pytest.warns(UserWarning, match=r"^the attribute 'held' cannot be saved.* The file does not contain it$"):
        file = save(model)
    assert not hasattr(PPOClip.load(file), "held")


class Counted(FlattenExtractor):
    """A features extractor with a state of its own."""

    total: Any = np.float64(3)

    def get_extra_state(self) -> Any:
        return {"total": self.total, "seen": [np.int64(1), (np.bool_(True),)]}

    def set_extra_state(self, state: Any) -> None:
        self.total, self.seen = state["total"], state["seen"]


@pytest.mark.parametrize(("name", "value"), [("eps", np.float64(1e-7)), ("betas", np.array([0.8, 0.9]))])
def test_numbers_of_numpy_in_an_optimizer(name: str, value: Any, tmp_path: Path) -> None:
    model = small(policy_kwargs={"optimizer_kwargs": {name: value}})
    model.policy.optimizer.param_groups[0][name] = value
    model.learn(32, callback=ExactCheckpointCallback(16, tmp_path))
    file = save(model)
    for loaded in (PPOClip.load(file), PPOClip.resume(tmp_path, noise_envs(BOX)), PPO.load(file)):
        kept = loaded.policy.optimizer.param_groups[0][name]
        np.testing.assert_array_equal(kept, value)
        assert not any(isinstance(each, np.generic | np.ndarray) for each in (kept, *np.atleast_1d(kept).tolist()))


def test_numbers_of_numpy_in_the_state_of_a_network() -> None:
    model = small(policy_kwargs={"features_extractor_class": Counted})
    loaded: Any = PPOClip.load(save(model)).policy.features_extractor
    assert (loaded.total, loaded.seen) == (3.0, [1, (True,)]) and type(loaded.total) is float
    assert type(model.policy.features_extractor.total) is np.float64
    model.policy.features_extractor.total = np.ones(2)
    with pytest.raises(ArgumentError, match=r"^policy\['features_extractor._extra_state'\]\['total'\] is a ndarray"):
        save(model)


def replace_activation(policy: Any) -> None:
    policy.mlp_extractor.policy_net[1] = nn.ReLU()


def add_a_layer(policy: Any) -> None:
    policy.value_net = nn.Sequential(policy.value_net, nn.Linear(1, 1))


class Shifted(FlattenExtractor):
    """A features extractor that keeps a tensor which is no buffer."""

    def __init__(self, space: Any, missing: float = 0.0):
        super().__init__(space)
        self.missing, self.offset = missing, th.zeros(3)


SQUASHED = SquashedDiagGaussianDistribution(2)
CHANGES: list[tuple[Callable[[Any], Any], str]] = [
    (replace_activation, "policy.mlp_extractor.policy_net.1 was ReLU and is Tanh"),
    (lambda policy: policy.action_net.weight.requires_grad_(False), "net.weight.requires_grad was False and is True"),
    (lambda policy: policy.features_extractor.offset.add_(1), r"offset was a tensor, no buffer: \w+ and is a tensor"),
    (lambda policy: setattr(policy, "action_dist", SQUASHED), f"action_dist was {type(SQUASHED).__name__} and is Diag"),
    (lambda policy: policy.double(), r"dtype was torch.float64 and is torch.float32, and \d+ more"),
]


@pytest.mark.parametrize(("change", "says"), CHANGES)
def test_a_policy_that_was_changed_after_construction(change: Any, says: str, tmp_path: Path) -> None:
    model, theirs, again = (
        small(cls, policy_kwargs={"features_extractor_class": Shifted}) for cls in (PPOClip, PPO, PPOClip)
    )
    for each in (model.learn(32), theirs, again):
        change(each.policy)
    model.save(tmp_path / "model")
    said = f"model: the policy was changed after construction. .*{says}.*policy_kwargs.*custom_objects.*set_parameters"
    with pytest.warns(UserWarning, match=said):
        PPOClip.load(tmp_path / "model")
    for each in (model, theirs):
        with pytest.warns(UserWarning, match=says):
            PPOFixedKL.from_ppo(each)
    again.set_parameters(tmp_path / "model")
    assert_same_weights(again, model)


class Layered(ActorCriticPolicy):
    """A policy that makes a change itself."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        add_a_layer(self)


OTHER_PARAMETERS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda policy: setattr(policy, "log_std", nn.Parameter(th.zeros(5))), r"log_std\.shape was \[5\] and is \[2\]"),
    (lambda policy: policy.register_buffer("steps", th.zeros(1)), r"steps was Tensor and is missing"),
    (add_a_layer, r"value_net was Sequential and is Linear, and \d+ more"),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("change", "says"), OTHER_PARAMETERS)
def test_a_policy_with_other_parameters(change: Any, says: str) -> None:
    model = small()
    change(model.policy)
    with pytest.raises(ArgumentError, match=rf"policy was changed after construction\. policy\.{says}"):
        PPOClip.load(save(model))
    if change is add_a_layer:
        assert_same_weights(PPOClip.load(save(model), custom_objects={"policy_class": Layered}), model)


OPTIMIZERS: dict[str, Any] = {
    r"\[2, 11\]": lambda weights: th.optim.Adam([{"params": weights[:2], "lr": 1e-4}, {"params": weights[2:]}]),
    "SGD": lambda weights: th.optim.SGD(weights, 0.01, momentum=0.9),
}


@pytest.mark.parametrize("was", OPTIMIZERS)
def test_an_optimizer_that_was_replaced(was: str, tmp_path: Path) -> None:
    model = small()
    model.policy.optimizer = OPTIMIZERS[was]([*model.policy.parameters()])
    model.learn(32)
    model.save(tmp_path / "model")
    with pytest.warns(UserWarning, match=rf"the optimizer was replaced: pass it again\. .* was {was} and is"):
        loaded = PPOClip.load(tmp_path / "model", noise_envs(BOX))
    assert_same_weights(loaded, model)
    assert loaded.policy.optimizer.state_dict()["state"] == {}
    loaded.learn(32)
    loaded.policy.optimizer = OPTIMIZERS[was]([*loaded.policy.parameters()])
    loaded.set_parameters(tmp_path / "model")
    assert_same_policy(loaded, model)


@pytest.mark.filterwarnings("error")
def test_arguments_that_ask_for_another_model() -> None:
    file = save(small(policy_kwargs={"optimizer_class": th.optim.SGD}))
    with pytest.raises(ArgumentError, match=r"^updates=SeparateUpdates"):
        PPOClip.load(file, updates=SeparateUpdates())
    kwargs = {"optimizer_class": th.optim.SGD, "activation_fn": nn.ReLU}
    loaded = PPOClip.load(file, policy_kwargs=kwargs)
    assert type(loaded.policy.mlp_extractor.policy_net[1]) is nn.ReLU


@pytest.mark.parametrize("part", [None, "mlp_extractor"])
def test_what_is_compiled_takes_parameters_and_gives_them(part: str | None) -> None:
    plain, model = small(seed=4).learn(32), small()
    owner, name = (model, "policy") if part is None else (model.policy, part)
    setattr(owner, name, th.compile(getattr(owner, name), backend="eager"))
    model.set_parameters(plain.get_parameters())
    model.set_parameters(save(plain))
    assert_same_policy(PPOClip.load(save(model)), plain)
    plain.set_parameters(model.get_parameters())
    assert model.get_parameters()["policy"].keys() == plain.get_parameters()["policy"].keys()
    with pytest.raises(RuntimeError, match="value_net"):
        model.set_parameters({"policy": {"value_net.bias": th.ones(9)}}, exact_match=False)
    assert_same_policy(PPOClip.load(save(model)), plain)


@pytest.mark.parametrize("variant", VARIANTS)
def test_files_that_sb3_has_written_again(variant: Any) -> None:
    own = {"kl_coef": 3.0} if "kl_coef" in variant.rules else {}
    model = small(variant, **own).learn(32)
    data, parameters, variables = load_from_zip_file(save(model))
    file = BytesIO()
    save_to_zip_file(file, data, parameters, variables)
    loaded = variant.load(file)
    assert_same_policy(loaded, model)
    assert repr(vars(loaded).get("kl_coef")) == repr(vars(model).get("kl_coef"))
    other = PPOFixedKL if variant is PPOAdaptiveKL else PPOAdaptiveKL
    with pytest.raises(OtherClassError, match=rf"is of a {variant.__name__} that SB3 wrote, not of {other.__name__}"):
        other.load(file)


@pytest.mark.parametrize("extractor", [Shifted, lambda space, missing: FlattenExtractor(space)])
def test_the_same_policy_kwargs_may_be_passed_again(extractor: Any) -> None:
    kwargs = {"net_arch": {"pi": (8,), "vf": (8,)}, "optimizer_kwargs": {"betas": np.array([0.8, 0.9])}}
    kwargs |= {"features_extractor_class": extractor, "features_extractor_kwargs": {"missing": float("nan")}}
    model = small(policy_kwargs=kwargs)
    assert_same_policy(PPOClip.load(save(model), policy_kwargs=kwargs), model)
