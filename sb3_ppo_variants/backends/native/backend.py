"""The native backend, in C++."""

from contextlib import AbstractContextManager, nullcontext

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
from sb3_ppo_variants.rollouts.loop import Actor
from sb3_ppo_variants.updates.plan import UpdatePlan

ARRAYS = Arrays()


def _explores_with_gsde(plan: UpdatePlan) -> bool:
    return isinstance(plan.kind.policy.action_dist, StateDependentNoiseDistribution)


class Native:
    """Computes small networks with the native library, on one core of a CPU; with gSDE, only their updates."""

    path = "fast"
    how = "the native library computes the networks"

    def obstacle(self, plan: UpdatePlan) -> str | None:
        return obstacle(plan)

    def prepared(self, plan: UpdatePlan, updating: bool) -> AbstractContextManager[None]:
        return ARRAYS.prepared(plan, updating) if _explores_with_gsde(plan) else nullcontext()

    def update(self, plan: UpdatePlan) -> ArrayUpdate:
        make_networks = ArrayActorCritic if _explores_with_gsde(plan) else NativeActorCritic
        return ArrayUpdate(make_networks, NativeDescent, plan)

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        if _explores_with_gsde(plan):
            return ARRAYS.actor(model, plan, buffer, n_steps)
        return NativeActor(plan.kind.policy, buffer, n_steps)
