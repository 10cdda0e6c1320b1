"""Mixins for policies: action heads, which make the distribution of actions, and asymmetric critics.

SB3's and sb3-contrib's policies make the distribution that SB3 has for an action space. A head makes another one. Each
policy kind has a class with each head, and a policy of your own takes one too: ``class Mine(BoxActions, MyPolicy)``.
"""

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import BasePolicy, MultiInputActorCriticPolicy
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, MlpExtractor
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from sb3_ppo_variants.arguments import Values
from sb3_ppo_variants.distributions import StateGaussianDistribution, distribution_of
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.hybrid import HybridDistribution, continuous_parts
from sb3_ppo_variants.layout import AnySpace, HybridLayout, HybridSpace, float_bounds

# The entries of policy_kwargs that say which observations actor and critic see.
KEYS = ("actor_keys", "critic_keys")
# The entries of policy_kwargs with which policies draw continuous actions from other distributions, those about the
# parts of hybrid actions, and one that the continuous parts of these need with every policy.
OF_DISTRIBUTION = ("distribution", "std")
OF_PARTS = ("entropy_weights", "only_if")
LOG_STD_INIT = "log_std_init"


class Asymmetric(BasePolicy):
    """Lets the critic see more than the actor, or less: an asymmetric, or privileged, critic.

    The critic only serves training, so it may see what a simulator knows and a robot does not (Pinto et al.,
    https://arxiv.org/abs/1710.06542). Actor and critic each have a features extractor for their part of the
    observations. Without keys, this mixin for policies for dictionaries changes nothing.

    :param observation_space: the observations of the environment
    :param action_space: the actions of the environment
    :param lr_schedule: the step size
    :param actor_keys: the keys of the observations that the actor sees; ``None`` for all
    :param critic_keys: the same for the critic
    :param named: the other arguments of the policy
    :raises ArgumentError: if an observation does not exist, or features are to be shared
    """

    net_arch: list[int] | dict[str, list[int]]
    activation_fn: type[nn.Module]
    pi_features_extractor: BaseFeaturesExtractor
    vf_features_extractor: BaseFeaturesExtractor
    is_asymmetric = False
    """Whether keys were given."""

    def __init__(
        self,
        observation_space: AnySpace,
        action_space: AnySpace,
        lr_schedule: Schedule,
        actor_keys: Sequence[str] | None = None,
        critic_keys: Sequence[str] | None = None,
        **named: Any,
    ):
        given = dict(zip(KEYS, (actor_keys, critic_keys), strict=True))
        if any(keys is not None for keys in given.values()):
            assert isinstance(observation_space, spaces.Dict)
            self.is_asymmetric = True
            self._keys = {name: _in_space(name, keys, observation_space) for name, keys in given.items()}
            if named.setdefault("share_features_extractor", False):
                raise ArgumentError(
                    f"policy_kwargs: share_features_extractor=True does not go with {' and '.join(KEYS)}, with which "
                    "actor and critic have different features: leave it out"
                )
            if unused := [key for key in observation_space if not any(key in keys for keys in self._keys.values())]:
                warnings.warn(
                    f"neither {' nor '.join(KEYS)} has {', '.join(map(repr, unused))}, so the policy does not use "
                    "these observations"
                )
        super().__init__(observation_space, action_space, lr_schedule, **named)

    def make_features_extractor(self) -> BaseFeaturesExtractor:
        """Create the features extractor of the actor, or that of the critic if the actor has one."""
        if not self.is_asymmetric:
            return super().make_features_extractor()
        keys = self._keys["critic_keys" if "pi_features_extractor" in self._modules else "actor_keys"]
        assert isinstance(self.observation_space, spaces.Dict)
        space = spaces.Dict([(key, self.observation_space[key]) for key in keys])
        extractor = self.features_extractor_class(space, **self.features_extractor_kwargs)
        if type(extractor) is not CombinedExtractor:  # SB3's own reads only the observations of its space.
            extractor.register_forward_pre_hook(lambda _, inputs: {key: inputs[0][key] for key in keys})
        return extractor

    def _build_mlp_extractor(self) -> None:
        if not self.is_asymmetric:
            super()._build_mlp_extractor()  # type: ignore[misc]
            return
        arch = self.net_arch if isinstance(self.net_arch, dict) else {"pi": self.net_arch, "vf": self.net_arch}
        actor, critic = (
            MlpExtractor(extractor.features_dim, {name: arch.get(name, [])}, self.activation_fn, self.device)
            for name, extractor in (("pi", self.pi_features_extractor), ("vf", self.vf_features_extractor))
        )
        actor.value_net, actor.latent_dim_vf = critic.value_net, critic.latent_dim_vf
        self.mlp_extractor = actor

    def _get_constructor_parameters(self) -> dict[str, object]:
        return {**super()._get_constructor_parameters(), **(self._keys if self.is_asymmetric else {})}


class AsymmetricPolicy(Asymmetric, MultiInputActorCriticPolicy):
    """SB3's policy, whose actor and critic may see different observations."""


def _in_space(name: str, keys: Sequence[str] | None, space: spaces.Dict) -> list[str]:
    """Sort keys in the order of a space.

    :raises ArgumentError: if the space has no such key
    """
    unknown = [key for key in keys or () if key not in space.spaces]
    if unknown:
        raise ArgumentError(
            f"policy_kwargs[{name!r}]={keys!r}: there is no observation {unknown[0]!r}; the environment has "
            f"{', '.join(map(repr, space))}"
        )
    return [key for key in space if keys is None or key in keys]


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

        In a space of integers, they become integers.

        :param scaled_action: shape ``(batch, ...)``
        """
        assert isinstance(self.action_space, spaces.Box)
        low, high = float_bounds(self.action_space)
        # SB3 subtracts integers in their type, where they may wrap.
        within: np.ndarray = np.clip(low + 0.5 * (scaled_action + 1.0) * (high - low), low, high)
        is_integer = np.issubdtype(self.action_space.dtype, np.integer)
        return np.rint(within).astype(self.action_space.dtype) if is_integer else within


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

    arguments = (*OF_PARTS, *OF_DISTRIBUTION)

    def __init__(self, observation_space: AnySpace, action_space: HybridSpace, *others: Any, **named: Any):
        given = self._take(named)
        drawn = continuous_parts(HybridLayout(action_space).parts, *map(given.get, OF_DISTRIBUTION))
        self.layout = HybridLayout(action_space, [name for name, each in drawn.items() if each.bounded])
        """How actions are laid out in rows."""
        self.of_parts: Values = {**{name: given.get(name) for name in OF_PARTS}, "continuous": drawn}
        """The arguments of the distribution."""
        super().__init__(observation_space, self.layout.rows, *others, **named)

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
