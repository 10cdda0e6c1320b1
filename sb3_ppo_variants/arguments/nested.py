"""Checks of the entries of ``policy_kwargs`` and ``rollout_buffer_kwargs`` that SB3's classes define."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import (
    ActorCriticCnnPolicy,
    ActorCriticPolicy,
    BasePolicy,
    MultiInputActorCriticPolicy,
)
from torch import nn

from sb3_ppo_variants.arguments.rules import FINITE, FLAG, Rule, instance
from sb3_ppo_variants.arguments.spaces import check_dimensions, check_for_lstm, check_start
from sb3_ppo_variants.errors import ArgumentError, refuse

SB3S = (ActorCriticPolicy, ActorCriticCnnPolicy, MultiInputActorCriticPolicy)
# Arguments that these dicts must not contain, because SB3 passes them itself.
GIVEN_TO_POLICY = ("observation_space", "action_space", "lr_schedule", "use_sde")
GIVEN_TO_BUFFER = (
    "buffer_size",
    "observation_space",
    "action_space",
    "device",
    "gamma",
    "gae_lambda",
    "n_envs",
    "hidden_state_shape",
)
GIVEN_TO_OPTIMIZER = ("params", "lr")
# The aliases that say which observations they are for. An alias of a subclass may stand for any policy.
ALIAS = re.compile(r"(Maskable)?(Mlp|Cnn|MultiInput)(Lstm)?Policy")


def _is_sizes(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and all(isinstance(size, Integral) and not isinstance(size, bool) and int(size) >= 1 for size in value)
    )


def _is_net_arch(value: Any) -> bool:
    if isinstance(value, Mapping):
        return set(value) <= {"pi", "vf"} and all(map(_is_sizes, value.values()))
    # SB3 still accepts the dict in a list.
    return _is_sizes(value) or (isinstance(value, list) and len(value) == 1 and _is_net_arch(value[0]))


CLASS = Rule("a class, or a function that makes an instance", lambda v: callable(v) and not isinstance(v, nn.Module))
POLICY_RULES: Mapping[str, Rule] = {
    "net_arch": Rule("sizes >= 1 of hidden layers, or a dict of them by 'pi' and 'vf'", _is_net_arch).or_none(),
    "activation_fn": CLASS,
    "ortho_init": FLAG,
    "log_std_init": FINITE,
    "full_std": FLAG,
    "use_expln": FLAG,
    "squash_output": FLAG,
    "features_extractor_class": CLASS,
    "features_extractor_kwargs": instance("a dict", dict).or_none(),
    "share_features_extractor": FLAG,
    "normalize_images": FLAG,
    "optimizer_class": CLASS,
    "optimizer_kwargs": instance("a dict", dict).or_none(),
}


def check_policy(
    policy: str | type[BasePolicy], aliases: Mapping[str, type[BasePolicy]], arguments: Mapping[str, Any] | None
) -> None:
    """Check the name of a policy and its ``policy_kwargs``.

    :raises ArgumentError: if the name or an entry is not allowed
    """
    if isinstance(policy, str) and policy not in aliases:
        refuse("policy", policy, f"{', '.join(aliases)}, or a policy class")
    policy_class: Any = aliases[policy] if isinstance(policy, str) else policy
    arguments = arguments or {}
    check_names("policy_kwargs", arguments, policy_class, GIVEN_TO_POLICY)
    if policy_class.__init__ not in [cls.__init__ for cls in SB3S]:
        return  # A policy with its own constructor may give these arguments another meaning.
    for name, value in arguments.items():
        if name in POLICY_RULES:  # Later versions of SB3 may have further arguments.
            POLICY_RULES[name].check(f"policy_kwargs[{name!r}]", value)
    optimizer_class = arguments.get("optimizer_class", th.optim.Adam)
    optimizer_arguments = arguments.get("optimizer_kwargs") or {}
    check_names("policy_kwargs['optimizer_kwargs']", optimizer_arguments, optimizer_class, GIVEN_TO_OPTIMIZER)


def check_observations(
    policy: str | type[BasePolicy], observation_space: spaces.Space, arguments: Mapping[str, Any] | None
) -> None:
    """Check that a policy with these ``policy_kwargs`` supports the observations. SB3 makes the remaining checks.

    :raises ArgumentError: if the policy does not support them
    """
    check_start("observation", observation_space)
    if not isinstance(policy, str) or ALIAS.fullmatch(policy) is None:
        return
    takes_dict = "MultiInput" in policy
    if takes_dict and not isinstance(observation_space, spaces.Dict):
        vector, image = (policy.replace("MultiInput", name) for name in ("Mlp", "Cnn"))
        raise ArgumentError(
            f"policy={policy!r} needs Dict observations, but the environment has {observation_space}: "
            f"use {vector!r}, or {image!r} for images"
        )
    if not takes_dict and isinstance(observation_space, spaces.Dict):
        suitable = policy.replace("Mlp", "MultiInput").replace("Cnn", "MultiInput")
        raise ArgumentError(f"policy={policy!r} does not support Dict observations: use {suitable!r}")
    if "features_extractor_class" not in (arguments or {}):
        check_dimensions(observation_space)
        if "Lstm" in policy:
            check_for_lstm(observation_space)


def check_buffer_arguments(buffer_class: type[RolloutBuffer] | None, arguments: Mapping[str, Any] | None) -> None:
    """Check ``rollout_buffer_kwargs``.

    :raises ArgumentError: if an entry is not allowed
    """
    check_names("rollout_buffer_kwargs", arguments or {}, buffer_class or RolloutBuffer, GIVEN_TO_BUFFER)


def check_names(argument: str, names: Iterable[str], function: Callable[..., Any], given: Sequence[str]) -> None:
    """Check that a function or class takes arguments with these names.

    :param argument: name of the argument that contains the names, for the error message
    :param names: the names to check
    :param function: the function or class
    :param given: names that are not allowed, because these arguments are passed by the caller
    :raises ArgumentError: if a name is not allowed
    """
    parameters = inspect.signature(function).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    free = [name for name in parameters if name not in given]
    for name in names:
        if name in given or not (takes_any or name in free):
            callee = getattr(function, "__name__", repr(function))
            raise ArgumentError(f"{argument} has no entry {name!r}: {callee} takes {', '.join(free) or 'none'}")
