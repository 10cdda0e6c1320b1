"""The learning curve of a run: at regular steps, the mean return of the most recent episodes."""

from collections.abc import Sequence

import numpy as np

# The score of a run is the mean return of this many of its last episodes.
LAST = 100
# A curve has a point at the end of each of this many equal spans of steps.
SPANS = 100


def trailing(ends: Sequence[float], returns: Sequence[float], steps: int) -> list[float | None]:
    """Return the mean return of the last ``LAST`` episodes, or of all if there were fewer, at the end of each span.

    The last point is the score. A point is ``None`` if no episode has ended yet.

    :param ends: the step at which each episode ended, ascending
    :param returns: the return of each episode
    :param steps: number of steps of the run
    """
    ended = np.searchsorted(ends, np.arange(1, SPANS + 1) * steps / SPANS, side="right")
    # Differences of cumulative sums would be faster, but lose the digits of small returns after huge ones.
    return [round(float(np.mean(returns[max(end - LAST, 0) : end])), 4) if end else None for end in ended]
