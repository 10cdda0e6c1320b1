"""The convolutions of SB3's convolutional network on bytes, all computed by the native library.

PyTorch computes one layer after the other, and what a layer computes for a minibatch does not fit into the cache. Here
one image passes through all layers, and then the next.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from sb3_ppo_variants.backends.first_layer import computed_by, plain_network, without_first
from sb3_ppo_variants.backends.native.convolutions import Convolved, Taken, shapes_of
from sb3_ppo_variants.backends.native.library import library


class Convolutions:
    """The convolutions of a policy, each with its ReLU, and the scaling of bytes to [0, 1] before them.

    :param policy: a policy that :meth:`of` accepts
    """

    def __init__(self, policy: ActorCriticPolicy):
        cnn: Any = policy.features_extractor.cnn
        self._layers = [module for module in cnn if type(module) is nn.Conv2d]
        self.modules: nn.Sequential = cnn[: 2 * len(self._layers)]
        self.rest = without_first(policy, len(self.modules))

    @classmethod
    def of(cls, policy: ActorCriticPolicy) -> "Convolutions | None":
        """Return the convolutions of a policy with SB3's ``NatureCNN``; ``None`` if the library cannot compute them."""
        cnn = plain_network(policy)
        if cnn is None or library() is None:
            return None
        *pairs, last = cnn
        layers, others = pairs[::2], [*map(type, pairs[1::2]), type(last)]
        if others != [nn.ReLU] * len(layers) + [nn.Flatten] or not all(type(layer) is nn.Conv2d for layer in layers):
            return None
        channels, *size = policy.observation_space.shape or ()
        return cls(policy) if _are_taken(layers, (*size, channels)) else None

    def __call__(self, images: np.ndarray, rows: np.ndarray) -> th.Tensor:
        channels, *size = images.shape[-3:]
        if not _are_taken(self._layers, (*size, channels)):
            return computed_by(self.modules, images, rows)
        channels_last = np.ascontiguousarray(np.moveaxis(images, -3, -1))
        taken = Taken(channels_last.reshape(-1, *channels_last.shape[-3:]), rows)
        weights, biases = _parameters(self._layers)
        return Convolved.apply(taken, [*map(_step, self._layers)], *weights, *biases)


def _are_taken(layers: Sequence[nn.Conv2d], image: Sequence[int]) -> bool:
    """Whether the library computes these layers for images of this height, width and number of channels."""
    if not all(map(_is_plain, layers)):
        return False
    return shapes_of(image, *_parameters(layers), [*map(_step, layers)]) is not None


def _is_plain(layer: nn.Module) -> bool:
    return (
        type(layer) is nn.Conv2d
        and (layer.groups, layer.padding_mode) == (1, "zeros")
        and (layer.padding, layer.dilation) == ((0, 0), (1, 1))
        and len({*layer.stride}) == 1
        and layer.bias is not None
    )


def _parameters(layers: Sequence[nn.Conv2d]) -> tuple[list[th.Tensor], list[th.Tensor]]:
    return [layer.weight for layer in layers], [layer.bias for layer in layers if layer.bias is not None]


def _step(layer: nn.Conv2d) -> int:
    return layer.stride[0]
