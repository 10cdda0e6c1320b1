"""Which policies are of which kind, and what a model is set up with: its policy and its rollout buffer."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy

from sb3_ppo_variants.arguments.rules import FRACTION, current_value
from sb3_ppo_variants.errors import ArgumentError, installation
from sb3_ppo_variants.kl import divergences_of
from sb3_ppo_variants.layout import is_hybrid, layout_of
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


def _family(cls: type[BasePolicy] | type[RolloutBuffer]) -> Family:
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
    return _family(cls).kind()


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


def make_policy_and_buffer(model: OnPolicyAlgorithm) -> None:
    """Set up a model as SB3 does, with the policy and the rollout buffer of its kind.

    :raises ArgumentError: if the model cannot train the policy, or the buffer cannot hold the policy's rollouts
    """
    model._setup_lr_schedule()
    model.set_random_seed(model.seed)
    buffer_class = _buffer_class(model)
    model.policy = kind_of_class(model.policy_class).make_policy(model).to(model.device)
    kind = kind_of(model.policy)
    make: Any = _for_hybrid_actions(kind, buffer_class) if is_hybrid(model.action_space) else buffer_class
    model.rollout_buffer = make(
        model.n_steps, model.observation_space, layout_of(model.action_space).rows,
        device=model.device, gamma=model.gamma, n_envs=model.n_envs,
        gae_lambda=current_value("gae_lambda", model.gae_lambda, 1.0, FRACTION),
        **kind.buffer_arguments(model), **model.rollout_buffer_kwargs,
    )  # fmt: skip
    model.rollout_buffer_class = buffer_class  # Saved models name this class, and load without this package.
    model._maybe_recommend_cpu()


def _buffer_class(model: OnPolicyAlgorithm) -> type[RolloutBuffer]:
    kind, holds_dicts = kind_of_class(model.policy_class), isinstance(model.observation_space, spaces.Dict)
    suitable = kind.buffers[holds_dicts]
    given = model.rollout_buffer_class or suitable
    fits = issubclass(given, suitable)
    if kind.buffers == PolicyKind.buffers:
        # A user's class may hold dictionaries even if it derives from SB3's class for arrays.
        fits = given is not RolloutBuffer if holds_dicts else not issubclass(given, DictRolloutBuffer)
    if not fits or _family(given) is not _family(suitable):
        raise ArgumentError(
            f"rollout_buffer_class={given} cannot hold rollouts of {model.policy_class.__name__}; "
            f"use {suitable.__name__} or a subclass of it"
        )
    return given


def _for_hybrid_actions(kind: PolicyKind, buffer_class: type[RolloutBuffer]) -> type[RolloutBuffer]:
    """Find the class of buffers for actions that have several parts, if it is another one.

    :raises ArgumentError: if a user's class is not for such actions
    """
    if not kind.hybrid_buffers:
        return buffer_class
    if buffer_class in kind.buffers:
        return kind.hybrid_buffers[kind.buffers.index(buffer_class)]
    if not issubclass(buffer_class, tuple(kind.hybrid_buffers)):
        names = " or ".join(each.__name__ for each in kind.hybrid_buffers)
        raise ArgumentError(
            f"rollout_buffer_class={buffer_class} does not know the masks of Dict and Tuple actions: derive it from "
            f"{names} of {kind.hybrid_buffers[0].__module__}"
        )
    return buffer_class
