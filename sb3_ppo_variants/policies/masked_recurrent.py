"""Policies with action masks and a memory, which sb3-contrib has only one at a time.

They are sb3-contrib's ``RecurrentActorCriticPolicy`` with the distributions of its ``MaskableActorCriticPolicy``. Their
buffers have the columns of both, and their kind is both kinds.
"""

from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch as th
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.maskable.distributions import MaskableDistribution, make_masked_proba_distribution
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.policies import (
    RecurrentActorCriticCnnPolicy,
    RecurrentActorCriticPolicy,
    RecurrentMultiInputActorCriticPolicy,
)
from sb3_contrib.common.recurrent.type_aliases import RecurrentRolloutBufferSamples
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution, MultiCategoricalDistribution
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import Schedule

from sb3_ppo_variants.envs.masks import choices
from sb3_ppo_variants.policies.masked import MaskableHybridActions, MaskableHybridDistribution, Masked
from sb3_ppo_variants.policies.recurrent import AsymmetricLstmPolicy, Recurrent

# The logit of an action that is not allowed, as in sb3-contrib: p is 0, and p log p is 0 and not NaN.
NOT_ALLOWED = -1e8


class MaskableRecurrentActorCriticPolicy(RecurrentActorCriticPolicy):
    """sb3-contrib's recurrent policy, whose methods also take ``action_masks``, as those of its maskable policy do.

    Masks have one row per step, shape ``(n, number of masks)``; ``None`` allows every action.
    """

    action_dist: Any
    _action_masks: th.Tensor | np.ndarray | None = None

    def _build(self, lr_schedule: Schedule) -> None:
        if isinstance(self.action_dist, MaskableDistribution):  # That of a head.
            super()._build(lr_schedule)
            return
        # SB3 only builds the layers of its own distributions. The masked ones have one output for each outcome.
        self.action_dist = MultiCategoricalDistribution(choices(self.action_space) or [])
        super()._build(lr_schedule)
        self.action_dist = make_masked_proba_distribution(self.action_space)

    @contextmanager
    def _masked(self, action_masks: th.Tensor | np.ndarray | None) -> Iterator[None]:
        """Mask the distributions that sb3-contrib's methods make while the context is active.

        ``None`` keeps the masks of an outer context, since some of these methods call others.
        """
        outer = self._action_masks
        self._action_masks = outer if action_masks is None else action_masks
        try:
            yield
        finally:
            self._action_masks = outer

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
        distribution = self.action_dist.proba_distribution(action_logits=logits)
        assert isinstance(distribution, Distribution)
        return distribution

    def forward(self, *args: Any, action_masks: np.ndarray | None = None, **kwargs: Any) -> Any:
        """Act for one step; see sb3-contrib."""
        with self._masked(action_masks):
            return super().forward(*args, **kwargs)

    def get_distribution(self, *args: Any, action_masks: th.Tensor | np.ndarray | None = None, **kwargs: Any) -> Any:
        """Get the distribution of the allowed actions, and the next states; see sb3-contrib."""
        with self._masked(action_masks):
            return super().get_distribution(*args, **kwargs)

    def evaluate_actions(self, *args: Any, action_masks: th.Tensor | None = None, **kwargs: Any) -> Any:
        """Compute values, log-probabilities and entropies of a minibatch; see sb3-contrib."""
        with self._masked(action_masks):
            return super().evaluate_actions(*args, **kwargs)

    def predict(self, *args: Any, action_masks: np.ndarray | None = None, **kwargs: Any) -> Any:
        """Choose actions and the next states; see sb3-contrib."""
        with self._masked(action_masks):
            return super().predict(*args, **kwargs)


class MaskableRecurrentActorCriticCnnPolicy(MaskableRecurrentActorCriticPolicy, RecurrentActorCriticCnnPolicy):
    """The policy for images."""

    __init__ = RecurrentActorCriticCnnPolicy.__init__


class MaskableRecurrentMultiInputActorCriticPolicy(
    MaskableRecurrentActorCriticPolicy, RecurrentMultiInputActorCriticPolicy
):
    """The policy for dictionaries."""

    __init__ = RecurrentMultiInputActorCriticPolicy.__init__


class MaskableAsymmetricLstmPolicy(MaskableRecurrentActorCriticPolicy, AsymmetricLstmPolicy):
    """The policy whose actor and critic may see different observations."""

    __init__ = AsymmetricLstmPolicy.__init__


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


class MaskedRecurrent(Recurrent, Masked):
    """Evaluates a policy as sb3-contrib's RecurrentPPO does, with the masks of its MaskablePPO."""

    policies = (
        MaskableRecurrentActorCriticPolicy,
        MaskableRecurrentActorCriticCnnPolicy,
        MaskableRecurrentMultiInputActorCriticPolicy,
    )
    aliases = (
        "MaskableMlpLstmPolicy",
        "MaskableCnnLstmPolicy",
        "MaskableMultiInputLstmPolicy",
    )
    asymmetric: ClassVar[type[BasePolicy]] = MaskableAsymmetricLstmPolicy
    hybrid_head: ClassVar[type[BasePolicy]] = MaskableHybridLstmPolicy
    buffers = (MaskableRecurrentRolloutBuffer, MaskableRecurrentDictRolloutBuffer)
