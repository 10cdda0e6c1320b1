"""The protocol of backends, which compute rollouts and updates."""

from contextlib import AbstractContextManager
from typing import Protocol

from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants.rollouts.loop import Actor
from sb3_ppo_variants.updates.plan import UpdatePlan
from sb3_ppo_variants.updates.run import Update


class Backend(Protocol):
    """Computes rollouts and updates. A backend has no state of its own."""

    name: str
    """The name of the backend in tables; backends that share a library share its name."""
    path: str
    """``"reference"`` or ``"fast"``."""
    how: str
    """What the backend does, as a clause such as ``"PyTorch computes everything"``."""

    def obstacle(self, plan: UpdatePlan) -> str | None:
        """Return the first reason why this backend cannot run a plan, as a clause that completes "because ...".

        :return: ``None`` if the backend can compute the rollouts and updates of the plan
        """

    def prepared(self, plan: UpdatePlan, updating: bool) -> AbstractContextManager[None]:
        """Set up threads and memory for the highest speed while the context is active.

        :param updating: True for an update, False for a rollout
        """

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        """Return the actor of a rollout.

        :param buffer: the buffer to fill
        :param n_steps: length of the rollout
        """

    def update(self, plan: UpdatePlan) -> Update:
        """Begin an update."""
