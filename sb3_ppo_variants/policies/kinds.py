"""All kinds of policies: which is a policy's, and which policy and rollout buffer a model is set up with."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy, deepcopy
from functools import partial
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy

from sb3_ppo_variants.arguments import FRACTION, check_names, current_value, list_arguments
from sb3_ppo_variants.distributions import Beta
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.layout import is_hybrid
from sb3_ppo_variants.policies.head import KEYS, LOG_STD_INIT, OF_DISTRIBUTION, OF_PARTS, ActionHead
from sb3_ppo_variants.policies.kind import PolicyKind
from sb3_ppo_variants.policies.masked import Masked, MaskedRecurrent
from sb3_ppo_variants.policies.recurrent import Recurrent

# Arguments that these dicts must not contain, because SB3 or this module passes them itself.
GIVEN_TO_POLICY = ("observation_space", "action_space", "lr_schedule", "use_sde")
GIVEN_TO_OPTIMIZER = ("params", "lr")
GIVEN_TO_BUFFER = (
    "buffer_size", "observation_space", "action_space", "device", "gamma", "gae_lambda", "n_envs", "hidden_state_shape",
)  # fmt: skip
# A kind comes before those from whose policies and buffers its own are derived.
KINDS: tuple[type[PolicyKind], ...] = (MaskedRecurrent, Recurrent, Masked, PolicyKind)
ALIASES: Mapping[str, type[BasePolicy]] = {
    alias: policy for kind in reversed(KINDS) for alias, policy in zip(kind.aliases, kind.policies, strict=True)
}


def kind_of_class(cls: type[BasePolicy] | type[RolloutBuffer]) -> type[PolicyKind]:
    """Find the kind of a class of policies or of rollout buffers."""
    for kind in KINDS:
        if issubclass(cls, (*kind.policies, *kind.buffers)):
            return kind
    return PolicyKind


def kind_of(policy: ActorCriticPolicy) -> PolicyKind:
    """Find the kind of a policy, which evaluates it. ``torch.compile`` may have wrapped it."""
    own: ActorCriticPolicy = getattr(policy, "_orig_mod", policy)
    return kind_of_class(type(own))(policy)


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
    of_kind = kind.rules if has_sb3s else {}
    also = (*KEYS, *OF_PARTS, *OF_DISTRIBUTION, LOG_STD_INIT, *of_kind)
    check_names("policy_kwargs", given, policy_class, GIVEN_TO_POLICY, also)
    for name, value in given.items():
        if name in KEYS and name not in own and policy_class is not kind.policies[2]:
            raise ArgumentError(
                f"policy_kwargs[{name!r}] needs Dict observations and one of the policies MultiInputPolicy, "
                "MaskableMultiInputPolicy, MultiInputLstmPolicy and MaskableMultiInputLstmPolicy"
            )
        if name in (*OF_PARTS, LOG_STD_INIT) and name not in own and not is_hybrid(model.action_space):
            of_policy = "" if name in OF_PARTS else f" for a {policy_class.__name__}"
            raise ArgumentError(
                f"policy_kwargs[{name!r}] needs a Dict or Tuple action space{of_policy}, but the environment has "
                f"{model.action_space}: leave it out"
            )
        if name in of_kind:
            of_kind[name].check(f"policy_kwargs[{name!r}]", value)
    if has_sb3s:
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
    kind = kind_of_class(model.policy_class)
    suitable = kind.buffers[holds_dicts]
    given = model.rollout_buffer_class or suitable
    fits = issubclass(given, suitable) and issubclass(given, DictRolloutBuffer) == holds_dicts
    if not fits or kind_of_class(given).buffers != kind.buffers:
        raise ArgumentError(
            f"rollout_buffer_class={given} cannot hold rollouts of {model.policy_class.__name__}; "
            f"use {suitable.__name__} or a subclass of it"
        )
    return given
