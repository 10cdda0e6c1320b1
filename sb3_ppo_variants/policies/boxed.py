"""Policies with other distributions of continuous actions than SB3's."""

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.preprocessing import get_action_dim

from sb3_ppo_variants.arguments.checks import OF_DISTRIBUTION
from sb3_ppo_variants.distributions import Beta, Gaussian, SquashedGaussian, distribution_of
from sb3_ppo_variants.layout import AnySpace
from sb3_ppo_variants.policies.head import ActionHead
from sb3_ppo_variants.saving.plain import register_plain


class BoxActions(ActionHead):
    """Draws continuous actions from a distribution that the arguments name.

    In addition to the arguments of the policy, it takes ``distribution``, a name in
    :data:`sb3_ppo_variants.distributions.NAMES` or an instance, and ``std``, ``"parameter"`` (the default) or
    ``"state"``, for the names of Gaussians.

    :param observation_space: the observations of the environment
    :param action_space: the actions of the environment
    :param others: the other arguments of the policy
    :raises ArgumentError: if the distribution does not fit the action space or the other arguments
    """

    arguments = OF_DISTRIBUTION

    def __init__(self, observation_space: AnySpace, action_space: AnySpace, *others: Any, **named: Any):
        self.drawn_from = distribution_of(**self._take(named))
        """How actions are drawn, unless gSDE draws them."""
        self.drawn_from.check(action_space, bool(named.get("use_sde")), bool(named.get("squash_output")))
        super().__init__(observation_space, action_space, *others, **named)

    def _make_distribution(self) -> Distribution:
        if self.use_sde:
            return self.action_dist
        self._squash_output = self.drawn_from.bounded
        return self.drawn_from.make(get_action_dim(self.action_space))

    def unscale_action(self, scaled_action: np.ndarray) -> np.ndarray:
        """Scale actions from [-1, 1] to the bounds of the action space, which rounding does not exceed.

        :param scaled_action: shape ``(batch, ...)``
        """
        assert isinstance(self.action_space, spaces.Box)
        unscaled = super().unscale_action(scaled_action)
        within: np.ndarray = np.minimum(np.maximum(unscaled, self.action_space.low), self.action_space.high)
        return within


register_plain("Gaussian", Gaussian)
register_plain("SquashedGaussian", SquashedGaussian)
register_plain("Beta", Beta)
