"""SB3's convolutional network on a CPU, with memory laid out for convolutions.

The computation is the same as in the reference backend. Images and filters are stored channels-last, the fastest layout
for convolutions on CPUs, and Adam runs as one fused kernel. Where possible, the native library computes all
convolutions. Otherwise, bytes are scaled to [0, 1] in one pass, into an array that all minibatches share. Large linear
layers use the library of PyTorch's convolutions. Freed memory stays with the process.
"""

import ctypes
import platform
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn
from torch.optim import Optimizer

from sb3_ppo_variants.backends import obstacles
from sb3_ppo_variants.backends.native.convolutions import FirstLayers
from sb3_ppo_variants.backends.obstacles import ObstacleError
from sb3_ppo_variants.backends.reference import Reference, TorchActor, TorchUpdate
from sb3_ppo_variants.backends.remade import UntilRemade
from sb3_ppo_variants.backends.views import with_onednn, without_scaling
from sb3_ppo_variants.collector import Actor
from sb3_ppo_variants.policies.kind import Acted, ActingPolicy
from sb3_ppo_variants.rollout import ROWS_AT_ONCE, Samples, in_rows, where_in
from sb3_ppo_variants.update import UpdatePlan


def _check_plan(plan: UpdatePlan) -> None:
    policy = plan.kind.policy
    obstacles.check_written_out(plan)
    if plan.proximal is not None:
        raise ObstacleError("the proximal policy is not that of the rollout")
    for extractor in (policy.features_extractor, policy.pi_features_extractor, policy.vf_features_extractor):
        if type(extractor) is not NatureCNN:
            raise ObstacleError(f"features come from a {type(extractor).__name__}")
        if not type(extractor.cnn) is type(extractor.linear) is nn.Sequential:
            raise ObstacleError("the layers of the NatureCNN were replaced")
    space = policy.observation_space
    if space.dtype == np.uint8 and not (policy.normalize_images and is_image_space(space)):
        raise ObstacleError("images are not scaled to [0, 1]")
    obstacles.check_parameters(plan.parameters.values())
    obstacles.check_optimizers(plan.parameters.values(), plan.optimizers)


# Names and values from glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# Thresholds in bytes. KEPT is larger than any block. Versions of glibc that reject it accept LARGEST, which is also the
# upper end of glibc's own adjustment.
KEPT, LARGEST = 2**30, 2**25


@cache
def _glibc() -> ctypes.CDLL | None:
    """Open the C library of this process, or return ``None`` if it is not glibc."""
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Let glibc keep freed memory for later blocks while the context is active. Other C libraries are left alone.

    glibc requests each large block from the system and returns it as soon as it is freed, so every minibatch of images
    touches new pages. That costs thousands of page faults, and for each of them the system clears a page.

    glibc adjusts both thresholds itself: it raises them when large blocks are freed. Setting one turns this adjustment
    off for good, so on exit both are set to the values where it ends. Blocks above them go back to the system again.
    """
    glibc = _glibc()
    if glibc is None:
        yield
        return
    glibc.mallopt(M_MMAP_THRESHOLD, KEPT) or glibc.mallopt(M_MMAP_THRESHOLD, LARGEST)
    glibc.mallopt(M_TRIM_THRESHOLD, KEPT)
    try:
        yield
    finally:
        glibc.mallopt(M_MMAP_THRESHOLD, LARGEST)
        glibc.mallopt(M_TRIM_THRESHOLD, 2 * LARGEST)


@contextmanager
def fuse_adam(optimizers: list[Optimizer]) -> Iterator[None]:
    """Run Adam as one fused kernel while the context is active."""
    chosen = [optimizer.param_groups[0]["fused"] for optimizer in optimizers]
    for optimizer in optimizers:
        optimizer.param_groups[0]["fused"] = True
        for parameter, state in optimizer.state.items():
            # The kernel counts steps where the parameters are; Adam otherwise does so on the CPU, and files do.
            if "step" in state:
                state["step"] = state["step"].to(parameter.device, th.float32)
    try:
        yield
    finally:
        for optimizer, was_fused in zip(optimizers, chosen, strict=True):
            optimizer.param_groups[0]["fused"] = was_fused


@contextmanager
def _lay_channels_last(policy: ActorCriticPolicy, optimizers: list[Optimizer]) -> Iterator[None]:
    """Store the filters of a policy and Adam's moments of them channels-last while the context is active.

    Values and shapes do not change. On exit the tensors return to PyTorch's default layout, so that rounding in a
    rollout or an update depends only on its path, and not on what ran before. The filters return to where they were in
    memory, which other processes may share.
    """
    places = {module.weight: module.weight.data for module in policy.modules() if isinstance(module, nn.Conv2d)}
    try:
        for weight, place in places.items():
            weight.data = place.contiguous(memory_format=th.channels_last)
            _lay_out_moments(weight, optimizers, th.channels_last)
        yield
        _lay_back(places, optimizers)
    except BaseException:  # Including an interrupt during the line above.
        _lay_back(places, optimizers)
        raise


def _lay_back(places: dict[th.Tensor, th.Tensor], optimizers: list[Optimizer]) -> None:
    for weight, place in places.items():
        if place.shape == weight.shape and place.dtype == weight.dtype:  # A callback may have put others in its place.
            weight.data = place.copy_(weight.data)
        _lay_out_moments(weight, optimizers, th.contiguous_format)


def _lay_out_moments(weight: th.Tensor, optimizers: list[Optimizer], memory_format: th.memory_format) -> None:
    """Lay out Adam's moments as the weight, because the fused kernel pairs them with it in memory order."""
    for state in [optimizer.state.get(weight, {}) for optimizer in optimizers]:
        for moment in state.keys() & {"exp_avg", "exp_avg_sq"}:
            state[moment] = state[moment].contiguous(memory_format=memory_format)


class ScaledImages:
    """Selects images and scales their bytes to [0, 1]; each call overwrites the images that the previous one returned.

    :param images: bytes, or numbers in single precision, shape ``(n, height, width, channels)``
    :param most: the largest number of images in a call
    """

    def __init__(self, images: np.ndarray, most: int):
        self._images = images
        shape = (most, *images.shape[1:])
        self._selected = np.empty(shape, images.dtype)
        self._numbers = th.empty(shape, dtype=th.float32, device="cpu")
        self._scale = 255.0 if images.dtype == np.uint8 else 1.0

    def __call__(self, rows: np.ndarray) -> th.Tensor:
        selected, numbers = self._selected[: len(rows)], self._numbers[: len(rows)]
        np.take(self._images, rows, axis=0, out=selected, mode="clip")
        th.div(th.from_numpy(selected), self._scale, out=numbers)
        return numbers.permute(0, 3, 1, 2)


class ImageUpdate(TorchUpdate):
    """The same update of a view of the policy that takes scaled images or the output of its first layers.

    :param plan: the plan of the update
    """

    def __init__(self, plan: UpdatePlan):
        buffer, first = plan.buffer, FirstLayers.find(plan.kind.policy)
        self._n_rows = buffer.buffer_size * buffer.n_envs
        where = where_in(buffer, np.arange(self._n_rows))
        # The places of the rows in the array of observations, which has not been flattened if nothing has read it yet.
        self._places = where[0] * buffer.n_envs + where[1] if isinstance(where, tuple) else where
        images = buffer.observations.reshape(-1, *buffer.observations.shape[-3:])
        images = np.ascontiguousarray(np.moveaxis(images, 1, -1))
        self._select: Callable[[np.ndarray], th.Tensor] = (
            ScaledImages(images, max(plan.batch_size, ROWS_AT_ONCE))
            if first is None
            else partial(first, np.moveaxis(images, -1, 1))
        )
        actions = in_rows(buffer, buffer.actions).astype(np.float32, copy=False)
        numbers = [
            in_rows(buffer, array).ravel()
            for array in (buffer.values, buffer.log_probs, buffer.advantages, buffer.returns)
        ]
        self._others = [th.from_numpy(array) for array in (actions, *numbers)]
        masks: np.ndarray | None = getattr(buffer, "action_masks", None)
        self._masks = None if masks is None else th.from_numpy(in_rows(buffer, masks))
        view = without_scaling(plan.kind.policy) if first is None else first.rest
        super().__init__(replace(plan, kind=type(plan.kind)(with_onednn(view))))

    def _images_at(self, rows: np.ndarray) -> th.Tensor:
        return self._select(self._places[rows])

    def distributions(self) -> Iterator[Distribution]:
        for start in range(0, self._n_rows, ROWS_AT_ONCE):
            rows = np.arange(start, min(start + ROWS_AT_ONCE, self._n_rows))
            masks: tuple[th.Tensor, ...] = () if self._masks is None else (self._masks[start : start + ROWS_AT_ONCE],)
            yield self._plan.kind.policy.get_distribution(self._images_at(rows), *masks)

    def minibatches(self) -> Generator[Samples]:
        permutation = np.random.permutation(self._n_rows)
        size = self._plan.batch_size
        for start in range(0, len(permutation), size):
            rows = permutation[start : start + size]
            where = th.from_numpy(rows)
            others = [tensor[where] for tensor in self._others]
            masks = None if self._masks is None else self._masks[where]
            yield Samples._make([self._images_at(rows), *others, masks, rows])


class ActingAfter(ActingPolicy):
    """Acts with a policy whose first layers are computed separately.

    :param first: the first layers of the policy
    :param acting: acts with the rest of the policy
    """

    def __init__(self, first: FirstLayers, acting: ActingPolicy):
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
            return self._first.by_torch(observations)
        images = observations if observations.permute(0, 2, 3, 1).is_contiguous() else observations.contiguous()
        return self._first(images.numpy(), np.arange(len(images)))


class ImageActor(TorchActor):
    """Acts with the first layers of a policy computed separately from the rest."""

    def __init__(self, first: FirstLayers, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer):
        super().__init__(model, type(plan.kind)(with_onednn(first.rest)), buffer)
        self._acting = ActingAfter(first, self._acting)


class Images(Reference):
    """Computes the same as the reference backend, with images and filters laid out for convolutions."""

    name = "images"
    path = "fast"
    how = "images are laid out for convolutions"
    update = ImageUpdate

    def is_for(self, plan: UpdatePlan) -> bool:
        return not plan.kind.has_memory and isinstance(plan.kind.policy.features_extractor, NatureCNN)

    def obstacle(self, plan: UpdatePlan) -> str | None:
        return obstacles.find_obstacle(_check_plan, plan)

    @contextmanager
    def prepared(self, plan: UpdatePlan, updating: bool) -> Iterator[None]:
        """Use the fastest layout of filters, and in updates a fused Adam, while the context is active."""
        policy, optimizers = plan.kind.policy, plan.optimizers
        # Rollouts leave Adam alone, because a callback may save it.
        with (
            keep_freed_memory(),
            _lay_channels_last(policy, optimizers),
            fuse_adam(optimizers) if updating else nullcontext(),
        ):
            yield

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        first = FirstLayers.find(plan.kind.policy)
        if first is None:
            actor = TorchActor(model, type(plan.kind)(with_onednn(plan.kind.policy)), buffer)
        else:
            actor = ImageActor(first, model, plan, buffer)
        return UntilRemade(actor, model, plan)
