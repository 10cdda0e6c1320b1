"""The first layer of SB3's convolutional network on bytes, computed separately from the rest of the policy.

This layer is a third of the computation. Bytes have so few bits that processors with AMX multiply them exactly, several
times faster than single-precision numbers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

from sb3_ppo_variants.backends.native import filters
from sb3_ppo_variants.backends.native.filters import Filtered, Taken
from sb3_ppo_variants.policies.kind import Acted, Acting

SHAPE = (filters.FILTERS, filters.CHANNELS, filters.SIZE, filters.SIZE)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@contextmanager
def unscaled(policy: ActorCriticPolicy) -> Iterator[None]:
    """Keep a policy from scaling images while the context is active."""
    normalize = policy.normalize_images
    policy.normalize_images = False
    try:
        yield
    finally:
        policy.normalize_images = normalize


class FirstLayer:
    """The first convolution of a policy with its ReLU, and the scaling of bytes to [0, 1] before it.

    :param policy: a policy that :meth:`of` accepts
    """

    def __init__(self, policy: ActorCriticPolicy):
        self._policy = policy
        self._cnn = cast(nn.Sequential, policy.features_extractor.cnn)
        self._convolution = cast(nn.Conv2d, self._cnn[0])
        self._rest = self._cnn[2:]

    @classmethod
    def of(cls, policy: ActorCriticPolicy) -> "FirstLayer | None":
        """Return the first layer of a policy with SB3's ``NatureCNN``; ``None`` if it cannot be computed separately."""
        if not policy.share_features_extractor or policy.observation_space.dtype != np.uint8:
            return None
        cnn: Any = policy.features_extractor.cnn
        modules = [policy, policy.features_extractor, *cnn.modules()]
        fits = (
            [type(module) for module in cnn[:2]] == [nn.Conv2d, nn.ReLU]
            and _takes_patches(cnn[0])
            and not any(getattr(module, hooks) for module in modules for hooks in HOOKS)
        )
        return cls(policy) if fits and filters.available() else None

    def __call__(self, images: np.ndarray, rows: np.ndarray) -> th.Tensor:
        """Compute the output of the layer.

        :param images: see :class:`Taken`
        :param rows: the rows of the images to use
        """
        weight, bias = self._convolution.weight, self._convolution.bias
        return Filtered.apply(weight / 255.0, bias, Taken(images, rows))

    @contextmanager
    def computed(self) -> Iterator[None]:
        """Let the policy take the output of its first layer as observations while the context is active."""
        with unscaled(self._policy):
            try:
                self._cnn.forward = self._rest.forward  # type: ignore[method-assign]
                yield
            finally:
                vars(self._cnn).pop("forward", None)


def _takes_patches(layer: nn.Conv2d) -> bool:
    """Whether a convolution is one that the native library computes."""
    return (
        layer.weight.shape == SHAPE
        and layer.weight.dtype == th.float32
        and layer.bias is not None
        and (layer.stride, layer.padding, layer.dilation) == ((filters.STEP,) * 2, (0, 0), (1, 1))
    )


class ActingAfter:
    """Acts with a policy whose first layer is computed separately.

    :param first: the first layer of the policy
    :param acting: acts with the policy on the output of that layer
    """

    def __init__(self, first: FirstLayer, acting: Acting):
        self._first, self._acting = first, acting

    def act(self, observations: PyTorchObs, episode_starts: np.ndarray) -> Acted:
        output = self._output(observations)
        with self._first.computed():
            return self._acting.act(output, episode_starts)

    def terminal_value(self, observation: PyTorchObs, env_index: int) -> th.Tensor:
        output = self._output(observation)
        with self._first.computed():
            return self._acting.terminal_value(output, env_index)

    def last_values(self, observations: PyTorchObs, dones: np.ndarray) -> th.Tensor:
        output = self._output(observations)
        with self._first.computed():
            return self._acting.last_values(output, dones)

    def _output(self, observations: PyTorchObs) -> th.Tensor:
        assert isinstance(observations, th.Tensor)
        images = observations if observations.permute(0, 2, 3, 1).is_contiguous() else observations.contiguous()
        return self._first(images.numpy(), np.arange(len(images)))
