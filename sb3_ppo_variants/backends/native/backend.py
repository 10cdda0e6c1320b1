"""The native backends, in C++."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial

from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants.backends.arrays.backend import Arrays
from sb3_ppo_variants.backends.arrays.networks import ArrayActorCritic
from sb3_ppo_variants.backends.arrays.update import ArrayUpdate
from sb3_ppo_variants.backends.native.actor import NativeActor
from sb3_ppo_variants.backends.native.networks import NativeActorCritic
from sb3_ppo_variants.backends.native.obstacles import obstacle
from sb3_ppo_variants.backends.native.update import NativeDescent
from sb3_ppo_variants.backends.remade import UntilRemade
from sb3_ppo_variants.rollouts.loop import Actor
from sb3_ppo_variants.updates.plan import UpdatePlan


def _explores_with_gsde(plan: UpdatePlan) -> bool:
    return isinstance(plan.kind.policy.action_dist, StateDependentNoiseDistribution)


class Native:
    """Computes small networks with the native library, on one core of a CPU."""

    name = "native"
    path = "fast"
    how = "the native library computes the networks"
    update = staticmethod(partial(ArrayUpdate, NativeActorCritic, NativeDescent))

    def obstacle(self, plan: UpdatePlan) -> str | None:
        return obstacle(plan) or ("the policy explores with gSDE" if _explores_with_gsde(plan) else None)

    def prepared(self, plan: UpdatePlan, updating: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        return UntilRemade(NativeActor(plan.kind.policy, buffer, n_steps), model, plan)


class NativeUpdates(Arrays):
    """Computes policies that explore with gSDE: rollouts over arrays, updates with the native library."""

    name = "native"
    how = "rollouts are computed over arrays and updates by the native library"
    update = staticmethod(partial(ArrayUpdate, ArrayActorCritic, NativeDescent))

    def obstacle(self, plan: UpdatePlan) -> str | None:
        return obstacle(plan) if _explores_with_gsde(plan) else "the policy does not explore with gSDE"
