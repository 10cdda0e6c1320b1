"""What networks and optimizers are made of, which their states do not say: files lose changes after construction."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch as th
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.save_util import recursive_getattr
from torch import nn

from sb3_ppo_variants.arguments import Values
from sb3_ppo_variants.saving.files import sha256

COMPILED = "_orig_mod."
"""What ``torch.compile`` adds to the names of parameters."""
Structure: TypeAlias = Mapping[str, Values]


def describe_structure(model: OnPolicyAlgorithm) -> Structure:
    """Describe the modules and tensors of a policy, and the optimizers of a model, by their names."""
    states = {name: recursive_getattr(model, name) for name in model._get_torch_save_params()[0]}
    parts: dict[str, Any] = {name: part for name, part in states.items() if isinstance(part, th.optim.Optimizer)}
    for of_kind in (model.policy.named_modules, model.policy.named_parameters, model.policy.named_buffers):
        parts |= dict(of_kind(prefix="policy"))
    # What was compiled comes after its wrapper.
    return {f"{name}.".replace(COMPILED, "")[:-1]: {**_traits(part)} for name, part in parts.items()}


def _traits(part: nn.Module | th.Tensor | th.optim.Optimizer) -> Values:
    traits: Values = {"class": type(part).__name__}
    if isinstance(part, th.optim.Optimizer):
        return {**traits, "groups": [len(group["params"]) for group in part.param_groups]}
    if isinstance(part, th.Tensor):
        return {**traits, "dtype": str(part.dtype), "shape": [*part.shape], "requires_grad": part.requires_grad}
    for name, value in vars(part).items():
        if name.startswith("_") or name == "training":
            continue
        if type(value) in (bool, int, float, str):
            traits[name] = value
        elif isinstance(value, Distribution):
            traits[name] = type(value).__name__
        elif isinstance(value, th.Tensor):  # Such as an average.
            content = value.detach().cpu().double().numpy().tobytes()
            traits[name] = f"a tensor, no buffer: {sha256(content)[:8]}"
    return traits


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
