"""Checks of what policies and buffers are made with: the entries of their ``kwargs``, the spaces and the device."""

import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.utils import get_device
from torch import nn

from sb3_ppo_variants.arguments.rules import FINITE, FLAG, Rule, instance
from sb3_ppo_variants.distributions import Beta, distribution_of
from sb3_ppo_variants.errors import ArgumentError, refuse
from sb3_ppo_variants.layout import AnySpace, is_hybrid

# Entries of ``policy_kwargs`` with which policies draw continuous actions from other distributions.
OF_DISTRIBUTION = ("distribution", "std")
# Entries for hybrid actions, which have several parts, and one that their continuous parts need with every policy.
OF_PARTS = ("entropy_weights", "only_if")
LOG_STD_INIT = "log_std_init"
# Arguments that these dicts must not contain, because SB3 passes them itself.
GIVEN_TO_POLICY = ("observation_space", "action_space", "lr_schedule", "use_sde")
# Arguments that the kind of sb3-contrib's recurrent policies takes in addition to their constructor.
OF_MEMORY = ("memory",)
RECURRENT = "sb3_contrib.common.recurrent.policies"
# Modules of policies whose constructors give ``policy_kwargs`` the same meaning.
OF_POLICIES = ("stable_baselines3.common.policies", "sb3_contrib.common.maskable.policies", RECURRENT)
GIVEN_TO_BUFFER = (
    "buffer_size", "observation_space", "action_space", "device", "gamma", "gae_lambda", "n_envs", "hidden_state_shape",
)  # fmt: skip
GIVEN_TO_OPTIMIZER = ("params", "lr")
# The aliases that say which observations they are for. An alias of a subclass may stand for any policy.
ALIAS = re.compile(r"(Maskable)?(Mlp|Cnn|MultiInput)(Lstm)?Policy")


def _is_sizes(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and all(isinstance(size, Integral) and not isinstance(size, bool) and int(size) >= 1 for size in value)
    )


def _is_net_arch(value: object) -> bool:
    if isinstance(value, Mapping):
        return set(value) <= {"pi", "vf"} and all(map(_is_sizes, value.values()))
    # SB3 still accepts the dict in a list.
    return _is_sizes(value) or (isinstance(value, list) and len(value) == 1 and _is_net_arch(value[0]))


def _are_keys(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(isinstance(key, str) for key in value)


# The entries of policy_kwargs that say which observations actor and critic see, and the policies that have both. These
# are listed by name, because some are only imported when needed.
KEYS = ("actor_keys", "critic_keys")
OF_KEYS = Rule("a list of at least one key of the observations", _are_keys)
WITH_KEYS = {f"{kind}MultiInputActorCriticPolicy" for kind in ("", "Maskable", "Recurrent", "MaskableRecurrent")}
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
    arguments = dict(arguments or {})
    foreign = arguments.keys() - list_arguments(policy_class).keys()
    keys = [name for name in KEYS if name in foreign]
    of_distribution = {name: arguments[name] for name in OF_DISTRIBUTION if name in foreign}
    by_part = isinstance(of_distribution.get("distribution"), Mapping)
    drawn_from = None if by_part else distribution_of(**of_distribution)
    constructor = policy_class.__init__.__module__
    of_memory = OF_MEMORY if constructor == RECURRENT else ()
    also = (*OF_PARTS, *OF_DISTRIBUTION, LOG_STD_INIT, *of_memory)
    check_names("policy_kwargs", [n for n in arguments if n not in keys], policy_class, GIVEN_TO_POLICY, also)
    for name in keys:
        if policy_class.__name__ not in WITH_KEYS:
            shown = policy if isinstance(policy, str) else policy_class.__name__
            raise ArgumentError(
                f"policy_kwargs[{name!r}] needs Dict observations and one of the policies MultiInputPolicy, "
                f"MaskableMultiInputPolicy, MultiInputLstmPolicy and MaskableMultiInputLstmPolicy, not {shown}"
            )
        OF_KEYS.check(f"policy_kwargs[{name!r}]", arguments[name])
    if constructor not in OF_POLICIES:
        return  # A policy with its own constructor may give these arguments another meaning.
    if isinstance(drawn_from, Beta) and LOG_STD_INIT in arguments:
        raise ArgumentError(
            f"policy_kwargs[{LOG_STD_INIT!r}] has no effect beside distribution={drawn_from}, which has no standard "
            "deviation of its own: leave it out"
        )
    for name, value in arguments.items():
        if name in POLICY_RULES:  # Later versions of SB3 may have further arguments.
            POLICY_RULES[name].check(f"policy_kwargs[{name!r}]", value)
    optimizer_class = arguments.get("optimizer_class", th.optim.Adam)
    optimizer_arguments = arguments.get("optimizer_kwargs") or {}
    check_names("policy_kwargs['optimizer_kwargs']", optimizer_arguments, optimizer_class, GIVEN_TO_OPTIMIZER)


def check_observations(
    policy: str | type[BasePolicy], observation_space: AnySpace, arguments: Mapping[str, object] | None
) -> None:
    """Check that a policy with these ``policy_kwargs`` supports the observations. SB3 makes the remaining checks.

    :raises ArgumentError: if the policy does not support them
    """
    check_start("observation", observation_space)
    if isinstance(observation_space, spaces.Tuple):
        raise ArgumentError(
            f"the environment has observations in {observation_space}, which no policy supports: make them a Dict, as "
            "with gymnasium.wrappers.TransformObservation, and use 'MultiInputPolicy'"
        )
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
        check_dimensions(observation_space, with_lstm="Lstm" in policy)


def check_buffer_arguments(buffer_class: type[RolloutBuffer] | None, arguments: Mapping[str, object] | None) -> None:
    """Check ``rollout_buffer_kwargs``.

    :raises ArgumentError: if an entry is not allowed
    """
    check_names("rollout_buffer_kwargs", arguments or {}, buffer_class or RolloutBuffer, GIVEN_TO_BUFFER)


def check_names(
    argument: str, names: Iterable[str], function: Callable[..., Any], given: Sequence[str], also: Sequence[str] = ()
) -> None:
    """Check that a function or class takes arguments with these names.

    :param argument: name of the argument that contains the names, for the error message
    :param names: the names to check
    :param function: the function or class
    :param given: names that are not allowed, because these arguments are passed by the caller
    :param also: names that the caller takes itself
    :raises ArgumentError: if a name is not allowed
    """
    parameters = inspect.signature(function).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    free = [*dict.fromkeys([*(name for name in parameters if name not in given), *also])]
    for name in names:
        if name in given or not (takes_any or name in free):
            callee = getattr(function, "__name__", repr(function))
            raise ArgumentError(f"{argument} has no entry {name!r}: {callee} takes {', '.join(free) or 'none'}")


def list_arguments(cls: type) -> dict[str, object]:
    """List the arguments of a class with their defaults, including those of its bases if it takes ``**kwargs``."""
    arguments: dict[str, object] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        _, *parameters = inspect.signature(base.__init__).parameters.values()  # type: ignore[misc]
        named = {p.name: p.default for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        arguments = {**named, **arguments}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return arguments


def check_start(kind: str, space: AnySpace) -> None:
    """Check that discrete spaces start at 0, because SB3's policies neither add nor subtract a start.

    The parts of hybrid actions may start anywhere, because their layout adds it.

    :param kind: ``"action"`` or ``"observation"``
    :raises ArgumentError: if a space does not start at 0, naming a wrapper that shifts it
    """
    if kind == "action" and is_hybrid(space):
        return
    for name, part in _parts(kind, space).items():
        if isinstance(part, spaces.Discrete | spaces.MultiDiscrete) and np.any(part.start):
            nested = isinstance(space, spaces.Dict)
            advice = "subtract it in a gymnasium.ObservationWrapper" if nested else _wrapped(kind, part)
            raise ArgumentError(f"{name}={part} does not start at 0, as SB3's policies expect: {advice}")


def check_dimensions(observation_space: AnySpace, with_lstm: bool) -> None:
    """Check that SB3's features extractors can flatten all observations, and that none is empty.

    :param with_lstm: whether the features go to an LSTM. SB3 counts those of ``MultiDiscrete`` observations in a type
        that PyTorch's LSTM rejects
    :raises ArgumentError: if one has no dimensions or no elements, or is ``MultiDiscrete`` with several dimensions, or
        with any if there is an LSTM
    """
    parts, nested = _parts("observation", observation_space), isinstance(observation_space, spaces.Dict)
    if not parts:
        raise ArgumentError(
            f"env.observation_space={observation_space} has no observations: add one, such as a constant"
        )
    for name, part in parts.items():
        if 0 in (part.shape or ()):
            advice = "leave it out" if len(parts) > 1 else "add one, such as a constant"
            raise ArgumentError(f"{name}={part} has no elements that a policy could observe: {advice}")
        if isinstance(part, spaces.Box) and part.shape == ():
            advice = "a gymnasium.ObservationWrapper" if nested else "gymnasium.wrappers.ReshapeObservation(env, (1,))"
            raise ArgumentError(f"{name}={part} has no dimensions, but SB3's policies need at least one: use {advice}")
        if isinstance(part, spaces.MultiDiscrete) and (part.nvec.ndim > 1 or with_lstm):
            problem = "is not supported by sb3-contrib's policies with LSTMs"
            if part.nvec.ndim > 1:
                problem = "has several dimensions, which SB3's policies cannot encode"
            advice = "wrap the environment in gymnasium.wrappers.FlattenObservation(env)"
            if nested:
                advice = "flatten it in a gymnasium.ObservationWrapper"
            raise ArgumentError(f"{name}={part} {problem}: {advice}")


def _parts(kind: str, space: AnySpace) -> dict[str, AnySpace]:
    name = f"env.{kind}_space"
    if isinstance(space, spaces.Dict):
        return {f"{name}[{key!r}]": part for key, part in space.items()}
    return {name: space}


def _wrapped(kind: str, space: spaces.Discrete | spaces.MultiDiscrete) -> str:
    sign = "+" if kind == "action" else "-"
    if isinstance(space, spaces.Discrete):
        start, from_zero = f"{space.start}", f"Discrete({space.n})"
    else:
        start, from_zero = f"np.array({space.start.tolist()})", f"MultiDiscrete({space.nvec.tolist()})"
    transform = f"gymnasium.wrappers.Transform{kind.capitalize()}"
    return f"wrap the environment in {transform}(env, lambda {kind}: {kind} {sign} {start}, {from_zero})"


# Classes are listed by name, because some are only imported when needed. SB3's advice to use the CPU does so too.
SMALL_POLICIES = {"MlpPolicy", "ActorCriticPolicy", "MaskableMlpPolicy", "MaskableActorCriticPolicy"}


def choose_device(
    device: th.device | str,
    policy: str | type[BasePolicy],
    policy_kwargs: Mapping[str, object] | None,
    verbose: int = 0,
) -> th.device:
    """Choose the device to train a policy on.

    :param device: the requested device. ``"auto"`` selects the CPU for an ``MlpPolicy``, masked or not, with the
        default features extractor, because a GPU trains such small networks more slowly. For other policies it selects
        the GPU, if there is one
    :param verbose: 1 to print a message if the CPU is selected although there is a GPU
    :return: the device; as in SB3, the CPU if the requested one is not available, with a warning
    """
    name = policy if isinstance(policy, str) else policy.__name__
    if device == "auto" and name in SMALL_POLICIES and "features_extractor_class" not in (policy_kwargs or {}):
        if verbose >= 1 and th.cuda.is_available():
            print('device="auto" selects the CPU, which trains small networks faster; pass device="cuda" for the GPU')
        return th.device("cpu")
    found = get_device(device)
    if device != "auto" and found.type != th.device(device).type:
        warnings.warn(f"device={str(device)!r} is not available: training on device={str(found)!r} instead")
    return found
