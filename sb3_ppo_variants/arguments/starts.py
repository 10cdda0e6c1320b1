"""Where discrete spaces start."""

import numpy as np
from gymnasium import spaces

from sb3_ppo_variants.errors import ArgumentError


def check_start(kind: str, space: spaces.Space) -> None:
    """Check that what is discrete starts at 0, since SB3's policies neither add nor subtract a start.

    :param kind: ``"action"`` or ``"observation"``
    :raises ArgumentError: if it does not, with the wrapper that makes it so
    """
    parts = {f"env.{kind}_space": space}
    if isinstance(space, spaces.Dict):
        parts = {f"env.{kind}_space[{key!r}]": part for key, part in space.items()}
    for name, part in parts.items():
        if isinstance(part, spaces.Discrete | spaces.MultiDiscrete) and np.any(part.start):
            advice = "subtract it in a gymnasium.ObservationWrapper" if part is not space else _wrapped(kind, part)
            raise ArgumentError(f"{name}={part} does not start at 0, which SB3's policies expect: {advice}")


def _wrapped(kind: str, space: spaces.Discrete | spaces.MultiDiscrete) -> str:
    sign = "+" if kind == "action" else "-"
    if isinstance(space, spaces.Discrete):
        start, from_zero = f"{space.start}", f"Discrete({space.n})"
    else:
        start, from_zero = f"np.array({space.start.tolist()})", f"MultiDiscrete({space.nvec.tolist()})"
    transform = f"gymnasium.wrappers.Transform{kind.capitalize()}"
    return f"wrap the environment in {transform}(env, lambda {kind}: {kind} {sign} {start}, {from_zero})"
