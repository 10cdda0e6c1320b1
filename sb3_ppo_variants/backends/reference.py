"""The reference backend: PyTorch, bit-identical to SB3 wherever SB3 computes the same."""

from contextlib import AbstractContextManager, nullcontext

from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants.backends.torch_actor import TorchActor
from sb3_ppo_variants.backends.torch_update import Minibatches, TorchUpdate
from sb3_ppo_variants.rollouts.loop import Actor
from sb3_ppo_variants.updates.plan import UpdatePlan


class Reference:
    """Computes everything with PyTorch, on any device and for any policy, buffer and objective."""

    name = "reference"
    path = "reference"
    how = "PyTorch computes everything"

    def obstacle(self, plan: UpdatePlan) -> str | None:
        return None

    def prepared(self, plan: UpdatePlan, updating: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        return TorchActor(model, plan.kind, buffer)

    def update(self, plan: UpdatePlan) -> TorchUpdate:
        return TorchUpdate(Minibatches, plan)
