"""Policies with action masks: sb3-contrib's ``MaskableActorCriticPolicy`` and its subclasses.

Actions may be dictionaries or tuples, of which the policies make a product distribution. A mask then has a boolean for
each outcome of each discrete part, one part after the other; continuous parts have none.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

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
from sb3_ppo_variants.layout import AnySpace, HybridLayout, size_of
from sb3_ppo_variants.policies.asymmetric import Asymmetric
from sb3_ppo_variants.policies.head import LOG_STD_INIT, HybridActions
from sb3_ppo_variants.policies.kind import PolicyKind


class LinearAndStd(nn.Linear):
    """A linear layer whose outputs are followed by parameters: the logarithms of standard deviations.

    sb3-contrib's policies have no parameter for these, and give only the output of one module to a distribution.

    :param latent_dim: number of inputs
    :param n_outputs: number of outputs of the layer
    :param log_std: the parameters, shape ``(n_stds,)``
    """

    def __init__(self, latent_dim: int, n_outputs: int, log_std: nn.Parameter):
        super().__init__(latent_dim, n_outputs)
        self.log_std = log_std

    def forward(self, latent: th.Tensor) -> th.Tensor:
        """Compute the outputs and the parameters, shape ``(batch, n_outputs + n_stds)``."""
        outputs = super().forward(latent)
        return th.cat([outputs, self.log_std.expand(len(outputs), -1)], dim=1)


class MaskableHybridDistribution(HybridDistribution, MaskableDistribution):
    """A product with sb3-contrib's masked distributions for the discrete parts.

    :param layout: the layout of the actions
    :param log_std_init: the logarithm of the first standard deviations
    :param options: the other arguments of the product
    """

    @staticmethod
    def make_discrete(space: AnySpace) -> Distribution:
        """Create sb3-contrib's masked distribution of a part that is not continuous."""
        return make_masked_proba_distribution(space)

    def __init__(self, layout: HybridLayout, log_std_init: float = 0.0, **options: Any):
        super().__init__(layout, **options)
        self._log_std_init = log_std_init
        each = [*zip(self.parts, self._n_outputs, strict=True)]
        self._n_masks = [n for part, n in each if isinstance(part, MaskableDistribution)]
        has_mask = [isinstance(part, MaskableDistribution) for part, n in each for _ in range(n)]
        self.masked_outputs = np.flatnonzero(has_mask).tolist()
        """Which outputs of the layer have a mask."""

    def proba_distribution_net(self, latent_dim: int) -> nn.Module:  # type: ignore[override]
        """Return a layer for all parts, with the logarithms of the standard deviations if there are any."""
        n_outputs, n_stds = sum(self._n_outputs), sum(self._n_stds)
        if not n_stds:
            return nn.Linear(latent_dim, n_outputs)
        return LinearAndStd(latent_dim, n_outputs, nn.Parameter(th.full((n_stds,), float(self._log_std_init))))

    def proba_distribution(self, action_logits: th.Tensor) -> "MaskableHybridDistribution":  # type: ignore[override]
        """Set what the layer returns, shape ``(batch, n_outputs + n_stds)``."""
        outputs, log_std = th.split(action_logits, [sum(self._n_outputs), sum(self._n_stds)], dim=1)
        super().proba_distribution(outputs, log_std)
        return self

    def apply_masking(self, masks: th.Tensor | np.ndarray | None) -> None:
        """Mask the outcomes of the discrete parts.

        :param masks: one row per state, shape ``(batch, n_masks)``; ``None`` allows everything
        """
        maskable = [part for part in self.parts if isinstance(part, MaskableDistribution)]
        of_parts: Any = [None] * len(maskable)
        if masks is not None:
            of_parts = th.split(th.as_tensor(masks).reshape(-1, sum(self._n_masks)), self._n_masks, dim=1)
        for part, of_part in zip(maskable, of_parts, strict=True):
            part.apply_masking(of_part)


class MaskableHybridActions(HybridActions):
    """Draws actions with several parts for policies with masks.

    It also takes ``log_std_init``, which most of sb3-contrib's policies lack.
    """

    arguments = (*HybridActions.arguments, LOG_STD_INIT)
    log_std_init = 0.0

    @property
    def log_std(self) -> nn.Parameter | None:
        """The logarithms of the standard deviations that are parameters of the policy, if there are any."""
        return self.action_net.log_std if isinstance(self.action_net, LinearAndStd) else None

    def _space_of_base(self) -> AnySpace:
        # sb3-contrib's constructors make a distribution that they know, which _build() replaces.
        return spaces.Discrete(2)

    def _make_distribution(self) -> HybridDistribution:
        return MaskableHybridDistribution(self.layout, self.log_std_init, **self.of_parts)

    def _build(self, lr_schedule: Schedule) -> None:
        self.action_space = self.layout.rows
        self.log_std_init = self._given.get(LOG_STD_INIT, self.log_std_init)
        FINITE.check(f"policy_kwargs[{LOG_STD_INIT!r}]", self.log_std_init)
        super()._build(lr_schedule)


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
    """sb3-contrib's policy for dictionaries and masks, whose actor and critic see different observations."""


class MaskableHybridPolicy(MaskableHybridActions, MaskableActorCriticPolicy):  # type: ignore[misc]
    """sb3-contrib's policy for actions that have several parts."""


class MaskableHybridAsymmetricPolicy(MaskableHybridActions, MaskableAsymmetricPolicy):  # type: ignore[misc]
    """The same, whose actor and critic see different observations."""


class Masked(PolicyKind):
    """Evaluates a policy as sb3-contrib's MaskablePPO does."""

    policies: ClassVar[Sequence[type[BasePolicy]]] = (
        MaskableActorCriticPolicy,
        MaskableActorCriticCnnPolicy,
        MaskableMultiInputActorCriticPolicy,
    )
    aliases: ClassVar[Sequence[str]] = ("MaskableMlpPolicy", "MaskableCnnPolicy", "MaskableMultiInputPolicy")
    asymmetric: ClassVar[type[BasePolicy]] = MaskableAsymmetricPolicy
    hybrid_heads: ClassVar[Sequence[type[BasePolicy]]] = (MaskableHybridPolicy, MaskableHybridAsymmetricPolicy)
    buffers: ClassVar[Sequence[type[RolloutBuffer]]] = (MaskableRolloutBuffer, MaskableDictRolloutBuffer)
    takes_masks = True

    @classmethod
    def make_policy(
        cls, make: Callable[..., ActorCriticPolicy], model: OnPolicyAlgorithm, arguments: dict[str, Any]
    ) -> ActorCriticPolicy:
        if model.use_sde:
            raise ArgumentError("use_sde=True has no effect on a policy with action masks: pass use_sde=False")
        check_maskable(model.action_space)
        return make(model.observation_space, model.action_space, model.lr_schedule, **arguments)

    def rows(self, space: AnySpace) -> AnySpace:
        if not isinstance(self.policy, HybridActions):
            return super().rows(space)
        return MaskedRows(size_of(self.policy.layout.rows), sum(choices(space) or ()))
