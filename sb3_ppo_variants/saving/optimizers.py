"""Checks that the saved state of an optimizer fits before it is set: parameter groups, options and moments.

There is no list of the options and moments of PyTorch's optimizers here. Instead, an optimizer of the same class is
created with the saved options and takes a step, which reveals both. Optimizers from elsewhere may keep moments of any
names and shapes, and a state that belongs to no parameter, so only their numbers are checked.
"""

import inspect
import math
from collections.abc import Collection, Iterator, Mapping
from numbers import Real
from typing import Any

import torch as th
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

# State of PyTorch's optimizers that is never negative: step counts, and statistics of squared or absolute values.
NOT_NEGATIVE = ("step", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "square_avg", "acc_delta", "sum")


def fault_of_optimizer(optimizer: th.optim.Optimizer, given: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a saved state for this optimizer, or ``None`` if it fits."""
    expected = optimizer.state_dict()
    if missing := [key for key in expected if key not in given]:
        return f"has no {missing[0]}"
    groups, moments = given["param_groups"], given["state"]
    if not isinstance(groups, list) or not all(isinstance(group, Mapping) for group in groups):
        return "has param_groups that are not dictionaries"
    if [_size(group) for group in groups] != [_size(group) for group in expected["param_groups"]]:
        return "has parameter groups whose sizes differ from this model's"
    for group, expected_group in zip(groups, expected["param_groups"], strict=True):
        # Groups saved by older versions of PyTorch have fewer options, but always these.
        if missing := [key for key in ("lr", "params") if key in expected_group and key not in group]:
            return f"has a group without {missing[0]}"
    indices = [index for group in groups for index in group["params"]]
    if not isinstance(moments, Mapping) or not all(isinstance(moments.get(index, {}), Mapping) for index in indices):
        return "has a state that is not a dictionary of dictionaries"
    return next(_faults(optimizer, groups, moments, indices), None)


def _size(group: Mapping[str, Any]) -> int | None:
    return len(group["params"]) if isinstance(group.get("params"), list) else None


def _faults(
    optimizer: th.optim.Optimizer,
    groups: list[Mapping[str, Any]],
    given: Mapping[Any, Mapping[str, Any]],
    indices: Collection[Any],
) -> Iterator[str]:
    is_known = type(optimizer).__module__.startswith("torch.optim.") or type(optimizer) is RMSpropTFLike
    for index in given:
        if index not in indices and (is_known or isinstance(index, int)):
            yield f"has a state for parameter {index}, which this model does not have"
    for group, own_group in zip(groups, optimizer.param_groups, strict=True):
        yield from _faults_of_options(group, {} if is_known else own_group)
    for index in indices:
        yield from _faults_of_moments(given.get(index, {}), NOT_NEGATIVE if is_known else ())
    if is_known:
        yield from _faults_shown_by_a_step(optimizer, groups, given)


def _faults_of_options(group: Mapping[str, Any], may_be: Mapping[str, Any]) -> Iterator[str]:
    for name, value in group.items():
        for number in value if isinstance(value, list | tuple) and name != "params" else [value]:
            if isinstance(number, Real) and not math.isfinite(number) and value != may_be.get(name):
                yield f"has {name}={value}"


def _faults_of_moments(moments: Mapping[str, Any], not_negative: Collection[str]) -> Iterator[str]:
    for key, value in moments.items():
        numbers = value if isinstance(value, th.Tensor) else th.tensor(value if isinstance(value, Real) else 0.0)
        if numbers.layout is not th.strided or numbers.device.type == "meta" or numbers.is_complex():
            yield f"has a {key} that does not hold real numbers"
        elif not numbers.isfinite().all() or (key in not_negative and (numbers < 0).any()):
            yield f"has a {key} with invalid values, such as {_odd(numbers)}"


def _odd(numbers: th.Tensor) -> float:
    """Return the first number that is not finite, or else the smallest."""
    odd = numbers[~numbers.isfinite()]
    return float(odd[0] if len(odd) > 0 else numbers.min())


def _faults_shown_by_a_step(
    optimizer: th.optim.Optimizer, groups: list[Mapping[str, Any]], given: Mapping[Any, Mapping[str, Any]]
) -> Iterator[str]:
    for group, own_group in zip(groups, optimizer.param_groups, strict=True):
        rehearsed: dict[th.Size, dict[str, Any]] = {}
        for index, parameter in zip(group["params"], own_group["params"], strict=True):
            if parameter.shape not in rehearsed:
                try:
                    rehearsed[parameter.shape] = _rehearsed(type(optimizer), group, parameter)
                except Exception as error:  # An optimizer may raise anything for unknown options.
                    yield f"has options that {type(optimizer).__name__} does not take: {error}"
                    return
            if index in given:
                yield from _differences(given[index], rehearsed[parameter.shape])


def _differences(moments: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    if moments and moments.keys() != expected.keys():
        yield f"has {', '.join(moments)} for a parameter, not {', '.join(expected)}"
    for key, value in moments.items():
        if isinstance(expected.get(key), th.Tensor | Real):
            if not isinstance(value, th.Tensor | Real):
                yield f"has a {key} that is not a number"
            elif _shape(value) != _shape(expected[key]):
                yield f"has {key} of shape {_shape(value)}, not {_shape(expected[key])}"


def _shape(value: th.Tensor | Real) -> tuple[int, ...]:
    # Earlier versions of PyTorch count steps in plain numbers, which the optimizer converts.
    return tuple(value.shape) if isinstance(value, th.Tensor) else ()


def _rehearsed(cls: type[th.optim.Optimizer], group: Mapping[str, Any], like: th.Tensor) -> dict[str, Any]:
    """Return the state of an optimizer with these options after one step on a parameter of zeros."""
    parameter = th.nn.Parameter(th.zeros_like(like))
    parameter.grad = th.zeros_like(parameter)
    takes = inspect.signature(cls).parameters
    make: Any = cls  # Each class has its own options.
    rehearsal = make(
        [parameter], **{name: value for name, value in group.items() if name in takes and name != "params"}
    )
    rehearsal.step()
    return dict(rehearsal.state[parameter])
