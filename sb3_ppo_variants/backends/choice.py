"""Selection of the backend."""

from typing import Literal, NamedTuple

from sb3_ppo_variants.backends.backend import Backend
from sb3_ppo_variants.backends.images import Images
from sb3_ppo_variants.backends.native.backend import Native
from sb3_ppo_variants.backends.reference import Reference
from sb3_ppo_variants.backends.sequences import Sequences, recurrent
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.updates.plan import UpdatePlan

# Fastest first. The last one supports everything.
BACKENDS: tuple[Backend, ...] = (Native(), Images(), Sequences(), Reference())


class Choice(NamedTuple):
    """A backend and the reason for choosing it."""

    backend: Backend
    why: str


def choose(plan: UpdatePlan, fast: bool | Literal["auto"]) -> Choice:
    """Return the fastest backend that can compute the rollouts and updates of a plan.

    :param fast: the model's argument: ``False`` selects the reference backend, ``True`` requires another one
    :raises ArgumentError: if ``fast=True`` is not possible; the message says why
    """
    *others, reference = BACKENDS
    if fast is False:
        return Choice(reference, "fast=False")
    obstacles: list[str] = []
    # Policies with LSTMs have a dedicated backend, so only that one is tried and only its obstacle is reported.
    of_lstm = recurrent(plan.kind) is not None
    for backend in others:
        if isinstance(backend, Sequences) is not of_lstm:
            continue
        obstacle = backend.obstacle(plan)
        if obstacle is None:
            return Choice(backend, ", because ".join([backend.how, *obstacles[:1]]))
        obstacles.append(obstacle)
    if fast is True:
        raise ArgumentError(f"fast=True is not possible, because {obstacles[0]}; use fast='auto' or fast=False")
    return Choice(reference, obstacles[0])
