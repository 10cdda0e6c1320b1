"""Action heads: mixins that make the distribution of a policy's actions.

SB3's and sb3-contrib's policies make the distribution that SB3 has for an action space. A head makes another one. Each
policy kind has a class with each head, and a policy of your own takes one too: ``class Mine(BoxActions, MyPolicy)``.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from sb3_ppo_variants.distributions import StateGaussianDistribution, distribution_of
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.hybrid import HybridDistribution, continuous_parts
from sb3_ppo_variants.layout import AnySpace, HybridLayout, HybridSpace, float_bounds
from sb3_ppo_variants.policies.asymmetric import AsymmetricPolicy
from sb3_ppo_variants.saving.plain import Values

# The entries of policy_kwargs with which policies draw continuous actions from other distributions, those about the
# parts of hybrid actions, and one that the continuous parts of these need with every policy.
OF_DISTRIBUTION = ("distribution", "std")
OF_PARTS = ("entropy_weights", "only_if")
LOG_STD_INIT = "log_std_init"


class ActionHead(BasePolicy):
    """Makes the distribution of a policy's actions. It comes before the class of the policy."""

    arguments: ClassVar[tuple[str, ...]]
    """The names of the arguments that it takes beside those of the policy."""
    action_net: nn.Module
    log_std_init: float

    def _take(self, named: Values) -> Values:
        """Remove its own arguments from those of a constructor, and return them."""
        self._given = {name: named.pop(name) for name in self.arguments if name in named}
        return self._given

    @abstractmethod
    def _make_distribution(self) -> Distribution:
        """Make the distribution, whose layer the policy then makes."""

    def _build(self, lr_schedule: Schedule) -> None:
        made = self.action_dist = self._make_distribution()
        super()._build(lr_schedule)  # type: ignore[misc]
        if self._given and self.action_dist is not made:
            raise ArgumentError(
                f"policy_kwargs[{next(iter(self._given))!r}] has no effect on a {type(self).__bases__[-1].__name__}, "
                f"which makes a {type(self.action_dist).__name__} of its own: leave it out"
            )
        if isinstance(self.action_dist, StateGaussianDistribution | HybridDistribution):
            assert isinstance(self.action_net, nn.Linear)
            self.action_dist.initialize(self.action_net.bias, self.log_std_init)

    def _get_constructor_parameters(self) -> dict[str, object]:
        return {**super()._get_constructor_parameters(), **self._given}


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
        low, high = float_bounds(self.action_space)
        # SB3 subtracts integers in their type, where they may wrap.
        within: np.ndarray = np.clip(low + 0.5 * (scaled_action + 1.0) * (high - low), low, high)
        return within


class HybridActions(ActionHead):
    """Draws actions that are elements of a ``Dict`` or ``Tuple`` space.

    To the class of the policy, actions are rows of numbers; :meth:`predict` returns elements of the space. In addition
    to the arguments of the policy, it takes ``entropy_weights`` and ``only_if`` of
    :class:`~sb3_ppo_variants.hybrid.HybridDistribution`, and ``distribution`` and ``std`` of
    :func:`~sb3_ppo_variants.hybrid.continuous_parts`.

    :param observation_space: the observations of the environment
    :param action_space: the actions of the environment
    :param others: the other arguments of the policy
    :raises ArgumentError: if these do not fit the parts of the actions
    """

    arguments: ClassVar[tuple[str, ...]] = (*OF_PARTS, *OF_DISTRIBUTION)

    def __init__(self, observation_space: AnySpace, action_space: HybridSpace, *others: Any, **named: Any):
        given = self._take(named)
        drawn = continuous_parts(HybridLayout(action_space).parts, *map(given.get, OF_DISTRIBUTION))
        self.layout = HybridLayout(action_space, [name for name, each in drawn.items() if each.bounded])
        """How actions are laid out in rows."""
        self.of_parts: Values = {**{name: given.get(name) for name in OF_PARTS}, "continuous": drawn}
        """The arguments of the distribution."""
        super().__init__(observation_space, self._space_of_base(), *others, **named)

    def _space_of_base(self) -> AnySpace:
        """Return the action space for the constructor of the policy's class."""
        return self.layout.rows

    def _make_distribution(self) -> HybridDistribution:
        return HybridDistribution(self.layout, **self.of_parts)

    def _get_constructor_parameters(self) -> Values:
        return {**super()._get_constructor_parameters(), "action_space": self.layout.space}

    def predict(self, *args: Any, **kwargs: Any) -> tuple[Any, tuple[np.ndarray, ...] | None]:
        """Predict the actions for observations; see SB3.

        :return: an element of the action space, or a list with one for each environment, and the next states
        """
        rows, states = super().predict(*args, **kwargs)
        if rows.ndim == 1:
            return self.layout.for_envs(rows[None])[0], states
        return self.layout.for_envs(rows), states


class BoxPolicy(BoxActions, AsymmetricPolicy):
    """SB3's policy with a named distribution of continuous actions."""


class HybridPolicy(HybridActions, AsymmetricPolicy):
    """SB3's policy for actions that have several parts."""
