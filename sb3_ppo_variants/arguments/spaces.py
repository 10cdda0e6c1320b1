"""Checks for spaces that SB3's policies accept but do not handle correctly."""

import numpy as np
from gymnasium import spaces

from sb3_ppo_variants.errors import ArgumentError


def check_start(kind: str, space: spaces.Space) -> None:
    """Check that discrete spaces start at 0, because SB3's policies neither add nor subtract a start.

    :param kind: ``"action"`` or ``"observation"``
    :raises ArgumentError: if a space does not start at 0, naming a wrapper that shifts it
    """
    for name, part in _parts(kind, space).items():
        if isinstance(part, spaces.Discrete | spaces.MultiDiscrete) and np.any(part.start):
            nested = isinstance(space, spaces.Dict)
            advice = "subtract it in a gymnasium.ObservationWrapper" if nested else _wrapped(kind, part)
            raise ArgumentError(f"{name}={part} does not start at 0, as SB3's policies expect: {advice}")


def check_dimensions(observation_space: spaces.Space) -> None:
    """Check that SB3's features extractors can flatten all observations, and that none is empty.

    :raises ArgumentError: if one has no dimensions or no elements, or is ``MultiDiscrete`` with several dimensions
    """
    parts = _parts("observation", observation_space)
    if not parts:
        raise ArgumentError(
            f"env.observation_space={observation_space} has no observations: add one, such as a constant"
        )
    for name, part in parts.items():
        if 0 in (part.shape or ()):
            advice = "leave it out" if len(parts) > 1 else "add one, such as a constant"
            raise ArgumentError(f"{name}={part} has no elements that a policy could observe: {advice}")
        if isinstance(part, spaces.MultiDiscrete) and part.nvec.ndim > 1:
            nested = isinstance(observation_space, spaces.Dict)
            advice = "flatten it in a gymnasium.ObservationWrapper" if nested else _FLATTENED
            raise ArgumentError(f"{name}={part} has several dimensions, which SB3's policies cannot encode: {advice}")
        if isinstance(part, spaces.Box) and part.shape == ():
            nested = isinstance(observation_space, spaces.Dict)
            advice = "a gymnasium.ObservationWrapper" if nested else "gymnasium.wrappers.ReshapeObservation(env, (1,))"
            raise ArgumentError(f"{name}={part} has no dimensions, but SB3's policies need at least one: use {advice}")


def check_for_lstm(observation_space: spaces.Space) -> None:
    """Check that no observation is ``MultiDiscrete``; SB3 counts its features in a type that PyTorch's LSTM rejects.

    :raises ArgumentError: if one is
    """
    for name, part in _parts("observation", observation_space).items():
        if isinstance(part, spaces.MultiDiscrete):
            nested = isinstance(observation_space, spaces.Dict)
            advice = "flatten it in a gymnasium.ObservationWrapper" if nested else _FLATTENED
            raise ArgumentError(f"{name}={part} is not supported by sb3-contrib's policies with LSTMs: {advice}")


_FLATTENED = "wrap the environment in gymnasium.wrappers.FlattenObservation(env)"


def _parts(kind: str, space: spaces.Space) -> dict[str, spaces.Space]:
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
