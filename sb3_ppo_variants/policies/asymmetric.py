"""Policies whose critic observes more than their actor, or less: an asymmetric, or privileged, critic.

The critic only serves training, so it may see what a simulator knows and a robot does not (Pinto et al.,
https://arxiv.org/abs/1710.06542). Actor and critic each have a features extractor for their part of the observations.
Everything else is SB3's.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy, MultiInputActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, MlpExtractor
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.layout import AnySpace

# The entries of policy_kwargs that say which observations actor and critic see.
KEYS = ("actor_keys", "critic_keys")


class OfKeys(BaseFeaturesExtractor):
    """Shows a features extractor only some of the observations.

    :param extractor: the extractor
    :param space: the observations that it sees
    """

    def __init__(self, extractor: BaseFeaturesExtractor, space: spaces.Dict):
        super().__init__(space, extractor.features_dim)
        self.extractor = extractor
        self._keys = [*space]

    def forward(self, observations: Mapping[str, th.Tensor]) -> th.Tensor:
        features: th.Tensor = self.extractor({key: observations[key] for key in self._keys})
        return features


class Asymmetric(BasePolicy):
    """A mixin for SB3's and sb3-contrib's policies for dictionaries. Without keys, it changes nothing.

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
        # SB3's own extractor reads only the observations of its space.
        return extractor if type(extractor) is CombinedExtractor else OfKeys(extractor, space)

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
