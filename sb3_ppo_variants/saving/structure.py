"""What networks and optimizers are made of, which their states do not say: files lose changes after construction."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.save_util import recursive_getattr
from torch import nn

from sb3_ppo_variants.saving.files import sha256

COMPILED = "_orig_mod."
"""What ``torch.compile`` adds to the names of parameters."""
Structure: TypeAlias = Mapping[str, Mapping[str, Any]]


def describe_structure(model: OnPolicyAlgorithm) -> Structure:
    """Describe the modules and the parameters of a policy, and the optimizers, by their names."""
    states = {name: recursive_getattr(model, name) for name in model._get_torch_save_params()[0]}
    parts: dict[str, Any] = {name: part for name, part in states.items() if isinstance(part, th.optim.Optimizer)}
    parts |= {**dict(model.policy.named_modules(prefix="policy")), **dict(model.policy.named_parameters("policy"))}
    # What was compiled comes after its wrapper.
    return {f"{name}.".replace(COMPILED, "")[:-1]: {**_traits(part)} for name, part in parts.items()}


def _traits(part: nn.Module | th.Tensor | th.optim.Optimizer) -> Mapping[str, object]:
    kind = {"class": type(part).__name__}
    if isinstance(part, th.optim.Optimizer):
        return {**kind, "groups": [len(group["params"]) for group in part.param_groups]}
    if isinstance(part, th.Tensor):
        return {**kind, "dtype": str(part.dtype), "requires_grad": part.requires_grad}
    public = {name: value for name, value in vars(part).items() if not name.startswith("_") and name != "training"}
    constants = {name: value for name, value in public.items() if type(value) in (bool, int, float, str)}
    # Such as an average that is not a buffer.
    tensors = {name: value.detach().cpu() for name, value in public.items() if isinstance(value, th.Tensor)}
    contents = {name: tensor.double().numpy().tobytes() for name, tensor in tensors.items()}
    hashes = {name: f"a tensor, no buffer: {sha256(content)[:8]}" for name, content in contents.items()}
    return {**kind, **constants, **hashes}


def find_changes(before: Structure, now: Structure) -> dict[str, str]:
    """Find the parts that differ, and say how. Traits that only one of the structures has do not count."""
    changes = {}
    for name in {**before, **now}:
        old, new = (structure.get(name, {"class": "missing"}) for structure in (before, now))
        for trait in [trait for trait in old if trait in new and repr(old[trait]) != repr(new[trait])]:
            changes[name] = f"{name}{'' if trait == 'class' else f'.{trait}'} was {old[trait]} and is {new[trait]}"
    return changes


def describe_changes(file: str, changes: Mapping[str, str]) -> str:
    """Say that a file does not keep these changes, and what to do."""
    optimizer, (first, *more) = "the optimizer was replaced: pass it again", changes.values()
    what = optimizer if any("optimizer" in name for name in changes) else "the policy was changed after construction"
    return (
        f"{file}: {what}. {first}{f', and {len(more)} more' * bool(more)}; no file keeps such changes. Make "
        "them by policy_kwargs, or in a policy class that you pass as custom_objects={'policy_class': ...} to load(); "
        "or repeat them on a new model, and let set_parameters() read the file"
    )
