"""What draws the actions of a policy: it comes before the class of the policy among the bases of another.

SB3's and sb3-contrib's policies make the distribution that SB3 has for an action space. A head makes another one, for
any class of policies: for images, dictionaries or masks, with a memory, with an asymmetric critic, or of a user.
"""

from abc import abstractmethod
from functools import cache
from typing import Any, ClassVar

from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from sb3_ppo_variants.arguments.checks import declared
from sb3_ppo_variants.distributions import StateGaussianDistribution
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.hybrid import HybridDistribution


class ActionHead(BasePolicy):
    """Makes the distribution of a policy's actions: see :func:`with_head`."""

    arguments: ClassVar[tuple[str, ...]]
    """The names of the arguments that it takes beside those of the policy."""
    action_net: nn.Module
    log_std_init: float

    def _take(self, named: dict[str, Any]) -> dict[str, Any]:
        """Remove its own arguments from those of a constructor, and return them."""
        self._given = {name: named.pop(name) for name in self.arguments if name in named}
        return self._given

    @abstractmethod
    def _make_distribution(self) -> Distribution:
        """Return the distribution, whose layer the policy then makes."""

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

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self._given}


@cache
def with_head(policy_class: type[BasePolicy], head: type[ActionHead]) -> type[ActionHead]:
    """Return the class of policies like these whose actions a head draws.

    Arguments that the class of the policies itself declares are its own, even if the head has some of the same names.
    """
    arguments = tuple(name for name in head.arguments if name not in declared(policy_class))
    members = {"__module__": __name__, "arguments": arguments, "__reduce__": _reduced}
    return type(f"{policy_class.__name__}With{head.__name__}", (head, policy_class), members)


def _reduced(policy: ActionHead) -> tuple[Any, ...]:
    # Pickle does not find classes that were created on demand by their names.
    return _empty_policy, type(policy).__bases__[::-1], *object.__reduce__(policy)[2:]


def _empty_policy(policy_class: type[BasePolicy], head: type[ActionHead]) -> ActionHead:
    cls = with_head(policy_class, head)
    return cls.__new__(cls)
