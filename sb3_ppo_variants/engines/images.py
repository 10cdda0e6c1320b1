"""SB3's convolutional network on a CPU.

The native library computes all convolutions, with one image after the other passing through them, and PyTorch the rest.
The large linear layer uses oneDNN, the library of PyTorch's convolutions. The computation is the same as in the
reference engine.
"""

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

from sb3_ppo_variants.collector import Actor
from sb3_ppo_variants.engines import recognised
from sb3_ppo_variants.engines.native.convolutions import FirstLayers
from sb3_ppo_variants.engines.reference import Reference, TorchActor, TorchUpdate
from sb3_ppo_variants.engines.sequences import fuse_adam
from sb3_ppo_variants.engines.views import make_view, with_onednn
from sb3_ppo_variants.policies.kind import Acted, ActingPolicy
from sb3_ppo_variants.rollout import ROWS_AT_ONCE, Samples, in_rows
from sb3_ppo_variants.update import Descent, DescentResult, UpdatePlan


def _view_without_first_layers(policy: ActorCriticPolicy) -> ActorCriticPolicy:
    """Make a view of a policy that takes the output of its first layers as observations."""
    extractor = cast(Any, policy.features_extractor)
    large, *others = extractor.linear
    # The library computes all layers of the network except the last one, which flattens the output.
    rest = make_view(extractor, cnn=extractor.cnn[-1:], linear=nn.Sequential(with_onednn(large), *others))
    view = make_view(policy, features_extractor=rest, pi_features_extractor=rest, vf_features_extractor=rest)
    view.normalize_images = False
    return view


class ImageUpdate(TorchUpdate):
    """The same update with the first layers of the policy computed apart.

    :param plan: the plan of the update
    """

    def __init__(self, plan: UpdatePlan):
        self._first, buffer = FirstLayers(plan.kind.policy), plan.buffer
        rows = np.arange(buffer.buffer_size * buffer.n_envs)
        # The places of the rows in the array of observations, which has not been flattened if nothing has read it yet.
        by_step = rows % buffer.buffer_size * buffer.n_envs + rows // buffer.buffer_size
        self._places = rows if buffer.generator_ready else by_step
        images = buffer.observations.reshape(-1, *buffer.observations.shape[-3:])
        self._images = np.moveaxis(np.ascontiguousarray(np.moveaxis(images, 1, -1)), -1, 1)
        columns = (buffer.values, buffer.log_probs, buffer.advantages, buffer.returns)
        actions = in_rows(buffer, buffer.actions).astype(np.float32, copy=False)
        self._others = [*map(th.from_numpy, (actions, *(in_rows(buffer, each).ravel() for each in columns)))]
        masks: np.ndarray | None = getattr(buffer, "action_masks", None)
        self._masks = None if masks is None else th.from_numpy(in_rows(buffer, masks))
        super().__init__(replace(plan, kind=type(plan.kind)(_view_without_first_layers(plan.kind.policy))))

    def distributions(self) -> Iterator[Distribution]:
        for start in range(0, len(self._places), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            masks: tuple[th.Tensor, ...] = () if self._masks is None else (self._masks[rows],)
            yield self._plan.kind.policy.get_distribution(self._first(self._images, self._places[rows]), *masks)

    def minibatches(self) -> Generator[Samples]:
        permutation = np.random.permutation(len(self._places))
        for start in range(0, len(permutation), self._plan.batch_size):
            rows = permutation[start : start + self._plan.batch_size]
            where = th.from_numpy(rows)
            others = [tensor[where] for tensor in self._others]
            masks = None if self._masks is None else self._masks[where]
            yield Samples._make([self._first(self._images, self._places[rows]), *others, masks, rows])

    def descend(self, descent: Descent) -> DescentResult:
        with fuse_adam(descent.optimizer):
            return super().descend(descent)


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
    """Acts with the first layers of a policy computed apart from the rest."""

    def __init__(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer):
        super().__init__(model, type(plan.kind)(_view_without_first_layers(plan.kind.policy)), buffer)
        self._acting = ActingAfter(FirstLayers(plan.kind.policy), self._acting)


class Images(Reference):
    """Computes the same as the reference engine, convolutions with the native library."""

    name = "images"
    path = "fast"
    how = "the native library computes the convolutions"
    update = ImageUpdate

    def is_for(self, plan: UpdatePlan) -> bool:
        return not plan.kind.has_memory and isinstance(plan.kind.policy.features_extractor, NatureCNN)

    def check(self, plan: UpdatePlan) -> None:
        recognised.check_library()
        recognised.check_written_out(plan)
        recognised.check_modules(plan.modules)
        FirstLayers(plan.kind.policy)
        recognised.check_parameters(plan.parameters.values())
        recognised.check_optimizers(plan)

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        return recognised.UntilChanged(ImageActor(model, plan, buffer), model, plan)
