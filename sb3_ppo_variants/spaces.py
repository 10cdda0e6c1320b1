"""Checks that policies can act in an action space, and read the observations of an environment."""

import math
import re
from collections.abc import Mapping

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy

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
        _check_action(name, part)
    if use_sde and not isinstance(space, spaces.Box):
        raise ArgumentError(f"use_sde=True needs a Box action space, but the environment has {space}")
    if not parts:
        raise ArgumentError(f"env.action_space={space} has no actions: a policy needs at least one dimension")
    if not is_hybrid(space):  # The layout of hybrid actions flattens their parts, and adds their starts.
        _check_is_flat(space)
        _check_start("action", "env.action_space", space)


def _check_action(name: str, space: AnySpace) -> None:
    if not isinstance(space, ACTION_SPACES):
        names = ", ".join(space.__name__ for space in ACTION_SPACES)
        raise ArgumentError(f"{name}={space} is not supported; supported are {names}")
    if 0 in (space.shape or ()):
        raise ArgumentError(f"{name}={space} has no actions: a policy needs at least one dimension")
    if isinstance(space, spaces.Box) and not space.is_bounded():
        which = ", ".join(map(str, np.flatnonzero(~(space.bounded_below & space.bounded_above))))
        raise ArgumentError(
            f"{name}={space} has infinite bounds; PPO needs a Box with finite bounds, which the dimensions {which} lack"
        )


def _check_is_flat(space: AnySpace) -> None:
    shape, flat = space.shape or (), ""
    if isinstance(space, spaces.MultiDiscrete):
        flat = f"MultiDiscrete({space.nvec.flatten().tolist()})"
    elif isinstance(space, spaces.MultiBinary):
        flat = f"MultiBinary({math.prod(shape)})"
    if flat and len(shape) > 1:
        raise ArgumentError(
            f"env.action_space={space} is not flat, as SB3's policies expect: wrap the environment in "
            f"gymnasium.wrappers.TransformAction(env, lambda action: action.reshape({shape}), {flat})"
        )


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
    nested, parts = isinstance(space, spaces.Dict), {}
    if isinstance(space, spaces.Dict):
        parts = {f"env.observation_space[{key!r}]": part for key, part in space.items()}
    for name, part in (parts or {"env.observation_space": space}).items():
        _check_start("observation", name, part, nested)
    if isinstance(space, spaces.Tuple):
        raise ArgumentError(
            f"the environment has observations in {space}, which no policy supports: make them a Dict, as with "
            "gymnasium.wrappers.TransformObservation, and use 'MultiInputPolicy'"
        )
    if not isinstance(policy, str) or ALIAS.fullmatch(policy) is None:
        return
    if "MultiInput" in policy and not nested:
        vector, image = (policy.replace("MultiInput", name) for name in ("Mlp", "Cnn"))
        raise ArgumentError(
            f"policy={policy!r} needs Dict observations, but the environment has {space}: use {vector!r}, or {image!r} "
            "for images"
        )
    if "MultiInput" not in policy and nested:
        suitable = policy.replace("Mlp", "MultiInput").replace("Cnn", "MultiInput")
        raise ArgumentError(f"policy={policy!r} does not support Dict observations: use {suitable!r}")
    if "features_extractor_class" in (policy_kwargs or {}):
        return
    if nested and not parts:
        raise ArgumentError(f"env.observation_space={space} has no observations: add one, such as a constant")
    for name, part in (parts or {"env.observation_space": space}).items():
        _check_shape(name, part, nested, alone=len(parts) < 2, with_lstm="Lstm" in policy)


def _check_shape(name: str, space: AnySpace, nested: bool, alone: bool, with_lstm: bool) -> None:
    """Check that SB3's features extractors can flatten observations, and that there are any."""
    shape = space.shape or ()
    if 0 in shape:
        advice = "add one, such as a constant" if alone else "leave it out"
        raise ArgumentError(f"{name}={space} has no elements that a policy could observe: {advice}")
    if isinstance(space, spaces.Box) and shape == ():
        advice = "a gymnasium.ObservationWrapper" if nested else "gymnasium.wrappers.ReshapeObservation(env, (1,))"
        raise ArgumentError(f"{name}={space} has no dimensions, but SB3's policies need at least one: use {advice}")
    # SB3 counts the features of MultiDiscrete observations in a type that PyTorch's LSTM rejects.
    if isinstance(space, spaces.MultiDiscrete) and (len(shape) > 1 or with_lstm):
        problem = "is not supported by sb3-contrib's policies with LSTMs"
        if len(shape) > 1:
            problem = "has several dimensions, which SB3's policies cannot encode"
        advice = "wrap the environment in gymnasium.wrappers.FlattenObservation(env)"
        if nested:
            advice = "flatten it in a gymnasium.ObservationWrapper"
        raise ArgumentError(f"{name}={space} {problem}: {advice}")
