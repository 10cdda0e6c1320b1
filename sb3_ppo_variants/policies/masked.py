"""Policies with action masks: sb3-contrib's ``MaskableActorCriticPolicy`` and its subclasses."""

from collections.abc import Sequence
from typing import ClassVar

from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.maskable.policies import (
    MaskableActorCriticCnnPolicy,
    MaskableActorCriticPolicy,
    MaskableMultiInputActorCriticPolicy,
)
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.guards.masks import check_maskable, choices
from sb3_ppo_variants.policies.asymmetric import Asymmetric
from sb3_ppo_variants.policies.head import HybridActions
from sb3_ppo_variants.policies.kind import Extras, PolicyKind
from sb3_ppo_variants.policies.masked_structured import MaskableHybridActions, OfHybridActions
from sb3_ppo_variants.rollouts.buffer import with_parameters


class MaskableAsymmetricPolicy(Asymmetric, MaskableMultiInputActorCriticPolicy):
    """sb3-contrib's policy for dictionaries and masks, whose actor and critic see different observations."""


class Masked(PolicyKind):
    """Evaluates a policy as sb3-contrib's MaskablePPO does."""

    policies: ClassVar[Sequence[type[BasePolicy]]] = (
        MaskableActorCriticPolicy,
        MaskableActorCriticCnnPolicy,
        MaskableMultiInputActorCriticPolicy,
    )
    asymmetric: ClassVar[type[BasePolicy]] = MaskableAsymmetricPolicy
    hybrid: ClassVar[type[HybridActions]] = MaskableHybridActions  # type: ignore[type-abstract]
    buffers: ClassVar[Sequence[type[RolloutBuffer]]] = (MaskableRolloutBuffer, MaskableDictRolloutBuffer)
    takes_masks = True

    @classmethod
    def make_policy(cls, model: OnPolicyAlgorithm) -> ActorCriticPolicy:
        if model.use_sde:
            raise ArgumentError("use_sde=True has no effect on a policy with action masks: pass use_sde=False")
        check_maskable(model.action_space)
        make, arguments = cls.policy_maker(model), cls.policy_arguments(model)
        return make(model.observation_space, model.action_space, model.lr_schedule, **arguments)

    def buffer_class(self, chosen: type[RolloutBuffer]) -> type[RolloutBuffer]:
        return with_parameters(chosen, *([OfHybridActions] if isinstance(self.policy, HybridActions) else []))

    def buffer_arguments(self, model: OnPolicyAlgorithm) -> Extras:
        if not isinstance(self.policy, HybridActions):
            return super().buffer_arguments(model)
        return {"n_masks": sum(choices(model.action_space) or ())}
