"""Checks that a file fits the class that loads it, and that its parameters fit the model."""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy

from sb3_ppo_variants.errors import DamagedFileError, OtherClassError
from sb3_ppo_variants.saving.archive import DATA, MASKABLE, NOTE, Archive
from sb3_ppo_variants.saving.optimizers import fault_of_optimizer

# Attributes of SB3's PPO. None of SB3's other algorithms has all of them.
OF_PPO = ("n_steps", "batch_size", "n_epochs", "gae_lambda")
# For loading, sb3-contrib's recurrent and maskable PPO differ from SB3's PPO only in their policies. Maskable policies
# do not derive from ActorCriticPolicy.
CONTRIB = "sb3_contrib."
NEEDED = ("policy_class", "observation_space", "action_space")
# Parameters that SB3 before 1.7 did not save. SB3 loads files without them, with a warning.
SINCE_1_7 = ("pi_features_extractor.", "vf_features_extractor.")
# PyTorch's key for what a module's get_extra_state() returns, which may be anything.
EXTRA_STATE = "_extra_state"


def check_class(cls: type[BaseAlgorithm], archive: Archive, converts: bool = False) -> None:
    """Check that a class can load a file.

    A class can load files of itself, its subclasses and its base classes. A class with ``reads_sb3s_ppo`` can also load
    files of SB3's and sb3-contrib's PPO.

    :param converts: whether to allow all classes of this package, and SB3's and sb3-contrib's PPO, with any objective
    :raises DamagedFileError: if the file does not say which class it belongs to
    :raises OtherClassError: if the file belongs to a class that ``cls`` cannot load
    """
    for name in NEEDED:
        if name not in archive.data:
            raise DamagedFileError(archive.name, name, "is missing")
    how = f"set_parameters() reads its parameters, and {cls.__name__}.from_ppo() also reads its hyperparameters"
    if NOTE in archive.members:
        classes = archive.note.get("classes")
        if not isinstance(classes, list) or not classes:
            raise DamagedFileError(archive.name, NOTE, "names no class")
        if cls.__name__ not in classes and classes[0] not in [base.__name__ for base in cls.__mro__] and not converts:
            fault = f"says that this is a {classes[0]}, not a {cls.__name__}; {how}"
            raise OtherClassError(archive.name, NOTE, fault)
        return
    missing = [name for name in OF_PPO if name not in archive.data]
    if missing:
        raise OtherClassError(archive.name, DATA, f"has no {', '.join(missing)}, so it is not a file of PPO")
    if not (converts or getattr(cls, "reads_sb3s_ppo", False)):
        whose = "sb3-contrib" if archive.policy_module.startswith(CONTRIB) else "SB3"
        raise OtherClassError(archive.name, DATA, f"is of {whose}'s PPO, not of {cls.__name__}; {how}")


def check_states(cls: type[BaseAlgorithm], archive: Archive) -> None:
    """Check that a file is whole, and warn of weights with which a policy can neither act nor learn.

    :raises DamagedFileError: if a member is missing or cannot be read, or there are variables of another algorithm
    """
    archive.check_is_whole()
    states, variables = archive.states(), archive.variables
    # A user's class may have tensors besides its networks and optimizers.
    has_none = cls._get_torch_save_params.__module__.startswith(__name__.partition(".")[0])
    if variables and has_none:
        raise DamagedFileError(archive.name, "pytorch_variables", f"has {next(iter(variables))}; PPO has none")
    for name, values in states.get("policy", {}).items():
        # Those without numbers are refused when the model exists.
        if isinstance(values, th.Tensor) and _has_numbers(values) and not th.isfinite(values).all():
            warnings.warn(
                f"{archive.name}: {name} of the policy has numbers that are not finite; no training mends them"
            )


def policy_class(cls: type[BaseAlgorithm], archive: Archive, attributes: dict[str, Any]) -> type[BasePolicy]:
    """Return the class of the policy, which may be given by an alias.

    :raises DamagedFileError: if the algorithm cannot train such a policy, or if it ignores the masks of the saved one
    """
    policy = attributes.get("policy_class")
    policy = cls.policy_aliases.get(policy, policy) if isinstance(policy, str) else policy
    # A file without a note comes from SB3's or sb3-contrib's PPO.
    bound = BasePolicy if NOTE in archive.members or _is_maskable(policy) else ActorCriticPolicy
    if not (isinstance(policy, type) and issubclass(policy, bound)):
        raise DamagedFileError(archive.name, "policy_class", f"is {policy!r}, not a policy class for {cls.__name__}")
    if archive.policy_module == MASKABLE and not _is_maskable(policy):
        fault = f"is {policy.__name__}, which ignores the action masks that the saved policy takes"
        raise DamagedFileError(archive.name, "policy_class", f"{fault}; pass one such as 'MaskableMlpPolicy'")
    return policy


def _is_maskable(policy: object) -> bool:
    return isinstance(policy, type) and any(cls.__module__ == MASKABLE for cls in policy.__mro__)


def check_parameters(owners: Mapping[str, Any], given: Mapping[str, Any], file: str, exact_match: bool = True) -> None:
    """Compare the names and shapes in saved states with those of their owners, before any parameter is set.

    :param owners: the networks and optimizers by name
    :param exact_match: whether modules must have the same parameters as their states
    :raises DamagedFileError: if a state is missing or does not fit its owner
    """
    for name in {**owners, **given}:
        if name not in given:
            raise DamagedFileError(file, name, "is missing")
        owner, state = owners.get(name), given[name]
        if not isinstance(owner, th.nn.Module | th.optim.Optimizer):
            raise DamagedFileError(file, name, "is not part of this model")
        if not isinstance(state, Mapping):
            raise DamagedFileError(file, name, "is not a dictionary")
        if isinstance(owner, th.nn.Module):
            fault = _fault_of_module(owner, state if exact_match else _completed(state, owner))
        else:
            fault = fault_of_optimizer(owner, state)
        if fault is not None:
            raise DamagedFileError(file, name, fault)


def _completed(state: Mapping[str, Any], module: th.nn.Module) -> dict[str, Any]:
    """Return what a module has after it has read a state of some of its parameters, among others that it ignores."""
    return {key: state.get(key, own) for key, own in module.state_dict().items()}


def _fault_of_module(module: th.nn.Module, given: Mapping[str, Any]) -> str | None:
    expected = module.state_dict()
    missing = [key for key in expected if key not in given]
    if missing and all(key.startswith(SINCE_1_7) for key in missing):
        return None
    unchecked = tuple(_prefixes_of_own_loading(module))
    for key in [*expected, *given]:
        if key.startswith(unchecked):
            continue
        if key not in given:
            return f"has no {key}"
        if key not in expected:
            return f"has {key}, which this model does not have"
        if key.rpartition(".")[2] == EXTRA_STATE:
            continue
        if not isinstance(given[key], th.Tensor):
            return f"has a {key} that is not a tensor"
        if given[key].shape != expected[key].shape:
            return f"has a {key} of shape {tuple(given[key].shape)}, not {tuple(expected[key].shape)}"
        if given[key].layout is not expected[key].layout or given[key].is_meta:
            return f"has a {key} without numbers"
    return None


def _has_numbers(values: th.Tensor) -> bool:
    return values.layout is th.strided and not values.is_meta


def _prefixes_of_own_loading(module: th.nn.Module) -> Iterator[str]:
    """Yield the prefixes of the keys that modules read in a way of their own, such as with other shapes."""
    for name, part in module.named_modules(remove_duplicate=False):
        if not type(part)._load_from_state_dict.__module__.startswith("torch."):
            yield f"{name}." if name else ""
