"""Which policies and rollout buffers are of which kind."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import cache

import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy

from sb3_ppo_variants.errors import ArgumentError, installation
from sb3_ppo_variants.kl import divergences_of
from sb3_ppo_variants.policies.kind import PolicyKind


def _recurrent() -> type[PolicyKind]:
    from sb3_ppo_variants.policies.recurrent import Recurrent

    return Recurrent


def _masked() -> type[PolicyKind]:
    from sb3_ppo_variants.policies.masked import Masked

    return Masked


def _masked_recurrent() -> type[PolicyKind]:
    from sb3_ppo_variants.policies.masked_recurrent import MaskedRecurrent

    return MaskedRecurrent


@dataclass(frozen=True)
class Family:
    """The policies of one kind. They are identified by name, so that they can be recognised before they are imported.

    :param package: the package that defines the classes of the policies and of their buffers
    :param aliases: the aliases of the policies for vectors, images and dictionaries
    :param load: imports the kind
    """

    package: str
    aliases: tuple[str, ...]
    load: Callable[[], type[PolicyKind]]

    def kind(self) -> type[PolicyKind]:
        """Import and return the kind.

        :raises ArgumentError: if sb3-contrib is needed but not installed, naming the extra to install
        """
        try:
            return self.load()
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("sb3_contrib"):
                raise
            raise ArgumentError(
                f"policy={self.aliases[0]!r} and the like need sb3-contrib: {installation('contrib')}"
            ) from error


# A family comes before those from whose classes its own are derived.
FAMILIES = (
    Family(
        "sb3_ppo_variants.policies.masked_recurrent",
        ("MaskableMlpLstmPolicy", "MaskableCnnLstmPolicy", "MaskableMultiInputLstmPolicy"),
        _masked_recurrent,
    ),
    Family("sb3_contrib.common.recurrent", ("MlpLstmPolicy", "CnnLstmPolicy", "MultiInputLstmPolicy"), _recurrent),
    Family(
        "sb3_contrib.common.maskable", ("MaskableMlpPolicy", "MaskableCnnPolicy", "MaskableMultiInputPolicy"), _masked
    ),
    Family("stable_baselines3", ("MlpPolicy", "CnnPolicy", "MultiInputPolicy"), lambda: PolicyKind),
)


class Aliases(Mapping[str, type[BasePolicy]]):
    """Maps aliases to policy classes, which are imported when they are looked up."""

    def __getitem__(self, alias: str) -> type[BasePolicy]:
        for family in FAMILIES:
            if alias in family.aliases:
                return family.kind().policies[family.aliases.index(alias)]
        raise KeyError(alias)

    def __iter__(self) -> Iterator[str]:
        return (alias for family in reversed(FAMILIES) for alias in family.aliases)

    def __len__(self) -> int:
        return sum(len(family.aliases) for family in FAMILIES)


def family_of(cls: type[BasePolicy] | type[RolloutBuffer]) -> Family:
    """Find the family of a class of policies or of rollout buffers."""
    modules = [base.__module__ for base in cls.__mro__]
    found = (family for family in FAMILIES if any(module.startswith(family.package) for module in modules))
    return next(found, FAMILIES[-1])


def kind_of(policy: ActorCriticPolicy) -> PolicyKind:
    """Find the kind of a policy, which evaluates it. ``torch.compile`` may have wrapped it."""
    own: ActorCriticPolicy = getattr(policy, "_orig_mod", policy)
    return kind_of_class(type(own))(policy)


@cache
def kind_of_class(cls: type[BasePolicy]) -> type[PolicyKind]:
    """Find the kind of the policies of a class."""
    return family_of(cls).kind()


@contextmanager
def first_state(policy: ActorCriticPolicy) -> Iterator[tuple[Distribution, th.Tensor]]:
    """Compute the distribution and the value, shape ``(1, 1)``, in a random first state of an episode.

    While the context is active, the policy is in evaluation mode. After it, it is as it was before.
    """
    space = deepcopy(policy.observation_space)  # Sampling advances the random generator of a space.
    observation, _ = policy.obs_to_tensor(space.sample())
    training, distribution = policy.training, policy.action_dist
    policy.set_training_mode(False)
    policy.action_dist = copy(distribution)  # It keeps the graph of what it computes, and graphs cannot be copied.
    try:
        yield kind_of(policy).of_first_state(observation)
    finally:
        policy.action_dist = distribution
        policy.set_training_mode(training)


def check_kl(policy: ActorCriticPolicy) -> None:
    """Check that the KL of a policy's distributions is known.

    :raises MissingKLError: if it is not
    """
    kind_of(policy).check_distribution()
    divergences_of(policy.action_dist)
