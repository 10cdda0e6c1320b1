"""Which algorithm saved a file."""

from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy

from sb3_ppo_variants.errors import DamagedFileError
from sb3_ppo_variants.saving.archive import DATA, NOTE, Archive

# What SB3's PPO has and its other algorithms lack.
OF_PPO = ("n_steps", "batch_size", "n_epochs", "gae_lambda")
# Recurrent and maskable PPO differ from PPO in their policies alone.
OTHER_POLICIES = "sb3_contrib."
NEEDED = ("policy_class", "observation_space", "action_space")


def check_class(cls: type[BaseAlgorithm], archive: Archive) -> None:
    """Check that a class can load a file: one of itself, a subclass or a base class, or of SB3's PPO if it is alike.

    :raises DamagedFileError: if it cannot
    """
    for name in NEEDED:
        if name not in archive.data:
            raise DamagedFileError(archive.name, name, "is missing")
    if NOTE in archive.members:
        classes = archive.note.get("classes")
        if not isinstance(classes, list) or not classes:
            raise DamagedFileError(archive.name, NOTE, "names no class")
        if cls.__name__ not in classes and classes[0] not in [base.__name__ for base in cls.__mro__]:
            fault = f"says that this is a {classes[0]}, not a {cls.__name__}; set_parameters() can read its parameters"
            raise DamagedFileError(archive.name, NOTE, fault)
        return
    missing = [name for name in OF_PPO if name not in archive.data]
    if missing:
        raise DamagedFileError(archive.name, DATA, f"has no {', '.join(missing)}: it is of an algorithm other than PPO")
    policy = archive.data["policy_class"]
    module = str(policy.get("__module__")) if isinstance(policy, dict) else ""
    if module.startswith(OTHER_POLICIES):
        raise DamagedFileError(archive.name, "policy_class", f"is of {module}, not of SB3's PPO")
    if not getattr(cls, "reads_sb3s_ppo", False):
        fault = f"is of SB3's PPO, not of {cls.__name__}; set_parameters() can read its parameters"
        raise DamagedFileError(archive.name, DATA, fault)


def policy_class(cls: type[BaseAlgorithm], archive: Archive, attributes: dict[str, Any]) -> type[BasePolicy]:
    """The class of the policy, which may be given by an alias.

    :raises DamagedFileError: if the algorithm cannot train such a policy
    """
    policy = attributes.get("policy_class")
    policy = cls.policy_aliases.get(policy, policy) if isinstance(policy, str) else policy
    # A file without a note is one of SB3's PPO.
    bound = BasePolicy if NOTE in archive.members else ActorCriticPolicy
    if not (isinstance(policy, type) and issubclass(policy, bound)):
        raise DamagedFileError(archive.name, "policy_class", f"is {policy!r}, not a policy class for {cls.__name__}")
    return policy
