"""Policies whose actions are dictionaries or tuples: SB3's and sb3-contrib's, with a product distribution."""

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.type_aliases import Schedule

from sb3_ppo_variants.arguments.checks import OF_DISTRIBUTION, OF_PARTS
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.hybrid import HybridDistribution, OnlyIf, Weights
from sb3_ppo_variants.layout import AnySpace, HybridLayout, HybridSpace, is_hybrid


class HybridActions(ActorCriticPolicy):
    """Comes before the class of a policy among the bases of another, see :func:`with_hybrid_actions`.

    To the class of the policy, actions are rows of numbers; :meth:`predict` returns elements of the space.

    :param observation_space: the observations of the environment
    :param action_space: the actions of the environment
    :param entropy_weights: see :class:`~sb3_ppo_variants.hybrid.HybridDistribution`
    :param only_if: likewise
    :param others: the other arguments of the policy
    :raises ArgumentError: if these do not fit the parts of the actions
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: HybridSpace,
        *others: Any,
        entropy_weights: Weights | None = None,
        only_if: OnlyIf | None = None,
        **named: Any,
    ):
        self.layout = HybridLayout(action_space)
        """How actions are laid out in rows."""
        self.of_parts: dict[str, Any] = {"entropy_weights": entropy_weights, "only_if": only_if}
        """The arguments of the distribution."""
        super().__init__(observation_space, self.layout.rows, *others, **named)

    def _build(self, lr_schedule: Schedule) -> None:
        self.action_dist = HybridDistribution(self.layout, **self.of_parts)
        super()._build(lr_schedule)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | {"action_space": self.layout.space, **self.of_parts}

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
        return _empty_policy, type(self).__bases__[1:], *object.__reduce__(self)[2:]


@cache
def with_hybrid_actions(policy_class: type[ActorCriticPolicy]) -> type[HybridActions]:
    """Return the class of policies like these whose actions are elements of a ``Dict`` or ``Tuple`` space."""
    return type(f"Hybrid{policy_class.__name__}", (HybridActions, policy_class), {"__module__": __name__})


def _empty_policy(policy_class: type[ActorCriticPolicy]) -> HybridActions:
    cls = with_hybrid_actions(policy_class)
    return cls.__new__(cls)


def check_parts(space: AnySpace, policy_class: type[BasePolicy], arguments: Mapping[str, object]) -> None:
    """Check that entries of ``policy_kwargs`` fit an action space, as far as they depend on whether it has parts.

    :param policy_class: the class of the policy, whose own arguments may be anything
    :raises ArgumentError: if one does not
    """
    for name in OF_DISTRIBUTION if is_hybrid(space) else OF_PARTS:
        if name in arguments and name not in inspect.signature(policy_class).parameters:
            needed = "a Box" if is_hybrid(space) else "a Dict or Tuple"
            raise ArgumentError(
                f"policy_kwargs[{name!r}] needs {needed} action space, but the environment has {space}: leave it out"
            )
