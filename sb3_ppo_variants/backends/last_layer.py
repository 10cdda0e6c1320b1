"""The linear layer of SB3's convolutional network, computed as a convolution.

PyTorch multiplies matrices with MKL and convolves with oneDNN. On AMD's processors MKL leaves half of the vector units
idle, and oneDNN does not.
"""

import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn
from torch.nn import functional

from sb3_ppo_variants.backends.views import view_of

CHANNELS = 64
# Convolutions of fewer images spend most of their time on preparing the filters.
FEWEST_ROWS = 32
EXTRACTORS = ("features_extractor", "pi_features_extractor", "vf_features_extractor")


def convolved(policy: ActorCriticPolicy) -> ActorCriticPolicy:
    """Return a view of a policy with SB3's ``NatureCNN`` that computes its linear layer as a convolution.

    A layer that is not possible or not faster as a convolution stays as it is.
    """
    if not th.backends.mkl.is_available():
        return policy
    extractors = {name: policy.get_submodule(name) for name in EXTRACTORS}
    views = {extractor: _with_convolution(extractor) for extractor in extractors.values()}
    return view_of(policy, **{name: views[extractor] for name, extractor in extractors.items()})


def _with_convolution(extractor: nn.Module) -> nn.Module:
    linear = extractor.get_submodule("linear")
    layers = {name: _as_convolution(layer) for name, layer in linear.named_children()}
    return view_of(extractor, linear=view_of(linear, **layers))


def _as_convolution(layer: nn.Module) -> nn.Module:
    if type(layer) is not nn.Linear or "forward" in vars(layer) or layer.in_features % CHANNELS:
        return layer
    view = view_of(layer)
    view.forward = Convolution(layer)  # type: ignore[assignment]
    return view


class Convolution:
    """Computes a linear layer as a convolution with filters as large as the images.

    :param layer: the layer; its number of inputs must be a multiple of 64
    """

    def __init__(self, layer: nn.Linear):
        self._layer = layer

    def __call__(self, rows: th.Tensor) -> th.Tensor:
        weight, bias = self._layer.weight, self._layer.bias
        if len(rows) < FEWEST_ROWS:
            return functional.linear(rows, weight, bias)
        return functional.conv2d(_as_images(rows), _as_images(weight), bias).flatten(1)


def _as_images(rows: th.Tensor) -> th.Tensor:
    """View rows as channels-last images, one pixel wide."""
    return rows.reshape(len(rows), -1, 1, CHANNELS).permute(0, 3, 1, 2)
