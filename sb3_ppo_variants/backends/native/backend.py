"""The native backend, in C++."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial

from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants.backends.arrays.update import ArrayUpdate
from sb3_ppo_variants.backends.native.actor import NativeActor
from sb3_ppo_variants.backends.native.networks import NativeActorCritic
from sb3_ppo_variants.backends.native.obstacles import obstacle
from sb3_ppo_variants.backends.native.update import NativeDescent
from sb3_ppo_variants.rollouts.loop import Actor
from sb3_ppo_variants.updates.plan import UpdatePlan


class Native:
    """Computes small networks with the native library, on one core of a CPU."""

    path = "fast"
    how = "the native library computes the networks"
    update = staticmethod(partial(ArrayUpdate, NativeActorCritic, NativeDescent))

    def obstacle(self, plan: UpdatePlan) -> str | None:
        return obstacle(plan)

    def prepared(self, plan: UpdatePlan, updating: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        return NativeActor(plan.kind.policy, buffer, n_steps)
