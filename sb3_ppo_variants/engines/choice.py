"""The interface of engines, which compute rollouts and updates, and the choice of one."""

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants.collector import Actor
from sb3_ppo_variants.engines.images import Images
from sb3_ppo_variants.engines.native.engine import Native
from sb3_ppo_variants.engines.recognised import ObstacleError
from sb3_ppo_variants.engines.reference import Reference
from sb3_ppo_variants.engines.sequences import Sequences
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.kl import MissingKLError
from sb3_ppo_variants.update import Update, UpdatePlan


class Engine(Protocol):
    """Computes rollouts and updates. An engine has no state of its own."""

    name: str
    """The name of the engine in tables."""
    path: str
    """``"reference"`` or ``"fast"``."""
    how: str
    """What the engine does, as a clause such as ``"PyTorch computes everything"``."""

    def is_for(self, plan: UpdatePlan) -> bool:
        """Whether it is for policies of this kind, such as those with a memory, even if it cannot run the plan."""

    def check(self, plan: UpdatePlan) -> None:
        """Check that it can compute the rollouts and updates of a plan.

        :raises ObstacleError: if it cannot, with the first reason, as a clause that completes "because ..."
        :raises MissingKLError: if it cannot, because the policy's distribution has no known KL
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
ENGINES: tuple[Engine, ...] = (Native(), Images(), Sequences(), Reference())


class Choice(NamedTuple):
    """An engine and the reason for choosing it."""

    engine: Engine
    why: str


def choose(plan: UpdatePlan, fast: bool | Literal["auto"]) -> Choice:
    """Choose the fastest engine that can compute the rollouts and updates of a plan.

    :param fast: the model's argument: ``False`` selects the reference engine, ``True`` requires another one
    :raises ArgumentError: if ``fast=True`` is not possible; the message says why
    """
    *others, reference = ENGINES
    if fast is False:
        return Choice(reference, "fast=False")
    obstacles: list[str] = []
    for engine in others:
        if not engine.is_for(plan):
            continue
        try:
            engine.check(plan)
        except (ObstacleError, MissingKLError) as reason:
            obstacles.append(str(reason))
        else:
            return Choice(engine, ", because ".join([engine.how, *obstacles[:1]]))
    why = obstacles[-1]  # An engine that comes later is for fewer policies.
    if fast is True:
        raise ArgumentError(f"fast=True is not possible, because {why}; use fast='auto' or fast=False")
    return Choice(reference, why)
