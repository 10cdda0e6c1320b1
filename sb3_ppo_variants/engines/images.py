"""SB3's convolutional network on a CPU, with memory laid out for convolutions.

The computation is the same as in the reference engine. Images and filters are stored channels-last, the fastest layout
for convolutions on CPUs, and Adam runs as one fused kernel. Where possible, the native library computes all
convolutions. Large linear layers use the library of PyTorch's convolutions.
"""

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace

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

from sb3_ppo_variants.collector import Actor
from sb3_ppo_variants.engines.native.convolutions import FirstLayers
from sb3_ppo_variants.engines.recognised import (
    ObstacleError,
    UntilChanged,
    check_optimizers,
    check_parameters,
    check_written_out,
    find_obstacle,
)
from sb3_ppo_variants.engines.reference import Reference, TorchActor, TorchUpdate
from sb3_ppo_variants.engines.views import with_onednn
from sb3_ppo_variants.policies.kind import Acted, ActingPolicy
from sb3_ppo_variants.rollout import ROWS_AT_ONCE, Samples, in_rows, where_in
from sb3_ppo_variants.update import UpdatePlan


def _check_plan(plan: UpdatePlan) -> None:
    policy = plan.kind.policy
    check_written_out(plan)
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
    check_parameters(plan.parameters.values())
    check_optimizers(plan)


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


class ImageUpdate(TorchUpdate):
    """The same update of a view of the policy, which takes the output of its first layers if the library has them.

    :param plan: the plan of the update
    """

    def __init__(self, plan: UpdatePlan):
        self._first = first = FirstLayers.find(plan.kind.policy)
        view = plan.kind.policy if first is None else first.rest
        if first is not None:
            self._read_rollout(plan.buffer)
        super().__init__(replace(plan, kind=type(plan.kind)(with_onednn(view))))

    def _read_rollout(self, buffer: RolloutBuffer) -> None:
        """Read the rollout, with images laid out for the library."""
        self._n_rows = buffer.buffer_size * buffer.n_envs
        where = where_in(buffer, np.arange(self._n_rows))
        # The places of the rows in the array of observations, which has not been flattened if nothing has read it yet.
        self._places = where[0] * buffer.n_envs + where[1] if isinstance(where, tuple) else where
        images = buffer.observations.reshape(-1, *buffer.observations.shape[-3:])
        self._images = np.moveaxis(np.ascontiguousarray(np.moveaxis(images, 1, -1)), -1, 1)
        columns = (buffer.values, buffer.log_probs, buffer.advantages, buffer.returns)
        actions = in_rows(buffer, buffer.actions).astype(np.float32, copy=False)
        self._others = [*map(th.from_numpy, (actions, *(in_rows(buffer, each).ravel() for each in columns)))]
        masks: np.ndarray | None = getattr(buffer, "action_masks", None)
        self._masks = None if masks is None else th.from_numpy(in_rows(buffer, masks))

    def distributions(self) -> Iterator[Distribution]:
        if self._first is None:
            yield from super().distributions()
            return
        for start in range(0, self._n_rows, ROWS_AT_ONCE):
            rows = np.arange(start, min(start + ROWS_AT_ONCE, self._n_rows))
            masks: tuple[th.Tensor, ...] = () if self._masks is None else (self._masks[start : start + ROWS_AT_ONCE],)
            features = self._first(self._images, self._places[rows])
            yield self._plan.kind.policy.get_distribution(features, *masks)

    def minibatches(self) -> Generator[Samples]:
        if self._first is None:
            with closing(super().minibatches()) as minibatches:
                yield from minibatches
            return
        permutation = np.random.permutation(self._n_rows)
        size = self._plan.batch_size
        for start in range(0, len(permutation), size):
            rows = permutation[start : start + size]
            where = th.from_numpy(rows)
            others = [tensor[where] for tensor in self._others]
            masks = None if self._masks is None else self._masks[where]
            yield Samples._make([self._first(self._images, self._places[rows]), *others, masks, rows])


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
    """Computes the same as the reference engine, with images and filters laid out for convolutions."""

    name = "images"
    path = "fast"
    how = "images are laid out for convolutions"
    update = ImageUpdate

    def is_for(self, plan: UpdatePlan) -> bool:
        return not plan.kind.has_memory and isinstance(plan.kind.policy.features_extractor, NatureCNN)

    def obstacle(self, plan: UpdatePlan) -> str | None:
        return find_obstacle(_check_plan, plan)

    @contextmanager
    def prepared(self, plan: UpdatePlan, updating: bool) -> Iterator[None]:
        """Use the fastest layout of filters, and in updates a fused Adam, while the context is active."""
        policy, optimizers = plan.kind.policy, plan.optimizers
        # Rollouts leave Adam alone, because a callback may save it.
        with (
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
        return UntilChanged(actor, model, plan)
