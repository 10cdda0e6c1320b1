"""Checks that saved parameters of networks and states of optimizers fit a model, before any of them is set.

There is no list of the options and moments of PyTorch's optimizers here. Instead, an optimizer of the same class is
created with the saved options and takes a step, which reveals both. Optimizers from elsewhere may keep moments of any
names and shapes, and a state that belongs to no parameter, so only their numbers are checked.

Each ``_find_faults_...`` yields what is wrong with a state, beginning with what later checks rely on. Only the first
fault is reported.
"""

import inspect
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias

import torch as th
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

from sb3_ppo_variants.errors import DamagedFileError

State: TypeAlias = Mapping[str, Any]
# Parameters that SB3 before 1.7 did not save. SB3 loads files without them, with a warning.
SINCE_1_7 = ("pi_features_extractor.", "vf_features_extractor.")
# PyTorch's key for what a module's get_extra_state() returns, which may be anything.
EXTRA_STATE = "_extra_state"
# State of PyTorch's optimizers that is never negative: step counts, and statistics of squared or absolute values.
NOT_NEGATIVE = ("step", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "square_avg", "acc_delta", "sum")


def check_states(owners: State, given: State, file: str, exact_match: bool = True) -> None:
    """Compare the names and shapes in saved states with those of their owners.

    :param owners: the networks and optimizers by name
    :param exact_match: whether modules must have the same parameters as their states
    :raises DamagedFileError: if a state is missing or does not fit its owner
    """
    for name in {**given, **owners}:  # Names that are no part of the model come first: they may be misspelt.
        if name not in given:
            raise DamagedFileError(file, name, "is missing")
        owner, state = owners.get(name), given[name]
        if not isinstance(owner, th.nn.Module | th.optim.Optimizer):
            raise DamagedFileError(file, name, "is not part of this model")
        if not isinstance(state, Mapping):
            raise DamagedFileError(file, name, "is not a dictionary")
        if isinstance(owner, th.nn.Module):
            faults = _find_faults_of_module(owner, state, exact_match)
        else:
            faults = _find_faults_of_optimizer(owner, state)
        if (fault := next(faults, None)) is not None:
            raise DamagedFileError(file, name, fault)


def has_numbers(values: th.Tensor) -> bool:
    """Whether a tensor holds its numbers one by one, unlike a sparse one, one without memory, or one that repeats them.

    A small file can contain a tensor that repeats a number any number of times, and to read it would fill the memory.
    """
    if values.layout is not th.strided or values.is_meta:
        return False
    return values.numel() * values.element_size() <= values.untyped_storage().nbytes()


def _find_faults_of_module(module: th.nn.Module, given: State, exact_match: bool) -> Iterator[str]:
    expected = module.state_dict()
    if not exact_match:  # The module ignores parameters of other names, and keeps those that are not given.
        given = {key: given.get(key, own) for key, own in expected.items()}
    missing = [key for key in expected if key not in given]
    if missing and all(key.startswith(SINCE_1_7) for key in missing):
        return
    modules = module.named_modules(remove_duplicate=False)
    unchecked = tuple(f"{name}." if name else "" for name, part in modules if _reads_by_itself(part))
    for key in {**expected, **given}:
        if key.startswith(unchecked):
            continue
        if key not in given:
            yield f"has no {key}"
        elif key not in expected:
            yield f"has {key}, which this model does not have"
        elif key.rpartition(".")[2] != EXTRA_STATE:
            yield from _find_faults_of_tensor(key, given[key], expected[key])


def _reads_by_itself(module: th.nn.Module) -> bool:
    """Whether a module reads its state in a way of its own, such as with other shapes."""
    return not type(module)._load_from_state_dict.__module__.startswith("torch.")


def _find_faults_of_tensor(key: str, value: object, expected: th.Tensor) -> Iterator[str]:
    if not isinstance(value, th.Tensor):
        yield f"has a {key} that is not a tensor"
    elif value.shape != expected.shape:
        yield f"has a {key} of shape {tuple(value.shape)}, not {tuple(expected.shape)}"
    elif value.layout is not expected.layout or value.is_meta:
        yield f"has a {key} without numbers"


def _find_faults_of_optimizer(optimizer: th.optim.Optimizer, given: State) -> Iterator[str]:
    if missing := {"state", "param_groups"} - given.keys():
        yield f"has no {min(missing)}"
    groups, states, own_groups = given["param_groups"], given["state"], optimizer.param_groups
    if not isinstance(groups, list) or not all(isinstance(group, Mapping) for group in groups):
        yield "has param_groups that are not dictionaries"
    if [_get_size(group) for group in groups] != [_get_size(group) for group in own_groups]:
        yield "has parameter groups whose sizes differ from this model's"
    indices = [index for group in groups for index in group["params"]]
    if not isinstance(states, Mapping) or not all(isinstance(states.get(index, {}), Mapping) for index in indices):
        yield "has a state that is not a dictionary of dictionaries"
    is_known = type(optimizer).__module__.startswith("torch.optim.") or type(optimizer) is RMSpropTFLike
    for index in states:
        if index not in indices and (is_known or isinstance(index, int)):
            yield f"has a state for parameter {index}, which this model does not have"
    for group, own_group in zip(groups, own_groups, strict=True):
        yield from _find_faults_of_options(group, own_group, is_known)
        for index in group["params"]:
            yield from _find_faults_of_numbers(states.get(index, {}), NOT_NEGATIVE if is_known else ())
        if is_known:
            yield from _find_faults_by_a_step(type(optimizer), group, own_group["params"], states)


def _get_size(group: State) -> int | None:
    return len(group["params"]) if isinstance(group.get("params"), list) else None


def _find_faults_of_options(group: State, own_group: State, is_known: bool) -> Iterator[str]:
    for name, value in group.items():
        for number in value if isinstance(value, list | tuple) and name != "params" else [value]:
            if isinstance(number, th.Tensor) and not has_numbers(number):
                yield f"has a {name} that does not hold its numbers"
            if isinstance(number, Real) and not math.isfinite(number) and (is_known or value != own_group.get(name)):
                yield f"has {name}={value}"


def _find_faults_of_numbers(moments: State, not_negative: Collection[str]) -> Iterator[str]:
    for key, value in moments.items():
        numbers = value if isinstance(value, th.Tensor) else th.tensor(value if isinstance(value, Real) else 0.0)
        if not has_numbers(numbers) or numbers.is_complex():
            yield f"has a {key} that does not hold real numbers"
        odd = numbers[~numbers.isfinite() | ((numbers < 0) if key in not_negative else False)]
        if len(odd) > 0:
            yield f"has a {key} with invalid values, such as {float(odd[0])}"


def _find_faults_by_a_step(
    cls: type[th.optim.Optimizer], group: State, parameters: Sequence[th.Tensor], states: Mapping[int, State]
) -> Iterator[str]:
    """Compare the moments of one group with those of an optimizer with its options after a step on zeros."""
    zeros = [th.nn.Parameter(th.zeros_like(parameter)) for parameter in parameters]
    for parameter in zeros:
        parameter.grad = th.zeros_like(parameter)
    takes = inspect.signature(cls).parameters
    options = {name: value for name, value in group.items() if name in takes and name != "params"}
    if isinstance(rate := options.get("lr"), float) and rate < 0:
        options["lr"] = 0.0  # SB3's linear schedules end below 0, and each update sets the step size anew.
    try:
        rehearsal = cls(zeros, **options)
        rehearsal.step()
    except Exception as error:  # An optimizer may raise anything for unknown options.
        yield f"has options that {cls.__name__} does not take: {error}"
        return
    for index, parameter in zip(group["params"], zeros, strict=True):
        moments, expected = states.get(index, {}), rehearsal.state[parameter]
        if moments and moments.keys() != expected.keys():
            yield f"has {', '.join(moments)} for a parameter, not {', '.join(expected)}"
        for key, value in moments.items():
            if not isinstance(expected.get(key), th.Tensor | Real):
                continue
            if not isinstance(value, th.Tensor | Real):
                yield f"has a {key} that is not a number"
            elif _get_shape(value) != _get_shape(expected[key]):
                yield f"has {key} of shape {_get_shape(value)}, not {_get_shape(expected[key])}"


def _get_shape(value: th.Tensor | Real) -> tuple[int, ...]:
    # Earlier versions of PyTorch count steps in plain numbers, which the optimizer converts.
    return tuple(value.shape) if isinstance(value, th.Tensor) else ()
