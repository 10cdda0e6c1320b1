"""Settings of the fuzz targets, and the spaces that they draw.

``make test`` runs the same few examples each time. If ``FUZZ_SECONDS`` is set, as by ``make fuzz``, each run draws more
and different examples. Failures are kept in ``.hypothesis``, and later runs try them first.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

ENDLESS = "FUZZ_SECONDS" in os.environ


def fuzz(examples: int, endless: int) -> Callable[[Any], Any]:
    """Return a decorator that sets the number of examples in ``make test`` and in a round of ``make fuzz``."""
    every: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
    every["phases"] = [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
    if ENDLESS:
        return settings(max_examples=endless, print_blob=True, **every)
    return settings(max_examples=examples, derandomize=True, database=None, **every)


SHAPES: list[tuple[int, ...]] = [(1,), (3,), (2, 2), (1, 2, 1)]


def boxes(shapes: list[tuple[int, ...]]) -> st.SearchStrategy[spaces.Box]:
    dtypes = st.sampled_from([np.float32, np.float64])
    return st.builds(lambda shape, dtype: spaces.Box(-1, 1, shape, dtype), st.sampled_from(shapes), dtypes)


NUMBERS = st.builds(spaces.Discrete, st.integers(1, 5))
SEVERAL = st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 4), min_size=1, max_size=3))
BITS = st.builds(spaces.MultiBinary, st.integers(1, 4))
BOXES = boxes([(), *SHAPES])
MASKABLE_SPACES = st.one_of(NUMBERS, SEVERAL, BITS)
ACTION_SPACES = BOXES | MASKABLE_SPACES
BYTES = st.builds(lambda n: spaces.Box(0, 255, (n,), np.uint8), st.integers(1, 4))


def in_dicts(plain: st.SearchStrategy[spaces.Space]) -> st.SearchStrategy[spaces.Dict]:
    return st.builds(spaces.Dict, st.dictionaries(st.sampled_from("abc"), plain, min_size=1, max_size=3))


WITHOUT_SEVERAL = st.one_of(boxes(SHAPES), BYTES, NUMBERS, BITS)
DICTS = in_dicts(WITHOUT_SEVERAL | SEVERAL)
OBSERVATION_SPACES = WITHOUT_SEVERAL | SEVERAL | DICTS
FOR_LSTM = WITHOUT_SEVERAL | in_dicts(WITHOUT_SEVERAL)
