"""Policies with action masks: sb3-contrib's ``MaskableActorCriticPolicy`` and its subclasses.

Actions may be dictionaries or tuples, of which the policies make a product distribution. A mask then has a boolean for
each outcome of each discrete part, one part after the other; continuous parts have none.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.maskable.distributions import MaskableDistribution, make_masked_proba_distribution
from sb3_contrib.common.maskable.policies import (
    MaskableActorCriticCnnPolicy,
    MaskableActorCriticPolicy,
    MaskableMultiInputActorCriticPolicy,
)
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from sb3_ppo_variants.arguments import FINITE
from sb3_ppo_variants.envs.masks import check_maskable, choices
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.hybrid import HybridDistribution
from sb3_ppo_variants.layout import AnySpace, size_of
from sb3_ppo_variants.policies.asymmetric import Asymmetric
from sb3_ppo_variants.policies.head import LOG_STD_INIT, HybridActions
from sb3_ppo_variants.policies.kind import PolicyKind
from sb3_ppo_variants.saving.plain import Values


class MaskableHybridDistribution(HybridDistribution, MaskableDistribution):  # type: ignore[misc]
    """A product with sb3-contrib's masked distributions for the discrete parts."""

    @staticmethod
    def make_discrete(space: AnySpace) -> Distribution:
        """Create sb3-contrib's masked distribution of a part that is not continuous."""
        return make_masked_proba_distribution(space)

    def apply_masking(self, masks: th.Tensor | np.ndarray | None) -> None:
        """Mask the outcomes of the discrete parts.

        :param masks: one row per state, shape ``(batch, n_masks)``; ``None`` allows everything
        """
        each = zip(self.parts, self._n_outputs, strict=True)
        maskable = [(part, n) for part, n in each if isinstance(part, MaskableDistribution)]
        sizes, of_parts = [n for _, n in maskable], cast(Any, [None] * len(maskable))
        if masks is not None:
            of_parts = th.split(th.as_tensor(masks).reshape(-1, sum(sizes)), sizes, dim=1)
        for (part, _), of_part in zip(maskable, of_parts, strict=True):
            part.apply_masking(of_part)


class MaskableHybridActions(HybridActions):
    """Draws actions with several parts for policies with masks."""

    def _make_distribution(self) -> HybridDistribution:
        return MaskableHybridDistribution(self.layout, **self.of_parts)


class MaskedRows(spaces.MultiDiscrete):
    """Rows of actions with several parts, for sb3-contrib's buffers, which count masks only in spaces that they know.

    :param n_columns: number of columns of a row
    :param n_masks: number of booleans in a mask
    """

    def __init__(self, n_columns: int, n_masks: int):
        super().__init__(np.ones(n_columns, np.int64))
        self.nvec = np.array([n_masks] + [0] * (n_columns - 1))
        # That of the array of actions.
        self.dtype = np.dtype(np.float32)  # type: ignore[assignment]


class MaskableAsymmetricPolicy(Asymmetric, MaskableMultiInputActorCriticPolicy):
    """sb3-contrib's policy with masks, whose actor and critic may see different observations."""


class MaskableGaussianPolicy(MaskableAsymmetricPolicy):
    """The same with standard deviations, which sb3-contrib's methods do not know, but those of SB3's policy do."""

    log_std_init = 0.0
    log_std: nn.Parameter | None
    use_sde = False
    _build = ActorCriticPolicy._build
    _get_action_dist_from_latent = ActorCriticPolicy._get_action_dist_from_latent  # type: ignore[assignment]


class MaskableHybridPolicy(MaskableHybridActions, MaskableGaussianPolicy):  # type: ignore[misc]
    """sb3-contrib's policy for actions that have several parts.

    It also takes ``log_std_init``, which sb3-contrib's policies lack.
    """

    arguments = (*HybridActions.arguments, LOG_STD_INIT)

    def _space_of_base(self) -> AnySpace:
        # sb3-contrib's constructors make a distribution that they know, which _build() replaces.
        return spaces.Discrete(2)

    def _build(self, lr_schedule: Schedule) -> None:
        self.action_space = self.layout.rows
        self.log_std_init = self._given.get(LOG_STD_INIT, self.log_std_init)
        FINITE.check(f"policy_kwargs[{LOG_STD_INIT!r}]", self.log_std_init)
        super()._build(lr_schedule)


class Masked(PolicyKind):
    """Evaluates a policy as sb3-contrib's MaskablePPO does."""

    policies: ClassVar[Sequence[type[BasePolicy]]] = (
        MaskableActorCriticPolicy,
        MaskableActorCriticCnnPolicy,
        MaskableMultiInputActorCriticPolicy,
    )
    aliases: ClassVar[Sequence[str]] = ("MaskableMlpPolicy", "MaskableCnnPolicy", "MaskableMultiInputPolicy")
    asymmetric: ClassVar[type[BasePolicy]] = MaskableAsymmetricPolicy
    hybrid_head: ClassVar[type[BasePolicy]] = MaskableHybridPolicy
    buffers: ClassVar[Sequence[type[RolloutBuffer]]] = (MaskableRolloutBuffer, MaskableDictRolloutBuffer)
    takes_masks = True

    @classmethod
    def make_policy(
        cls, make: Callable[..., ActorCriticPolicy], model: OnPolicyAlgorithm, arguments: Values
    ) -> ActorCriticPolicy:
        if model.use_sde:
            raise ArgumentError("use_sde=True has no effect on a policy with action masks: pass use_sde=False")
        check_maskable(model.action_space)
        return make(model.observation_space, model.action_space, model.lr_schedule, **arguments)

    def buffer_arguments(self, model: OnPolicyAlgorithm) -> Values:
        arguments = super().buffer_arguments(model)
        if isinstance(self.policy, HybridActions):
            n_masks = sum(choices(model.action_space) or ())
            arguments["action_space"] = MaskedRows(size_of(self.policy.layout.rows), n_masks)
        return arguments
