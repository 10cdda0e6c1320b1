"""The backend over NumPy arrays."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial

from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants.backends.arrays.actor import ArrayActor
from sb3_ppo_variants.backends.arrays.networks import ROWS_AT_ONCE, ArrayActorCritic
from sb3_ppo_variants.backends.arrays.obstacles import obstacle
from sb3_ppo_variants.backends.arrays.threads import blas_threads
from sb3_ppo_variants.backends.arrays.update import ArrayDescent, ArrayUpdate
from sb3_ppo_variants.backends.remade import UntilRemade
from sb3_ppo_variants.guards.masks import Masks
from sb3_ppo_variants.rollouts.loop import Actor
from sb3_ppo_variants.updates.plan import UpdatePlan


class Arrays:
    """Computes small networks over NumPy arrays, on a CPU."""

    name = "arrays"
    path = "fast"
    how = "the networks are computed over arrays"
    update = staticmethod(partial(ArrayUpdate, ArrayActorCritic, ArrayDescent))

    def obstacle(self, plan: UpdatePlan) -> str | None:
        return obstacle(plan)

    def prepared(self, plan: UpdatePlan, updating: bool) -> AbstractContextManager[None]:
        """Limit BLAS to one thread in updates if that is faster. In rollouts the actor sets the limit."""
        if not updating:
            return nullcontext()
        weights = max(parameter.numel() for parameter in plan.parameters.values())
        return blas_threads(weights, max(plan.batch_size, ROWS_AT_ONCE))()

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        masks = Masks(model) if plan.kind.takes_masks else None
        exploring = model if model.use_sde else None
        actor = ArrayActor(ArrayActorCritic, plan.kind.policy, buffer, n_steps, masks, exploring)
        return UntilRemade(actor, model, plan)
