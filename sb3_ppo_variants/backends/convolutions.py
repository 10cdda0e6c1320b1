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

from sb3_ppo_variants.backends.first_layer import plain_network, without_first
from sb3_ppo_variants.backends.native.convolutions import Convolved, Shape, Taken
from sb3_ppo_variants.backends.native.library import library

# The library computes this many filters, or numbers in a row of a filter, at a time. In the first layer, it does not
# compute the gradient with respect to the images, and fewer numbers are enough.
AT_ONCE, AT_ONCE_IN_FIRST = 32, 8


class Convolutions:
    """The convolutions of a policy, each with its ReLU, and the scaling of bytes to [0, 1] before them.

    :param policy: a policy that :meth:`of` accepts
    """

    def __init__(self, policy: ActorCriticPolicy):
        cnn: Any = policy.features_extractor.cnn
        self._layers = [module for module in cnn if type(module) is nn.Conv2d]
        self._shapes = [_shape(layer) for layer in self._layers]
        self.rest = without_first(policy, 2 * len(self._layers))

    @classmethod
    def of(cls, policy: ActorCriticPolicy) -> "Convolutions | None":
        """Return the convolutions of a policy with SB3's ``NatureCNN``; ``None`` if the library cannot compute them."""
        cnn = plain_network(policy)
        if cnn is None or library() is None:
            return None
        *pairs, last = cnn
        layers, others = pairs[::2], [*map(type, pairs[1::2]), type(last)]
        fits = others == [nn.ReLU] * len(layers) + [nn.Flatten] and all(map(_fits, layers)) and _rows_fit(layers)
        return cls(policy) if fits else None

    def __call__(self, images: np.ndarray, rows: np.ndarray) -> th.Tensor:
        channels_last = np.ascontiguousarray(np.moveaxis(images, -3, -1))
        taken = Taken(channels_last.reshape(-1, *channels_last.shape[-3:]), rows)
        weights, biases = ([getattr(layer, name) for layer in self._layers] for name in ("weight", "bias"))
        return Convolved.apply(taken, self._shapes, *weights, *biases)


def _rows_fit(layers: Sequence[nn.Conv2d]) -> bool:
    numbers = [layer.in_channels * layer.kernel_size[0] for layer in layers]
    return numbers[0] % AT_ONCE_IN_FIRST == 0 and not any(number % AT_ONCE for number in numbers[1:])


def _fits(layer: nn.Module) -> bool:
    return (
        type(layer) is nn.Conv2d
        and (layer.groups, layer.padding_mode) == (1, "zeros")
        and (layer.padding, layer.dilation) == ((0, 0), (1, 1))
        and len({*layer.stride}) == len({*layer.kernel_size}) == 1
        and layer.out_channels % AT_ONCE == 0
        and layer.weight.dtype == th.float32
        and layer.bias is not None
    )


def _shape(layer: nn.Conv2d) -> Shape:
    return Shape(layer.out_channels, layer.in_channels, layer.kernel_size[0], layer.stride[0])
