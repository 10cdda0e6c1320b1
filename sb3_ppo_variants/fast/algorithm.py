"""The choice between the two paths."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeVar

from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.base import Coefficients, PPOBase, Rule
from sb3_ppo_variants.base.update import Update
from sb3_ppo_variants.errors import refuse
from sb3_ppo_variants.fast.choice import Choice

Method = TypeVar("Method", bound=Callable[..., Any])

FAST = Rule("True, False or 'auto'", lambda value: isinstance(value, bool) or value == "auto")


def written_out(policy_loss: Method) -> Method:
    """Mark a ``_policy_loss`` that is equation 6, 7 or 8, as its coefficients say: the fast path has its gradient.

    A subclass with an objective of its own does not inherit the mark, and takes the reference path.
    """
    vars(policy_loss)["written_out"] = True
    return policy_loss


class FastPPO(PPOBase):
    """PPO that rolls out and updates over arrays where it can: the same computation without PyTorch's graphs.

    Arguments are those of :class:`~sb3_ppo_variants.base.PPOBase` and:

    :param fast: ``"auto"`` takes the fast path where the policy allows it and the reference path otherwise, True
        insists on the fast path, False takes the reference path
    :raises ArgumentError: if ``fast=True`` is not possible, saying why
    """

    # Models that were saved before this argument existed have none.
    fast: bool | Literal["auto"] = "auto"

    def __init__(self, *args: Any, fast: bool | Literal["auto"], **arguments: Any):
        FAST.check("fast", fast)
        self.fast = fast
        super().__init__(*args, **arguments)

    @classmethod
    def _rules(cls) -> dict[str, Rule]:
        return {**super()._rules(), "fast": FAST}

    def _setup_model(self) -> None:
        super()._setup_model()
        # Refuses fast=True now, and not at the first rollout.
        self._choice()

    # Fast code is imported where it is used, so that what is off is not imported either.

    def _choice(self) -> Choice:
        """The path to take and why, asked anew at every rollout and update, since a policy may be changed.

        :raises ArgumentError: if ``fast=True`` is not possible
        """
        if self.fast is False:
            return Choice("reference", "fast=False")
        choice = self._possible()
        if self.fast is True and choice.path == "reference":
            refuse("fast", True, f"False or 'auto' here, because {choice.why}")
        return choice

    def _possible(self) -> Choice:
        from sb3_ppo_variants.fast.support import choose

        if not getattr(type(self)._policy_loss, "written_out", False):
            return Choice("reference", f"{type(self).__name__} has a _policy_loss of its own")
        return choose(self.policy, self.rollout_buffer)

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """Fill the buffer with a rollout; see SB3.

        :return: False if the callback ended it early
        """
        path = self._choice().path
        if path == "arrays":
            from sb3_ppo_variants.fast.rollout import collect_rollouts

            return collect_rollouts(self, env, callback, rollout_buffer, n_rollout_steps)
        with self._prepared_for(path):
            return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)

    def train(self) -> None:
        """Update the policy with the rollout in the buffer."""
        with self._prepared_for(self._choice().path):
            super().train()

    def _prepared_for(self, path: str) -> AbstractContextManager[None]:
        """Memory and threads as the path is fastest with."""
        if path == "images":
            from sb3_ppo_variants.fast.images import channels_last

            return channels_last(self.policy)
        if path == "arrays":
            from sb3_ppo_variants.fast.threads import blas_threads
            from sb3_ppo_variants.fast.trained import ROWS_AT_ONCE

            return blas_threads(self.policy, max(self.batch_size, ROWS_AT_ONCE))()
        return nullcontext()

    def _begin_update(self, coefficients: Coefficients) -> Update:
        path, _ = self._choice()
        if path == "arrays":
            from sb3_ppo_variants.fast.update import NumpyUpdate

            return NumpyUpdate(self, coefficients)
        if path == "images":
            from sb3_ppo_variants.fast.images import ImageUpdate

            return ImageUpdate(self, coefficients)
        return super()._begin_update(coefficients)

    def _setup_learn(self, *args: Any, **arguments: Any) -> tuple[int, BaseCallback]:
        if self.verbose >= 1:
            path, why = self._choice()
            print(f"Training on the {'reference' if path == 'reference' else 'fast'} path: {why}")
        return super()._setup_learn(*args, **arguments)
