"""Checks that policies can act in an action space, and read the observations of an environment."""

import math
import re
from collections.abc import Mapping

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.layout import AnySpace, is_hybrid, parts_of

ACTION_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Dict, spaces.Tuple)
# The aliases that say which observations they are for. An alias of a subclass may stand for any policy.
ALIAS = re.compile(r"(Maskable)?(Mlp|Cnn|MultiInput)(Lstm)?Policy")


def check_action_space(space: AnySpace, use_sde: bool) -> None:
    """Check that policies can act in an action space.

    :raises ArgumentError: if they cannot
    """
    parts = {"env.action_space" + "".join(f"[{key!r}]" for key in path): part for path, part in parts_of(space)}
    for name, part in parts.items():
        if not isinstance(part, ACTION_SPACES):
            names = ", ".join(space.__name__ for space in ACTION_SPACES)
            raise ArgumentError(f"{name}={part} is not supported; supported are {names}")
        if isinstance(part, spaces.Box) and not part.is_bounded():
            which = ", ".join(map(str, np.flatnonzero(~(part.bounded_below & part.bounded_above))))
            raise ArgumentError(
                f"{name}={part} has infinite bounds; PPO needs a Box with finite bounds, which the dimensions {which} "
                "lack"
            )
    if use_sde and not isinstance(space, spaces.Box):
        raise ArgumentError(f"use_sde=True needs a Box action space, but the environment has {space}")
    for name, part in (parts or {"env.action_space": space}).items():
        if not parts or 0 in (part.shape or ()):
            raise ArgumentError(f"{name}={part} has no actions: a policy needs at least one dimension")
    if is_hybrid(space):
        return  # The layout of hybrid actions flattens their parts, and adds their starts.
    shape = space.shape or ()
    if len(shape) > 1 and isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        flat = f"MultiBinary({math.prod(shape)})"
        if isinstance(space, spaces.MultiDiscrete):
            flat = f"MultiDiscrete({space.nvec.flatten().tolist()})"
        raise ArgumentError(
            f"env.action_space={space} is not flat, as SB3's policies expect: wrap the environment in "
            f"gymnasium.wrappers.TransformAction(env, lambda action: action.reshape({shape}), {flat})"
        )
    _check_start("action", "env.action_space", space)


def _check_start(kind: str, name: str, space: AnySpace, nested: bool = False) -> None:
    """Check that a discrete space starts at 0, because SB3's policies neither add nor subtract a start."""
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete) or not np.any(space.start):
        return
    if isinstance(space, spaces.Discrete):
        start, from_zero = f"{space.start}", f"Discrete({space.n})"
    else:
        start, from_zero = f"np.array({space.start.tolist()})", f"MultiDiscrete({space.nvec.tolist()})"
    shifted = f"lambda {kind}: {kind} {'+' if kind == 'action' else '-'} {start}, {from_zero}"
    advice = f"wrap the environment in gymnasium.wrappers.Transform{kind.capitalize()}(env, {shifted})"
    if nested:
        advice = "subtract it in a gymnasium.ObservationWrapper"
    raise ArgumentError(f"{name}={space} does not start at 0, as SB3's policies expect: {advice}")


def check_observation_space(
    policy: str | type[BasePolicy], space: AnySpace, policy_kwargs: Mapping[str, object] | None
) -> None:
    """Check that a policy supports the observations of an environment. SB3 makes the remaining checks.

    :raises ArgumentError: if it does not
    """
    if isinstance(space, spaces.Tuple):
        raise ArgumentError(
            f"the environment has observations in {space}, which no policy supports: make them a Dict, as with "
            "gymnasium.wrappers.TransformObservation, and use 'MultiInputPolicy'"
        )
    nested, parts = isinstance(space, spaces.Dict), {"env.observation_space": space}
    if isinstance(space, spaces.Dict):
        parts = {f"env.observation_space[{key!r}]": part for key, part in space.items()}
    for name, part in parts.items():
        _check_start("observation", name, part, nested)
    if not isinstance(policy, str) or (alias := ALIAS.fullmatch(policy)) is None:
        return
    if (alias[2] == "MultiInput") != nested:
        suitable = "MultiInput" if nested else "Cnn" if is_image_space(space) else "Mlp"
        raise ArgumentError(
            f"policy={policy!r} needs other observations than the environment has, {space}: use "
            f"{policy.replace(alias[2], suitable)!r}"
        )
    if "features_extractor_class" in (policy_kwargs or {}):
        return
    if not parts:
        raise ArgumentError(f"env.observation_space={space} has no observations: add one, such as a constant")
    for name, part in parts.items():
        _check_shape(name, part, nested, with_lstm=alias[3] is not None)


def _check_shape(name: str, space: AnySpace, nested: bool, with_lstm: bool) -> None:
    """Check that SB3's features extractors can flatten observations, and that there are any."""
    shape = space.shape or ()
    if 0 in shape:
        raise ArgumentError(f"{name}={space} has no elements that a policy could observe: leave it out")
    if isinstance(space, spaces.Box) and shape == ():
        problem, advice = "has no dimensions, but SB3's policies need one", "ReshapeObservation(env, (1,))"
    # SB3 counts the features of MultiDiscrete observations in a type that PyTorch's LSTM rejects.
    elif isinstance(space, spaces.MultiDiscrete) and (len(shape) > 1 or with_lstm):
        whose = "SB3's policies" if len(shape) > 1 else "sb3-contrib's policies with LSTMs"
        problem, advice = f"is not supported by {whose}", "FlattenObservation(env)"
    else:
        return
    advice = "a gymnasium.ObservationWrapper" if nested else f"gymnasium.wrappers.{advice}"
    raise ArgumentError(f"{name}={space} {problem}: wrap the environment in {advice}")
