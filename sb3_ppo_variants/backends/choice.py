"""The interface of backends, which compute rollouts and updates, and the choice of one."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, Protocol

from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants.backends.images import Images
from sb3_ppo_variants.backends.native.backend import Native
from sb3_ppo_variants.backends.reference import Reference
from sb3_ppo_variants.backends.sequences import Sequences
from sb3_ppo_variants.collector import Actor
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.update import Update, UpdatePlan


class Backend(Protocol):
    """Computes rollouts and updates. A backend has no state of its own."""

    name: str
    """The name of the backend in tables."""
    path: str
    """``"reference"`` or ``"fast"``."""
    how: str
    """What the backend does, as a clause such as ``"PyTorch computes everything"``."""

    def is_for(self, plan: UpdatePlan) -> bool:
        """Whether it is for policies of this kind, such as those with a memory, even if it cannot run the plan."""

    def obstacle(self, plan: UpdatePlan) -> str | None:
        """Find the first reason why this backend cannot run a plan, as a clause that completes "because ...".

        :return: ``None`` if the backend can compute the rollouts and updates of the plan
        """

    def prepared(self, plan: UpdatePlan, updating: bool) -> AbstractContextManager[None]:
        """Set up threads and memory for the highest speed while the context is active.

        :param updating: True for an update, False for a rollout
        """

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        """Begin a rollout.

        :param buffer: the buffer to fill
        :param n_steps: length of the rollout
        """

    @property
    def update(self) -> Callable[[UpdatePlan], Update]:
        """The class of updates, of which each update creates one from its plan."""


# Fastest first. The last one supports everything.
BACKENDS: tuple[Backend, ...] = (Native(), Images(), Sequences(), Reference())


class Choice(NamedTuple):
    """A backend and the reason for choosing it."""

    backend: Backend
    why: str


def choose(plan: UpdatePlan, fast: bool | Literal["auto"]) -> Choice:
    """Choose the fastest backend that can compute the rollouts and updates of a plan.

    :param fast: the model's argument: ``False`` selects the reference backend, ``True`` requires another one
    :raises ArgumentError: if ``fast=True`` is not possible; the message says why
    """
    *others, reference = BACKENDS
    if fast is False:
        return Choice(reference, "fast=False")
    obstacles: list[str] = []
    for backend in others:
        if not backend.is_for(plan):
            continue
        obstacle = backend.obstacle(plan)
        if obstacle is None:
            return Choice(backend, ", because ".join([backend.how, *obstacles[:1]]))
        obstacles.append(obstacle)
    why = obstacles[-1]  # A backend that comes later is for fewer policies.
    if fast is True:
        raise ArgumentError(f"fast=True is not possible, because {why}; use fast='auto' or fast=False")
    return Choice(reference, why)
