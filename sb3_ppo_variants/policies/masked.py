"""Policies with action masks, without a memory, as sb3-contrib has them, and with one.

Those without are sb3-contrib's ``MaskableActorCriticPolicy`` and its subclasses. Those with a memory are its
``RecurrentActorCriticPolicy`` with the distributions of the others. Their buffers have the columns of both, and their
kind is both kinds.

Actions may be dictionaries or tuples, of which the policies make a product distribution. A mask then has a boolean for
each outcome of each discrete part, one part after the other; continuous parts have none.
"""

from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.maskable.distributions import (
    MaskableBernoulliDistribution,
    MaskableCategoricalDistribution,
    MaskableDistribution,
    MaskableMultiCategoricalDistribution,
)
from sb3_contrib.common.maskable.policies import (
    MaskableActorCriticCnnPolicy,
    MaskableActorCriticPolicy,
    MaskableMultiInputActorCriticPolicy,
)
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.policies import (
    RecurrentActorCriticCnnPolicy,
    RecurrentActorCriticPolicy,
    RecurrentMultiInputActorCriticPolicy,
)
from sb3_contrib.common.recurrent.type_aliases import RecurrentRolloutBufferSamples
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution, MultiCategoricalDistribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.type_aliases import Schedule
from torch.distributions import Categorical

from sb3_ppo_variants.arguments import Values
from sb3_ppo_variants.envs.masks import check_maskable, choices
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.hybrid import HybridDistribution
from sb3_ppo_variants.layout import AnySpace, size_of
from sb3_ppo_variants.policies.head import Asymmetric, AsymmetricPolicy, HybridActions
from sb3_ppo_variants.policies.kind import PolicyKind, register_kind
from sb3_ppo_variants.policies.recurrent import AsymmetricLstmPolicy, Recurrent

# The logit of an action that is not allowed: p is 0, whatever the others are, and p log p is 0 and not NaN. That of
# sb3-contrib, -1e8, may be larger than those of allowed actions.
NOT_ALLOWED = -1e38
AnyMasks: TypeAlias = th.Tensor | np.ndarray | None


class NeverForbidden(MaskableDistribution):
    """A mixin with which sb3-contrib's distributions only draw what masks allow, however low the logits of it are."""

    distribution: Any
    distributions: Sequence[Any] = ()

    def apply_masking(self, masks: AnyMasks) -> None:
        """Mask outcomes; see sb3-contrib."""
        super().apply_masking(masks)  # type: ignore[safe-super]
        for part in self.distributions or [self.distribution]:
            if masks is not None:
                vars(part).pop("probs", None)
                logits = part._original_logits.where(part.masks, NOT_ALLOWED)
                Categorical.__init__(part, logits=logits, validate_args=part._validate_args)


class MaskedChoice(NeverForbidden, MaskableCategoricalDistribution):
    """The distribution of one choice."""


class MaskedChoices(NeverForbidden, MaskableMultiCategoricalDistribution):  # type: ignore[misc]
    """The distribution of several choices, or of coins."""


def masked_distribution(space: AnySpace) -> MaskableDistribution:
    """Create the distribution of actions in a space that can be masked."""
    sizes = choices(space) or []
    return MaskedChoice(*sizes) if isinstance(space, spaces.Discrete) else MaskedChoices(sizes)


def is_masked(distribution: object) -> bool:
    """Whether a distribution is one of sb3-contrib's masked ones or of these, and not of another subclass."""
    return type(distribution) in MASKED


# That of coins is a multi-categorical one with two categories per dimension.
MASKED = {
    MaskableCategoricalDistribution,
    MaskableMultiCategoricalDistribution,
    MaskableBernoulliDistribution,
    MaskedChoice,
    MaskedChoices,
}


class MaskableHybridDistribution(HybridDistribution, MaskableDistribution):  # type: ignore[misc]
    """A product with masked distributions for the discrete parts."""

    @staticmethod
    def make_discrete(space: AnySpace) -> Distribution:
        """Create the masked distribution of a part that is not continuous."""
        return masked_distribution(space)

    def apply_masking(self, masks: AnyMasks) -> None:
        """Mask the outcomes of the discrete parts.

        :param masks: one row per state, shape ``(batch, n_masks)``; ``None`` allows everything
        """
        each = zip(self.parts, self._n_outputs, strict=True)
        maskable = [(part, n) for part, n in each if isinstance(part, MaskableDistribution)]
        sizes = [n for _, n in maskable]
        of_parts: Sequence[th.Tensor | None] = [None] * len(maskable)
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


def _masking(name: str) -> Callable[..., Any]:
    """Make a method that takes masks. They hold for the distributions that the method of the next class makes."""

    def method(self: "TakesMasks", *args: Any, action_masks: AnyMasks = None, **kwargs: Any) -> Any:
        outer = self._action_masks
        # None keeps the masks of an outer call, since some of these methods call others.
        self._action_masks = outer if action_masks is None else action_masks
        try:
            return getattr(super(TakesMasks, self), name)(*args, **kwargs)
        finally:
            self._action_masks = outer

    return method


class TakesMasks(ActorCriticPolicy):
    """A mixin with which methods also take ``action_masks``, as those of sb3-contrib's maskable policies do.

    Masks have one row per step, shape ``(n, number of masks)``; ``None`` allows every action.
    """

    action_dist: Any
    _action_masks: AnyMasks = None
    forward = _masking("forward")
    get_distribution = _masking("get_distribution")
    evaluate_actions = _masking("evaluate_actions")
    predict = _masking("predict")

    def _get_action_dist_from_latent(self, latent_pi: th.Tensor) -> Distribution:
        if isinstance(self.action_dist, MaskableHybridDistribution):
            super()._get_action_dist_from_latent(latent_pi)
            self.action_dist.apply_masking(self._action_masks)
            return self.action_dist
        logits = self.action_net(latent_pi)
        if self._action_masks is not None:
            # sb3-contrib's apply_masking() does the same to normalised logits, and normalises them again.
            allowed = th.as_tensor(self._action_masks, device=logits.device).reshape(logits.shape).bool()
            logits = logits.where(allowed, NOT_ALLOWED)
        distribution: Distribution = self.action_dist.proba_distribution(action_logits=logits)
        return distribution


class MaskableHybridPolicy(MaskableHybridActions, TakesMasks, AsymmetricPolicy):
    """SB3's policy for actions that have several parts."""


@register_kind
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
        policy = make(model.observation_space, model.action_space, model.lr_schedule, **arguments)
        if is_masked(policy.action_dist):
            policy.action_dist = masked_distribution(policy.action_space)
        return policy

    def buffer_arguments(self, model: OnPolicyAlgorithm) -> Values:
        arguments = super().buffer_arguments(model)
        if isinstance(self.policy, HybridActions):
            n_masks = sum(choices(model.action_space) or ())
            arguments["action_space"] = MaskedRows(size_of(self.policy.layout.rows), n_masks)
        return arguments


class MaskableRecurrentActorCriticPolicy(TakesMasks, RecurrentActorCriticPolicy):
    """sb3-contrib's recurrent policy, whose methods also take masks."""

    def _build(self, lr_schedule: Schedule) -> None:
        if isinstance(self.action_dist, MaskableDistribution):  # That of a head.
            super()._build(lr_schedule)
            return
        # SB3 only builds the layers of its own distributions. The masked ones have one output for each outcome.
        self.action_dist = MultiCategoricalDistribution(choices(self.action_space) or [])
        super()._build(lr_schedule)
        self.action_dist = masked_distribution(self.action_space)


class MaskableRecurrentActorCriticCnnPolicy(MaskableRecurrentActorCriticPolicy, RecurrentActorCriticCnnPolicy):
    """The policy for images."""


class MaskableRecurrentMultiInputActorCriticPolicy(
    MaskableRecurrentActorCriticPolicy, RecurrentMultiInputActorCriticPolicy
):
    """The policy for dictionaries."""


class MaskableAsymmetricLstmPolicy(MaskableRecurrentActorCriticPolicy, AsymmetricLstmPolicy):
    """The policy whose actor and critic may see different observations."""


class MaskableHybridLstmPolicy(MaskableHybridActions, MaskableAsymmetricLstmPolicy):
    """The policy for actions that have several parts."""


class MaskableRecurrentSamples(
    namedtuple("MaskableRecurrentSamples", [*RecurrentRolloutBufferSamples._fields, "action_masks"])  # type: ignore[misc]
):
    """A minibatch of padded sequences, as sb3-contrib's buffers yield it, and the masks. Padding allows everything."""


class MaskedSequences(RolloutBuffer):
    """Adds masks to the minibatches of one of sb3-contrib's buffers of sequences."""

    action_masks: np.ndarray
    pad: Callable[..., th.Tensor]

    def get(self, batch_size: int | None = None) -> Iterator[MaskableRecurrentSamples]:  # type: ignore[override]
        """Get the minibatches of one epoch; see sb3-contrib."""
        if self.full and not self.generator_ready:
            self.action_masks = self.swap_and_flatten(self.action_masks)
        yield from super().get(batch_size)  # type: ignore[misc]

    def _get_samples(self, batch_inds: np.ndarray, *others: Any) -> MaskableRecurrentSamples:  # type: ignore[override]
        samples = super()._get_samples(batch_inds, *others)
        # The samples were just padded in the same way.
        masks = self.pad(self.action_masks[batch_inds], padding_value=1.0)
        return MaskableRecurrentSamples(*samples, masks.flatten(0, 1))  # type: ignore[call-arg]


class MaskableRecurrentRolloutBuffer(MaskedSequences, RecurrentRolloutBuffer, MaskableRolloutBuffer):  # type: ignore[misc]
    """sb3-contrib's buffer of sequences with the masks of its maskable buffer."""


class MaskableRecurrentDictRolloutBuffer(MaskedSequences, RecurrentDictRolloutBuffer, MaskableDictRolloutBuffer):  # type: ignore[misc]
    """The same for dictionaries of observations."""


@register_kind
class MaskedRecurrent(Recurrent, Masked):
    """Evaluates a policy as sb3-contrib's RecurrentPPO does, with the masks of its MaskablePPO."""

    policies = (
        MaskableRecurrentActorCriticPolicy,
        MaskableRecurrentActorCriticCnnPolicy,
        MaskableRecurrentMultiInputActorCriticPolicy,
    )
    aliases = ("MaskableMlpLstmPolicy", "MaskableCnnLstmPolicy", "MaskableMultiInputLstmPolicy")
    asymmetric: ClassVar[type[BasePolicy]] = MaskableAsymmetricLstmPolicy
    hybrid_head: ClassVar[type[BasePolicy]] = MaskableHybridLstmPolicy
    buffers = (MaskableRecurrentRolloutBuffer, MaskableRecurrentDictRolloutBuffer)
