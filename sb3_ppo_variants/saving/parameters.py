"""Whether saved parameters fit a model's networks and optimizers."""

from collections.abc import Mapping
from typing import Any

import torch as th

from sb3_ppo_variants.errors import DamagedFileError

# What SB3 before 1.7 did not save; it reads such files with a warning.
SINCE_1_7 = ("pi_features_extractor.", "vf_features_extractor.")


def check_parameters(owners: Mapping[str, Any], given: Mapping[str, Any], file: str) -> None:
    """Compare names and shapes before any parameter is set.

    :param owners: modules and optimizers by the names that their states are saved under
    :param given: their saved states
    :param file: what errors call the file
    :raises DamagedFileError: if a state is missing or is that of another model
    """
    for name in {**owners, **given}:
        if name not in given:
            raise DamagedFileError(file, name, "is missing")
        if name not in owners:
            raise DamagedFileError(file, name, "is not part of this model")
        if not isinstance(given[name], Mapping):
            raise DamagedFileError(file, name, "is not a dictionary")
        fault_of = _fault_of_optimizer if isinstance(owners[name], th.optim.Optimizer) else _fault_of_module
        if (fault := fault_of(owners[name], given[name])) is not None:
            raise DamagedFileError(file, name, fault)


def _fault_of_module(module: th.nn.Module, given: Mapping[str, Any]) -> str | None:
    expected = module.state_dict()
    missing = [key for key in expected if key not in given]
    if missing and all(key.startswith(SINCE_1_7) for key in missing):
        return None
    for key in [*expected, *given]:
        if key not in given:
            return f"has no {key}"
        if key not in expected:
            return f"has {key}, which this model does not have"
        if not isinstance(given[key], th.Tensor):
            return f"has a {key} that is not a tensor"
        if given[key].shape != expected[key].shape:
            return f"has a {key} of shape {tuple(given[key].shape)}, not {tuple(expected[key].shape)}"
    return None


def _fault_of_optimizer(optimizer: th.optim.Optimizer, given: Mapping[str, Any]) -> str | None:
    expected = optimizer.state_dict()
    if missing := [key for key in expected if key not in given]:
        return f"has no {missing[0]}"
    groups = given["param_groups"]
    if not isinstance(groups, list) or not all(isinstance(group, Mapping) for group in groups):
        return "has param_groups that are not dictionaries"
    if [_size(group) for group in groups] != [_size(group) for group in expected["param_groups"]]:
        return "has param_groups of other sizes than this model's"
    for group, expected_group in zip(groups, expected["param_groups"], strict=True):
        # The groups of older versions of PyTorch had fewer options, but always these.
        if missing := [key for key in ("lr", "params") if key in expected_group and key not in group]:
            return f"has a group without {missing[0]}"
    return _fault_of_moments(optimizer, given["state"], [i for group in groups for i in group["params"]])


def _size(group: Mapping[str, Any]) -> int | None:
    return len(group["params"]) if isinstance(group.get("params"), list) else None


def _fault_of_moments(optimizer: th.optim.Optimizer, given: Any, indices: list[int]) -> str | None:
    tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    shapes = {index: tensor.shape for index, tensor in zip(indices, tensors, strict=True)}
    if not isinstance(given, Mapping) or not all(isinstance(moments, Mapping) for moments in given.values()):
        return "has a state that is not a dictionary of dictionaries"
    for index, moments in given.items():
        if index not in shapes:
            return f"has a state for parameter {index}, which this model does not have"
        for key, tensor in moments.items():
            # A step count has no dimensions.
            if isinstance(tensor, th.Tensor) and tensor.dim() > 0 and tensor.shape != shapes[index]:
                return f"has {key} of shape {tuple(tensor.shape)} for a parameter of shape {tuple(shapes[index])}"
    if len({frozenset(moments) for moments in given.values()}) > 1:
        return "does not have the same moments for all parameters"
    return None
