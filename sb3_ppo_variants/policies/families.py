"""Which policies and rollout buffers are of which kind, and which of them a model is set up with."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy

from sb3_ppo_variants.arguments import FRACTION, Rule, check_names, current_value, list_arguments
from sb3_ppo_variants.distributions import Beta
from sb3_ppo_variants.errors import ArgumentError, installation
from sb3_ppo_variants.kl import divergences_of
from sb3_ppo_variants.layout import is_hybrid
from sb3_ppo_variants.policies.asymmetric import KEYS
from sb3_ppo_variants.policies.head import LOG_STD_INIT, OF_DISTRIBUTION, OF_PARTS, ActionHead
from sb3_ppo_variants.policies.kind import PolicyKind

# Arguments that these dicts must not contain, because SB3 or this module passes them itself.
GIVEN_TO_POLICY = ("observation_space", "action_space", "lr_schedule", "use_sde")
GIVEN_TO_OPTIMIZER = ("params", "lr")
GIVEN_TO_BUFFER = (
    "buffer_size", "observation_space", "action_space", "device", "gamma", "gae_lambda", "n_envs", "hidden_state_shape",
)  # fmt: skip
OF_KEYS = Rule(
    "a list of at least one key of the observations",
    lambda value: isinstance(value, list | tuple) and bool(value) and all(isinstance(key, str) for key in value),
)


def _of_contrib(name: str) -> type[PolicyKind]:
    from sb3_ppo_variants.policies.masked import Masked
    from sb3_ppo_variants.policies.masked_recurrent import MaskedRecurrent
    from sb3_ppo_variants.policies.recurrent import Recurrent

    return {kind.__name__: kind for kind in (Masked, Recurrent, MaskedRecurrent)}[name]


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
        lambda: _of_contrib("MaskedRecurrent"),
    ),
    Family(
        "sb3_contrib.common.recurrent",
        ("MlpLstmPolicy", "CnnLstmPolicy", "MultiInputLstmPolicy"),
        lambda: _of_contrib("Recurrent"),
    ),
    Family(
        "sb3_contrib.common.maskable",
        ("MaskableMlpPolicy", "MaskableCnnPolicy", "MaskableMultiInputPolicy"),
        lambda: _of_contrib("Masked"),
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


def make_policy_and_buffer(model: OnPolicyAlgorithm) -> None:
    """Set up a model as SB3 does, with the policy and the rollout buffer of its kind.

    :raises ArgumentError: if the model cannot train the policy, an entry of ``policy_kwargs`` or
        ``rollout_buffer_kwargs`` is not allowed, or the buffer cannot hold the policy's rollouts
    """
    model._setup_lr_schedule()
    model.set_random_seed(model.seed)
    buffer_class, of_policy = _choose_buffer(model), kind_of_class(model.policy_class)
    check_names("rollout_buffer_kwargs", model.rollout_buffer_kwargs, buffer_class, GIVEN_TO_BUFFER)
    _check_kwargs(model, of_policy)
    model.policy = of_policy.make_policy(_choose_policy(model, of_policy), model, dict(model.policy_kwargs))
    model.policy, kind = model.policy.to(model.device), kind_of(model.policy)
    model.rollout_buffer = buffer_class(
        model.n_steps, model.observation_space, device=model.device, gamma=model.gamma, n_envs=model.n_envs,
        gae_lambda=current_value("gae_lambda", model.gae_lambda, 1.0, FRACTION),
        **kind.buffer_arguments(model), **model.rollout_buffer_kwargs,
    )  # fmt: skip
    model.rollout_buffer_class = buffer_class
    model._maybe_recommend_cpu()


def _check_kwargs(model: OnPolicyAlgorithm, kind: type[PolicyKind]) -> None:
    """Check ``policy_kwargs``. A policy with a constructor of its own may give the arguments other meanings."""
    given, policy_class = model.policy_kwargs, model.policy_class
    own, has_sb3s = list_arguments(policy_class), kind.has_sb3s_constructor(policy_class)
    for name in KEYS:
        if name in given and name not in own:
            if policy_class is not kind.policies[2]:
                raise ArgumentError(
                    f"policy_kwargs[{name!r}] needs Dict observations and one of the policies MultiInputPolicy, "
                    "MaskableMultiInputPolicy, MultiInputLstmPolicy and MaskableMultiInputLstmPolicy"
                )
            OF_KEYS.check(f"policy_kwargs[{name!r}]", given[name])
    also = (*KEYS, *OF_PARTS, *OF_DISTRIBUTION, LOG_STD_INIT, *(kind.rules if has_sb3s else ()))
    check_names("policy_kwargs", given, policy_class, GIVEN_TO_POLICY, also)
    for name in (*OF_PARTS, LOG_STD_INIT):
        if name in given and name not in own and not is_hybrid(model.action_space):
            of_policy = "" if name in OF_PARTS else f" for a {policy_class.__name__}"
            raise ArgumentError(
                f"policy_kwargs[{name!r}] needs a Dict or Tuple action space{of_policy}, but the environment has "
                f"{model.action_space}: leave it out"
            )
    if has_sb3s:
        for name in kind.rules.keys() & given.keys():
            kind.rules[name].check(f"policy_kwargs[{name!r}]", given[name])
        if LOG_STD_INIT in given and given.get("distribution") in ("beta", Beta()):
            raise ArgumentError(
                f"policy_kwargs[{LOG_STD_INIT!r}] has no effect beside a Beta distribution, which has no standard "
                "deviation of its own: leave it out"
            )
        optimizer_class = given.get("optimizer_class", th.optim.Adam)
        of_optimizer = given.get("optimizer_kwargs") or {}
        check_names("policy_kwargs['optimizer_kwargs']", of_optimizer, optimizer_class, GIVEN_TO_OPTIMIZER)


def _choose_policy(model: OnPolicyAlgorithm, kind: type[PolicyKind]) -> Callable[..., Any]:
    """Choose the class of the policy to make. A model and its files name SB3's or sb3-contrib's class."""
    given, made, space = model.policy_kwargs, model.policy_class, model.action_space
    if made in kind.policies[2:] and any(name in given for name in KEYS):
        made = kind.asymmetric
    arguments = list_arguments(made)
    named = [name for name in OF_DISTRIBUTION if name in given and name not in arguments]
    if issubclass(made, ActionHead) or not (named or is_hybrid(space)):
        return made
    if made not in (*kind.policies, kind.asymmetric):
        head = "HybridActions" if is_hybrid(space) else "BoxActions"
        what = f"policy_kwargs[{named[0]!r}]" if named else f"env.action_space={space}"
        raise ArgumentError(
            f"{what} needs a policy that draws such actions: write class Mine({head}, {made.__name__}) with "
            f"{head} from sb3_ppo_variants.policies.head, and pass it"
        )
    # Policies for images and for dictionaries differ from others only in what extracts the features.
    with_head: Callable[..., Any] = kind.hybrid_head if is_hybrid(space) else kind.box_head
    return partial(with_head, features_extractor_class=arguments["features_extractor_class"])


def _choose_buffer(model: OnPolicyAlgorithm) -> type[RolloutBuffer]:
    holds_dicts = isinstance(model.observation_space, spaces.Dict)
    suitable = kind_of_class(model.policy_class).buffers[holds_dicts]
    given = model.rollout_buffer_class or suitable
    fits = issubclass(given, suitable) and issubclass(given, DictRolloutBuffer) == holds_dicts
    if not fits or family_of(given) is not family_of(suitable):
        raise ArgumentError(
            f"rollout_buffer_class={given} cannot hold rollouts of {model.policy_class.__name__}; "
            f"use {suitable.__name__} or a subclass of it"
        )
    return given
