"""The first layer of SB3's convolutional network on bytes, computed separately from the rest of the policy.

This layer is a third of the computation. Bytes have so few bits that processors with AMX multiply them exactly, several
times faster than single-precision numbers.
"""

from typing import Any, Protocol, cast

import numpy as np
import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

from sb3_ppo_variants.backends import obstacles
from sb3_ppo_variants.backends.native import filters
from sb3_ppo_variants.backends.native.filters import Filtered, Taken
from sb3_ppo_variants.backends.native.structures import are_singles
from sb3_ppo_variants.backends.views import view_of
from sb3_ppo_variants.policies.kind import Acted, Acting

SHAPE = (filters.FILTERS, filters.CHANNELS, filters.SIZE, filters.SIZE)


def unscaled(policy: ActorCriticPolicy) -> ActorCriticPolicy:
    """Return a view of a policy that does not scale images."""
    view = view_of(policy)
    view.normalize_images = False
    return view


class FirstLayer:
    """The first convolution of a policy with its ReLU, and the scaling of bytes to [0, 1] before it.

    :param policy: a policy that :meth:`of` accepts
    """

    def __init__(self, policy: ActorCriticPolicy):
        cnn = cast(nn.Sequential, policy.features_extractor.cnn)
        self._convolution = cast(nn.Conv2d, cnn[0])
        self.modules = cast(nn.Sequential, cnn[:2])
        self.rest = without_first(policy, 2)
        """A view of the policy that takes the output of its first layer as observations."""

    @classmethod
    def of(cls, policy: ActorCriticPolicy) -> "FirstLayer | None":
        """Return the first layer of a policy with SB3's ``NatureCNN``; ``None`` if it cannot be computed separately."""
        cnn = plain_network(policy)
        return cls(policy) if cnn is not None and _takes_patches(cnn[0]) and filters.available() else None

    def __call__(self, images: np.ndarray, rows: np.ndarray) -> th.Tensor:
        """Compute the output of the layer.

        :param images: see :class:`Taken`
        :param rows: the rows of the images to use
        """
        if not _takes_patches(self._convolution):
            return computed_by(self.modules, images, rows)
        weight, bias = self._convolution.weight, self._convolution.bias
        return Filtered.apply(weight / 255.0, bias, Taken(images, rows))


def plain_network(policy: ActorCriticPolicy) -> Any:
    """Return the layers of a policy's ``NatureCNN`` that take bytes.

    :return: ``None`` if the policy has several networks, or if hooks or replaced methods take part in them
    """
    extractor = policy.features_extractor
    shared = extractor is policy.pi_features_extractor is policy.vf_features_extractor
    if not shared or policy.observation_space.dtype != np.uint8:
        return None
    cnn: Any = extractor.cnn
    modules = [policy, extractor, *cnn.modules()]
    plain = (
        [type(module) for module in cnn[:2]] == [nn.Conv2d, nn.ReLU]
        and obstacles.of_hooks(modules) is None
        and not any("forward" in vars(module) for module in modules)
    )
    return cnn if plain else None


def without_first(policy: ActorCriticPolicy, n_modules: int) -> ActorCriticPolicy:
    """Return a view of a policy that takes the output of the first modules of its ``NatureCNN`` as observations."""
    cnn = cast(nn.Sequential, policy.features_extractor.cnn)
    rest = view_of(cnn)
    rest.forward = cnn[n_modules:].forward  # type: ignore[method-assign]
    extractor = view_of(policy.features_extractor, cnn=rest)
    names = ("features_extractor", "pi_features_extractor", "vf_features_extractor")
    return unscaled(view_of(policy, **dict.fromkeys(names, extractor)))


def computed_by(modules: nn.Sequential, images: np.ndarray, rows: np.ndarray) -> th.Tensor:
    """Compute the output of the first layers of a policy with PyTorch, as SB3 does.

    :param images: see :class:`Taken`
    :param rows: the rows of the images to use
    """
    selected = images.reshape(-1, *images.shape[-3:])[rows]
    return modules(th.from_numpy(np.ascontiguousarray(selected)).float() / 255.0)


def _takes_patches(layer: nn.Conv2d) -> bool:
    """Whether a convolution is one that the native library computes."""
    return (
        layer.bias is not None
        and (layer.weight.shape, layer.bias.shape) == (SHAPE, SHAPE[:1])
        and are_singles(layer.weight)
        and are_singles(layer.bias)
        and (layer.groups, layer.padding_mode) == (1, "zeros")
        and (layer.stride, layer.padding, layer.dilation) == ((filters.STEP,) * 2, (0, 0), (1, 1))
    )


class Computed(Protocol):
    """The first layers of a policy, computed separately from the rest."""

    rest: ActorCriticPolicy
    """A view of the policy that takes the output of the layers as observations."""
    modules: nn.Sequential
    """The layers themselves."""

    def __call__(self, images: np.ndarray, rows: np.ndarray) -> th.Tensor:
        """Compute the output of the layers.

        :param images: bytes of shape ``(..., channels, height, width)``, contiguous in this order or channels-last
        :param rows: the rows of the images to use, counted over the leading dimensions
        """


class ActingAfter(Acting):
    """Acts with a policy whose first layers are computed separately.

    :param first: the first layers of the policy
    :param acting: acts with the rest of the policy
    """

    def __init__(self, first: Computed, acting: Acting):
        self._first, self._acting = first, acting

    def act(self, observations: PyTorchObs, episode_starts: np.ndarray) -> Acted:
        return self._acting.act(self._output(observations), episode_starts)

    def terminal_value(self, observation: PyTorchObs, env_index: int) -> th.Tensor:
        return self._acting.terminal_value(self._output(observation), env_index)

    def last_values(self, observations: PyTorchObs, dones: np.ndarray) -> th.Tensor:
        return self._acting.last_values(self._output(observations), dones)

    def _output(self, observations: PyTorchObs) -> th.Tensor:
        assert isinstance(observations, th.Tensor)
        if observations.dtype != th.uint8:  # A wrapper may return other numbers than the space has.
            return self._first.modules(observations.float() / 255.0)
        images = observations if observations.permute(0, 2, 3, 1).is_contiguous() else observations.contiguous()
        return self._first(images.numpy(), np.arange(len(images)))
