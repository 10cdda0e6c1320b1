"""What a backend is: where rollouts and updates are computed."""

from contextlib import AbstractContextManager
from typing import Protocol

from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants.rollouts.loop import Actor
from sb3_ppo_variants.updates.plan import UpdatePlan
from sb3_ppo_variants.updates.run import Update


class Backend(Protocol):
    """Where rollouts and updates are computed. A backend has no state of its own."""

    path: str
    """``"reference"`` or ``"fast"``."""
    how: str
    """What it does, as a clause."""

    def obstacle(self, plan: UpdatePlan) -> str | None:
        """The first reason why it cannot make the rollouts and updates of a plan, as a clause; ``None`` if it can."""

    def prepared(self, plan: UpdatePlan, updating: bool) -> AbstractContextManager[None]:
        """Within it threads and memory are as the backend is fastest with.

        :param updating: whether for an update, or for a rollout
        """

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        """What acts during a rollout.

        :param buffer: where the rollout goes
        :param n_steps: length of the rollout
        """

    def update(self, plan: UpdatePlan) -> Update:
        """Begin an update."""
