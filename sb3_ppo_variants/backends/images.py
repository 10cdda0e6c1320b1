"""SB3's convolutional network on a CPU, with memory laid out for convolutions.

The computation is the same as in the reference backend. Images and filters are stored channels-last, the fastest layout
for convolutions on CPUs, and Adam runs as one fused kernel. Where possible, the native library computes the first layer
or all convolutions. Otherwise, bytes are scaled to [0, 1] in one pass, into an array that all minibatches share. Large
linear layers use the library of PyTorch's convolutions. Freed memory stays with the process.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import NatureCNN
from torch import nn
from torch.optim import Optimizer

from sb3_ppo_variants.backends import memory, obstacles
from sb3_ppo_variants.backends.convolutions import Convolutions
from sb3_ppo_variants.backends.first_layer import ActingAfter, Computed, FirstLayer, unscaled
from sb3_ppo_variants.backends.linear import multiplied
from sb3_ppo_variants.backends.reference import Minibatches, Reference, TorchActor, TorchUpdate
from sb3_ppo_variants.backends.remade import UntilRemade
from sb3_ppo_variants.rollouts.buffer import ROWS_AT_ONCE, Samples, WithParameters, in_rows, where_in
from sb3_ppo_variants.rollouts.loop import Actor
from sb3_ppo_variants.updates.plan import UpdatePlan


def _features_obstacle(policy: ActorCriticPolicy) -> str | None:
    for extractor in (policy.features_extractor, policy.pi_features_extractor, policy.vf_features_extractor):
        if type(extractor) is not NatureCNN:
            return f"features come from a {type(extractor).__name__}"
        if not type(extractor.cnn) is type(extractor.linear) is nn.Sequential:
            return "the layers of the NatureCNN were replaced"
    return None


def _images_obstacle(policy: ActorCriticPolicy) -> str | None:
    space = policy.observation_space
    if space.dtype == np.uint8 and not (policy.normalize_images and is_image_space(space)):
        return "images are not scaled to [0, 1]"
    return None


@contextmanager
def fused(optimizers: list[Optimizer]) -> Iterator[None]:
    """Run Adam as one fused kernel while the context is active."""
    chosen = [optimizer.param_groups[0]["fused"] for optimizer in optimizers]
    for optimizer in optimizers:
        optimizer.param_groups[0]["fused"] = True
    try:
        yield
    finally:
        for optimizer, was_fused in zip(optimizers, chosen, strict=True):
            optimizer.param_groups[0]["fused"] = was_fused


@contextmanager
def _channels_last(policy: ActorCriticPolicy, optimizers: list[Optimizer]) -> Iterator[None]:
    """Store the filters of a policy and Adam's moments of them channels-last while the context is active.

    Values and shapes do not change. On exit the tensors return to PyTorch's default layout, so that rounding in a
    rollout or an update depends only on its path, and not on what ran before.
    """
    try:
        _lay_out(policy, optimizers, th.channels_last)
        yield
        _lay_out(policy, optimizers, th.contiguous_format)
    except BaseException:  # Including an interrupt during the line above.
        _lay_out(policy, optimizers, th.contiguous_format)
        raise


def _lay_out(policy: ActorCriticPolicy, optimizers: list[Optimizer], memory_format: th.memory_format) -> None:
    for module in policy.modules():
        if isinstance(module, nn.Conv2d):
            _lay(module.weight, optimizers, memory_format)


def _lay(weight: th.Tensor, optimizers: list[Optimizer], memory_format: th.memory_format) -> None:
    weight.data = weight.data.contiguous(memory_format=memory_format)
    for optimizer in optimizers:
        # The fused kernel pairs the weight with its moments in memory order, so their layouts must agree.
        state = optimizer.state.get(weight, {})
        for moment in state.keys() & {"exp_avg", "exp_avg_sq"}:
            state[moment] = state[moment].contiguous(memory_format=memory_format)


class ScaledImages:
    """The images of a rollout, channels-last and with bytes scaled to [0, 1].

    Each call overwrites the images that the previous call returned.

    :param most: the largest number of images in a call
    """

    def __init__(self, buffer: RolloutBuffer, most: int):
        self._images = np.ascontiguousarray(in_rows(buffer, np.moveaxis(buffer.observations, -3, -1)))
        shape = (most, *self._images.shape[1:])
        self._bytes = np.empty(shape, self._images.dtype)
        self._numbers = th.empty(shape, dtype=th.float32)
        self._scale = 255.0 if self._images.dtype == np.uint8 else 1.0

    def __call__(self, rows: np.ndarray) -> th.Tensor:
        images, numbers = self._bytes[: len(rows)], self._numbers[: len(rows)]
        np.take(self._images, rows, axis=0, out=images, mode="clip")
        th.div(th.from_numpy(images), self._scale, out=numbers)
        return numbers.permute(0, 3, 1, 2)


class ConvolvedImages:
    """Computes the output of a policy's convolutions for images of a rollout."""

    def __init__(self, convolutions: Convolutions, buffer: RolloutBuffer):
        self._convolutions = convolutions
        channels_last = np.ascontiguousarray(in_rows(buffer, np.moveaxis(buffer.observations, -3, -1)))
        self._images = np.moveaxis(channels_last, -1, -3)

    def __call__(self, rows: np.ndarray) -> th.Tensor:
        return self._convolutions(self._images, rows)


class FilteredImages:
    """Computes the output of a policy's first layer for images of a rollout."""

    def __init__(self, first: FirstLayer, buffer: RolloutBuffer):
        self._first, self._buffer = first, buffer

    def __call__(self, rows: np.ndarray) -> th.Tensor:
        where = where_in(self._buffer, rows)
        if isinstance(where, tuple):
            step, env = where
            where = step * self._buffer.n_envs + env
        return self._first(self._buffer.observations, where)


class ImageMinibatches(Minibatches):
    """The minibatches that a buffer would return, with scaled images or the output of the first layers as observations.

    :param first: the first layers of the policy, if they are computed separately
    :param plan: the plan of the update, with a view of the policy that takes these observations
    """

    def __init__(self, first: FirstLayer | Convolutions | None, plan: UpdatePlan):
        super().__init__(plan)
        buffer = plan.buffer
        self._images_at: Callable[[np.ndarray], th.Tensor]
        if first is None:
            self._images_at = ScaledImages(buffer, max(plan.batch_size, ROWS_AT_ONCE))
        elif isinstance(first, FirstLayer):
            self._images_at = FilteredImages(first, buffer)
        else:
            self._images_at = ConvolvedImages(first, buffer)
        actions = in_rows(buffer, buffer.actions).astype(np.float32, copy=False)
        numbers = [
            in_rows(buffer, array).ravel()
            for array in (buffer.values, buffer.log_probs, buffer.advantages, buffer.returns)
        ]
        self._others = [th.from_numpy(array) for array in (actions, *numbers)]
        masks: np.ndarray | None = getattr(buffer, "action_masks", None)
        self._masks = None if masks is None else th.from_numpy(in_rows(buffer, masks))
        self._n_rows = len(actions)

    def distributions(self) -> Iterator[Distribution]:
        for start in range(0, self._n_rows, ROWS_AT_ONCE):
            rows = np.arange(start, min(start + ROWS_AT_ONCE, self._n_rows))
            masks: tuple[th.Tensor, ...] = () if self._masks is None else (self._masks[start : start + ROWS_AT_ONCE],)
            yield self._kind.policy.get_distribution(self._images_at(rows), *masks)

    def shuffled(self) -> Iterator[Samples]:
        permutation = np.random.permutation(self._n_rows)
        old = self._buffer.old_parameters if isinstance(self._buffer, WithParameters) else None
        for start in range(0, len(permutation), self._batch_size):
            rows = permutation[start : start + self._batch_size]
            where = th.from_numpy(rows)
            old_rows = None if old is None else tuple(column[where] for column in old)
            others = [tensor[where] for tensor in self._others]
            masks = None if self._masks is None else self._masks[where]
            yield Samples._make([self._images_at(rows), *others, old_rows, masks])


class ImageActor(TorchActor):
    """Acts with the first layers of a policy computed separately from the rest."""

    def __init__(self, first: Computed, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer):
        super().__init__(model, type(plan.kind)(multiplied(first.rest)), buffer)
        self._acting = ActingAfter(first, self._acting)

    def read(self) -> None:
        """Do nothing: every step reads the parameters anew."""


def _separate(policy: ActorCriticPolicy) -> FirstLayer | Convolutions | None:
    """Return the first layers of a policy if they are computed separately: one with AMX, otherwise all convolutions."""
    return FirstLayer.of(policy) or Convolutions.of(policy)


class Images(Reference):
    """Computes the same as the reference backend, with images and filters laid out for convolutions."""

    name = "images"
    path = "fast"
    has_memory = False
    how = "images are laid out for convolutions"

    def obstacle(self, plan: UpdatePlan) -> str | None:
        policy = plan.kind.policy
        return (
            obstacles.of_policy(plan.kind)
            or obstacles.of_buffer(plan.buffer, plan.kind)
            or _features_obstacle(policy)
            or _images_obstacle(policy)
            or obstacles.of_parameters(policy)
            or obstacles.of_optimizers(policy, plan.optimizers)
        )

    @contextmanager
    def prepared(self, plan: UpdatePlan, updating: bool) -> Iterator[None]:
        """Use the fastest layout of filters, and in updates a fused Adam, while the context is active."""
        policy, optimizers = plan.kind.policy, plan.optimizers
        # Rollouts leave Adam alone, because a callback may save it.
        with memory.kept(), _channels_last(policy, optimizers), fused(optimizers) if updating else nullcontext():
            yield

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        first = _separate(plan.kind.policy)
        if first is None:
            return TorchActor(model, type(plan.kind)(multiplied(plan.kind.policy)), buffer)
        return UntilRemade(ImageActor(first, model, plan, buffer), model, plan)

    def update(self, plan: UpdatePlan) -> TorchUpdate:
        first = _separate(plan.kind.policy)
        view = unscaled(plan.kind.policy) if first is None else first.rest
        viewed = replace(plan, kind=type(plan.kind)(multiplied(view)))
        return TorchUpdate(viewed, ImageMinibatches(first, viewed))
