"""Policies whose actions are dictionaries or tuples: SB3's and sb3-contrib's, with a product distribution."""

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from sb3_ppo_variants.arguments.checks import LOG_STD_INIT, OF_DISTRIBUTION, OF_PARTS
from sb3_ppo_variants.distributions import Std
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.hybrid import HybridDistribution, Named, OnlyIf, Weights, continuous_parts
from sb3_ppo_variants.layout import AnySpace, HybridLayout, HybridSpace, is_hybrid
from sb3_ppo_variants.policies.boxed import BOXED, BoxPolicy


class HybridActions(BasePolicy):
    """Comes before the class of a policy among the bases of another, see :func:`with_hybrid_actions`.

    To the class of the policy, actions are rows of numbers; :meth:`predict` returns elements of the space.

    :param observation_space: the observations of the environment
    :param action_space: the actions of the environment
    :param entropy_weights: see :class:`~sb3_ppo_variants.hybrid.HybridDistribution`
    :param only_if: likewise
    :param distribution: how continuous parts are drawn: see :func:`~sb3_ppo_variants.hybrid.continuous_parts`
    :param std: likewise
    :param others: the other arguments of the policy
    :raises ArgumentError: if these do not fit the parts of the actions
    """

    action_net: nn.Linear
    log_std_init: float

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: HybridSpace,
        *others: Any,
        entropy_weights: Weights | None = None,
        only_if: OnlyIf | None = None,
        distribution: Named | Mapping[str, Named] | None = None,
        std: Std | None = None,
        **named: Any,
    ):
        drawn = continuous_parts(HybridLayout(action_space).parts, distribution, std)
        self.layout = HybridLayout(action_space, [name for name, each in drawn.items() if each.bounded])
        """How actions are laid out in rows."""
        self.of_parts: dict[str, Any] = {"entropy_weights": entropy_weights, "only_if": only_if, "continuous": drawn}
        """The arguments of the distribution."""
        super().__init__(observation_space, self._space_of_base(), *others, **named)

    def _space_of_base(self) -> AnySpace:
        """Return the action space for the constructor of the policy's class."""
        return self.layout.rows

    def _make_distribution(self) -> HybridDistribution:
        return HybridDistribution(self.layout, **self.of_parts)

    def _build(self, lr_schedule: Schedule) -> None:
        self.action_dist = self._make_distribution()
        super()._build(lr_schedule)  # type: ignore[misc]
        self.action_dist.initialize(self.action_net.bias, self.log_std_init)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        of_parts = dict(self.of_parts)
        own = {"action_space": self.layout.space, "distribution": of_parts.pop("continuous"), **of_parts}
        return {**super()._get_constructor_parameters(), **own}

    def predict(self, *args: Any, **kwargs: Any) -> tuple[Any, tuple[np.ndarray, ...] | None]:
        """Return the actions for observations; see SB3.

        :return: an element of the action space, or a list with one for each environment, and the next states
        """
        rows, states = super().predict(*args, **kwargs)
        if rows.ndim == 1:
            return self.layout.for_envs(rows[None])[0], states
        return self.layout.for_envs(rows), states

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle does not find classes that were created on demand by their names.
        return _empty_policy, type(self).__bases__[::-1], *object.__reduce__(self)[2:]


@cache
def with_hybrid_actions(
    policy_class: type[BasePolicy], actions: type[HybridActions] = HybridActions
) -> type[HybridActions]:
    """Return the class of policies like these whose actions are elements of a ``Dict`` or ``Tuple`` space.

    :param policy_class: the class of the policies
    :param actions: what comes before it among the bases of the new class
    """
    return type(f"Hybrid{policy_class.__name__}", (actions, policy_class), {"__module__": __name__})


def _empty_policy(policy_class: type[BasePolicy], actions: type[HybridActions]) -> HybridActions:
    cls = with_hybrid_actions(policy_class, actions)
    return cls.__new__(cls)


def check_parts(space: AnySpace, policy_class: type[BasePolicy], arguments: Mapping[str, object]) -> None:
    """Check that entries of ``policy_kwargs`` fit an action space, as far as they depend on whether it has parts.

    :param policy_class: the class of the policy, whose own arguments may be anything
    :raises ArgumentError: if one does not, or the policy is for continuous actions alone
    """
    if is_hybrid(space):
        if issubclass(policy_class, BoxPolicy):
            raise ArgumentError(
                f"{policy_class.__name__} needs a Box action space, because it is derived from BoxPolicy, but the "
                f"environment has {space}: derive it from ActorCriticPolicy. policy_kwargs takes a distribution anyway"
            )
        return
    foreign = () if policy_class in BOXED else (*OF_DISTRIBUTION, LOG_STD_INIT)
    for name in (*OF_PARTS, *foreign):
        if name in arguments and name not in inspect.signature(policy_class).parameters:
            of_policy = "" if name in OF_PARTS else f" for a {policy_class.__name__}"
            raise ArgumentError(
                f"policy_kwargs[{name!r}] needs a Dict or Tuple action space{of_policy}, but the environment has "
                f"{space}: leave it out"
            )
