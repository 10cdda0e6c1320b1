"""SB3's policies with other distributions of continuous actions than SB3's."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.policies import (
    ActorCriticCnnPolicy,
    ActorCriticPolicy,
    MultiInputActorCriticPolicy,
)
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from sb3_ppo_variants.arguments.checks import OF_DISTRIBUTION
from sb3_ppo_variants.distributions import (
    ActionDistribution,
    Beta,
    Gaussian,
    SquashedGaussian,
    StateGaussianDistribution,
    Std,
    distribution_of,
)
from sb3_ppo_variants.saving.plain import register_plain


class BoxPolicy(ActorCriticPolicy):
    """SB3's ``ActorCriticPolicy`` with a distribution of continuous actions that the arguments name.

    :param distribution: a name in :data:`sb3_ppo_variants.distributions.NAMES`, or an instance
    :param std: ``"parameter"`` (the default) or ``"state"``, for the names of Gaussians
    :param others: SB3's arguments
    :raises ArgumentError: if the distribution does not fit the action space or the other arguments
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *others: Any,
        distribution: str | ActionDistribution = "gaussian",
        std: Std | None = None,
        **named: Any,
    ):
        self.drawn_from = distribution_of(distribution, std)
        """How actions are drawn, unless gSDE draws them."""
        self.drawn_from.check(action_space, bool(named.get("use_sde")), bool(named.get("squash_output")))
        super().__init__(observation_space, action_space, *others, **named)

    def _build(self, lr_schedule: Schedule) -> None:
        if not self.use_sde:
            self._squash_output = self.drawn_from.bounded
            self.action_dist = self.drawn_from.make(get_action_dim(self.action_space))
        super()._build(lr_schedule)
        if isinstance(self.action_dist, StateGaussianDistribution):
            assert isinstance(self.action_net, nn.Linear)
            self.action_dist.initialize(self.action_net.bias, self.log_std_init)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | {"distribution": self.drawn_from}

    def unscale_action(self, scaled_action: np.ndarray) -> np.ndarray:
        """Scale actions from [-1, 1] to the bounds of the action space, which rounding does not exceed.

        :param scaled_action: shape ``(batch, ...)``
        """
        assert isinstance(self.action_space, spaces.Box)
        unscaled = super().unscale_action(scaled_action)
        within: np.ndarray = np.minimum(np.maximum(unscaled, self.action_space.low), self.action_space.high)
        return within


class BoxCnnPolicy(BoxPolicy, ActorCriticCnnPolicy):
    """The same for images."""


class BoxMultiInputPolicy(BoxPolicy, MultiInputActorCriticPolicy):
    """The same for dictionaries."""


BOXED: Mapping[type[ActorCriticPolicy], type[BoxPolicy]] = {
    ActorCriticPolicy: BoxPolicy,
    ActorCriticCnnPolicy: BoxCnnPolicy,
    MultiInputActorCriticPolicy: BoxMultiInputPolicy,
}


def box_policy_for(cls: Any, policy_kwargs: Mapping[str, object]) -> Callable[..., ActorCriticPolicy]:
    """Return what creates the policy of a model: its class, or for SB3's classes the one that takes a distribution.

    Models keep SB3's class, so files name it too.
    """
    made: Callable[..., ActorCriticPolicy] = BOXED[cls] if cls in BOXED and OF_DISTRIBUTION & {*policy_kwargs} else cls
    return made


register_plain("Gaussian", Gaussian)
register_plain("SquashedGaussian", SquashedGaussian)
register_plain("Beta", Beta)
