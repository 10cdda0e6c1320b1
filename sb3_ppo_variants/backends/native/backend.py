"""The native backend, in C++."""

from contextlib import AbstractContextManager, nullcontext

from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants.backends.native.actor import NativeActor
from sb3_ppo_variants.backends.native.obstacles import obstacle
from sb3_ppo_variants.backends.native.update import NativeUpdate
from sb3_ppo_variants.backends.remade import UntilRemade
from sb3_ppo_variants.rollouts.loop import Actor
from sb3_ppo_variants.updates.plan import UpdatePlan


class Native:
    """Computes small networks with the native library, on one core of a CPU."""

    name = "native"
    path = "fast"
    how = "the native library computes the networks"

    def obstacle(self, plan: UpdatePlan) -> str | None:
        return obstacle(plan)

    def prepared(self, plan: UpdatePlan, updating: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        return UntilRemade(NativeActor(model, plan.kind, buffer, n_steps), model, plan)

    def update(self, plan: UpdatePlan) -> NativeUpdate:
        return NativeUpdate(plan)
