"""Files keep all of a model, with the types of values, or say what they do not keep."""

import enum
import io
import threading
import warnings
from collections import OrderedDict, defaultdict, namedtuple
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

from helpers import BOX, VARIANTS, assert_same_policy, assert_same_weights, flat_weights, named, noise_envs, save, small
from ranks import answers
from sb3_ppo_variants import (
    ArgumentError,
    ExactCheckpointCallback,
    OtherClassError,
    PPOAdaptiveKL,
    PPOClip,
    PPOFixedKL,
    SeparateUpdates,
)

Pair = namedtuple("Pair", "a b")


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Name(str):
    """Text of a user's own type."""


VALUES = [
    {1: 10},
    {(1, 2): 3.0},
    {None: 1, True: 2, 1.5: 3},
    {Color.RED: (1,)},
    Color.RED,
    Level.LOW,
    OrderedDict(b=1, a=(2,)),
    defaultdict(int, a=1),
    Pair(1, [2]),
    {"inside": Pair(1, 2)},
    Name("a"),
    np.str_("a"),
    np.float64(2),
    {1, 2},
    range(3),
]


@pytest.mark.parametrize("value", VALUES, ids=named)
def test_attributes_keep_their_types(value: Any) -> None:
    model = small()
    model.table = value
    back = PPOClip.load(save(model)).table  # type: ignore[attr-defined]
    assert back == value and repr(back) == repr(value) and type(back) is type(value)


def test_an_attribute_may_contain_itself() -> None:
    model = small()
    model.tree = {"children": []}
    model.tree["children"].append(model.tree)
    tree = PPOClip.load(save(model)).tree  # type: ignore[attr-defined]
    assert tree["children"] == [tree]


@pytest.mark.parametrize("value", [threading.Lock(), (number for number in [1])], ids=["lock", "generator"])
def test_what_cannot_be_saved_is_left_out_or_refused_by_name(value: Any, tmp_path: Path) -> None:
    model = small()
    model.save(tmp_path / "model")
    before = (tmp_path / "model.zip").read_bytes()
    model.policy_kwargs = {"features_extractor_kwargs": {"own": value}}
    with pytest.raises(ArgumentError, match=r"^the attribute 'policy_kwargs' cannot be saved, because .* pickle"):
        model.save(tmp_path / "model")
    assert (tmp_path / "model.zip").read_bytes() == before
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


@pytest.mark.parametrize(
    ("name", "value"), [("eps", np.float64(1e-7)), ("amsgrad", np.bool_(True)), ("betas", np.array([0.8, 0.9]))]
)
def test_numbers_of_numpy_in_an_optimizer(name: str, value: Any, tmp_path: Path) -> None:
    model = small(policy_kwargs={"optimizer_kwargs": {name: value}})
    model.policy.optimizer.param_groups[0][name] = value
    model.learn(32, callback=ExactCheckpointCallback(16, tmp_path))
    file = save(model)
    for loaded in (PPOClip.load(file), PPOClip.resume(tmp_path, noise_envs(BOX)), PPO.load(file)):
        kept = loaded.policy.optimizer.param_groups[0][name]
        np.testing.assert_array_equal(kept, value)
        assert not any(isinstance(each, np.generic | np.ndarray) for each in (kept, *np.atleast_1d(kept).tolist()))


def test_numbers_of_numpy_in_the_state_of_a_network(tmp_path: Path) -> None:
    model = small(policy_kwargs={"features_extractor_class": Counted})
    loaded: Any = PPOClip.load(save(model)).policy.features_extractor
    assert (loaded.total, loaded.seen) == (3.0, [1, (True,)]) and type(loaded.total) is float
    assert type(model.policy.features_extractor.total) is np.float64
    model.save(tmp_path / "model")
    before = (tmp_path / "model.zip").read_bytes()
    model.policy.features_extractor.total = np.ones(2)
    with pytest.raises(ArgumentError, match=r"^policy\['features_extractor._extra_state'\]\['total'\] is a ndarray"):
        model.save(tmp_path / "model")
    assert (tmp_path / "model.zip").read_bytes() == before


def replace_activation(policy: Any) -> None:
    policy.mlp_extractor.policy_net[1] = nn.ReLU()


def freeze(policy: Any) -> None:
    policy.action_net.weight.requires_grad_(False)


def keep_a_tensor(policy: Any) -> None:
    policy.features_extractor.offset = policy.features_extractor.offset + 1


def draw_otherwise(policy: Any) -> None:
    policy.action_dist = SquashedDiagGaussianDistribution(2)


def add_a_layer(policy: Any) -> None:
    policy.value_net = nn.Sequential(policy.value_net, nn.Linear(1, 1))


class Shifted(FlattenExtractor):
    """A features extractor that keeps a tensor which is no buffer."""

    def __init__(self, space: Any, missing: float = 0.0):
        super().__init__(space)
        self.missing, self.offset = missing, th.zeros(3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (replace_activation, r"policy\.mlp_extractor\.policy_net\.1 was ReLU and is Tanh"),
        (freeze, r"policy\.action_net\.weight\.requires_grad was False and is True"),
        (keep_a_tensor, r"policy\.features_extractor\.offset was a tensor, no buffer: \w+ and is a tensor"),
        (draw_otherwise, r"policy\.action_dist was SquashedDiagGaussianDistribution and is DiagGaussianDistribution"),
        (lambda policy: policy.double(), r"dtype was torch\.float64 and is torch\.float32, and \d+ more"),
    ],
)
def test_a_policy_that_was_changed_after_construction(change: Any, says: str, tmp_path: Path) -> None:
    model = small(policy_kwargs={"features_extractor_class": Shifted}).learn(32)
    change(model.policy)
    model.save(tmp_path / "model")
    said = (
        rf"model: the policy was changed after construction\. .*{says}.*policy_kwargs.*custom_objects.*set_parameters"
    )
    with pytest.warns(UserWarning, match=said):
        PPOClip.load(tmp_path / "model")
    with pytest.warns(UserWarning, match=says):
        PPOFixedKL.from_ppo(model)
    again = small(policy_kwargs={"features_extractor_class": Shifted})
    change(again.policy)
    again.set_parameters(tmp_path / "model")
    assert_same_weights(again, model)


def test_a_model_of_sb3_that_was_changed_after_construction() -> None:
    theirs = small(PPO)
    replace_activation(theirs.policy)
    with pytest.warns(UserWarning, match="was ReLU and is Tanh"):
        PPOClip.from_ppo(theirs)


class Layered(ActorCriticPolicy):
    """A policy that makes the change itself."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        add_a_layer(self)


def widen(policy: Any) -> None:
    policy.log_std = nn.Parameter(th.zeros(5))


def count_steps(policy: Any) -> None:
    policy.register_buffer("steps", th.zeros(1))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (widen, r"policy\.log_std\.shape was \[5\] and is \[2\]"),
        (count_steps, r"policy\.steps was Tensor and is missing"),
        (add_a_layer, r"policy\.value_net was Sequential and is Linear, and \d+ more"),
    ],
)
def test_a_policy_with_other_parameters(change: Any, says: str) -> None:
    model = small()
    change(model.policy)
    with pytest.raises(ArgumentError, match=rf"policy was changed after construction\. {says}"):
        PPOClip.load(save(model))


def test_a_policy_class_that_makes_the_change() -> None:
    model = small()
    add_a_layer(model.policy)
    file = save(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = PPOClip.load(file, custom_objects={"policy_class": Layered})
    assert_same_weights(loaded, model)


def two_groups(model: Any) -> Any:
    parameters = [*model.policy.parameters()]
    groups: Any = [{"params": parameters[:2], "lr": 1e-4}, {"params": parameters[2:]}]
    model.policy.optimizer = th.optim.Adam(groups)
    return model


def descending(model: Any) -> Any:
    model.policy.optimizer = th.optim.SGD(model.policy.parameters(), 0.01, momentum=0.9)
    return model


@pytest.mark.parametrize(("replace", "was"), [(two_groups, r"\[2, 11\]"), (descending, "SGD")])
def test_an_optimizer_that_was_replaced(replace: Any, was: str, tmp_path: Path) -> None:
    model = replace(small()).learn(32)
    model.save(tmp_path / "model")
    with pytest.warns(UserWarning, match=rf"the optimizer was replaced: pass it again\. .* was {was} and is"):
        loaded = PPOClip.load(tmp_path / "model", noise_envs(BOX))
    assert_same_weights(loaded, model)
    assert loaded.policy.optimizer.state_dict()["state"] == {}
    loaded.learn(32)
    loaded = replace(loaded)
    loaded.set_parameters(tmp_path / "model")
    assert_same_policy(loaded, model)


def test_arguments_that_ask_for_another_model() -> None:
    file = save(small(policy_kwargs={"optimizer_class": th.optim.SGD}))
    with pytest.raises(ArgumentError, match=r"^updates=SeparateUpdates"):
        PPOClip.load(file, updates=SeparateUpdates())
    kwargs = {"optimizer_class": th.optim.SGD, "activation_fn": nn.ReLU}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = PPOClip.load(file, policy_kwargs=kwargs)
    assert type(loaded.policy.mlp_extractor.policy_net[1]) is nn.ReLU


def compiled(model: Any, part: str | None) -> Any:
    if part is None:
        model.policy = th.compile(model.policy, backend="eager")
    else:
        setattr(model.policy, part, th.compile(getattr(model.policy, part), backend="eager"))
    return model


@pytest.mark.parametrize("part", [None, "mlp_extractor"])
def test_what_is_compiled_takes_parameters_and_gives_them(part: str | None) -> None:
    plain, model = small(seed=4).learn(32), compiled(small(), part)
    model.set_parameters(plain.get_parameters())
    model.set_parameters(save(plain))
    assert_same_policy(PPOClip.load(save(model)), plain)
    plain.set_parameters(model.get_parameters())
    assert model.get_parameters()["policy"].keys() == plain.get_parameters()["policy"].keys()
    with pytest.raises(RuntimeError, match="value_net"):
        model.set_parameters({"policy": {"value_net.bias": th.ones(9)}}, exact_match=False)
    assert_same_policy(PPOClip.load(save(model)), plain)


def trained_compiled() -> list[float]:
    return flat_weights(compiled(small(fast=False), None).learn(64)).tolist()


@pytest.mark.slow
def test_two_processes_train_what_is_compiled() -> None:
    first, second = answers(trained_compiled, 2)
    assert first == second != flat_weights(small()).tolist()


def rewritten(file: io.BytesIO) -> io.BytesIO:
    """Return what a user of SB3 makes of a file who reads and writes its parts."""
    data, parameters, variables = load_from_zip_file(file)
    new = io.BytesIO()
    save_to_zip_file(new, data, parameters, variables)
    return new


@pytest.mark.parametrize("variant", VARIANTS)
def test_files_that_sb3_has_written_again(variant: Any) -> None:
    own = {"kl_coef": 3.0} if "kl_coef" in variant.rules else {}
    model = small(variant, **own).learn(32)
    file = rewritten(save(model))
    loaded = variant.load(file)
    assert_same_policy(loaded, model)
    assert repr(vars(loaded).get("kl_coef")) == repr(vars(model).get("kl_coef"))
    other = PPOFixedKL if variant is PPOAdaptiveKL else PPOAdaptiveKL
    with pytest.raises(OtherClassError, match=rf"is of a {variant.__name__} that SB3 wrote, not of {other.__name__}"):
        other.load(file)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"net_arch": (8, 8)},
        {"net_arch": {"pi": (8,), "vf": (8,)}},
        {"features_extractor_class": lambda space: FlattenExtractor(space)},
        {"optimizer_kwargs": {"betas": np.array([0.8, 0.9])}},
        {"features_extractor_class": Shifted, "features_extractor_kwargs": {"missing": float("nan")}},
    ],
)
def test_the_same_policy_kwargs_may_be_passed_again(kwargs: Any) -> None:
    model = small(policy_kwargs=kwargs)
    assert_same_policy(PPOClip.load(save(model), policy_kwargs=kwargs), model)
