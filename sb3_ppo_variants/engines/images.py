"""SB3's convolutional network on a CPU, with memory laid out for convolutions.

The computation is the same as in the reference engine. Images and filters are stored channels-last, the fastest layout
for convolutions on CPUs, and Adam runs as one fused kernel. Where possible, the native library computes all
convolutions. The large linear layer uses the library of PyTorch's convolutions.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
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
from sb3_ppo_variants.engines import recognised
from sb3_ppo_variants.engines.native.convolutions import FirstLayers
from sb3_ppo_variants.engines.recognised import ObstacleError
from sb3_ppo_variants.engines.reference import Reference, TorchActor, TorchUpdate
from sb3_ppo_variants.engines.views import make_view, with_onednn
from sb3_ppo_variants.policies.kind import Acted, ActingPolicy
from sb3_ppo_variants.rollout import ROWS_AT_ONCE, Samples, in_rows, where_in
from sb3_ppo_variants.update import UpdatePlan

# The features extractors of a policy, which may be one.
EXTRACTORS = ("features_extractor", "pi_features_extractor", "vf_features_extractor")


def _view_of(policy: ActorCriticPolicy, first: FirstLayers | None) -> ActorCriticPolicy:
    """Make a view of a policy that multiplies with oneDNN.

    :param first: the layers whose output the view takes as observations; ``None`` if it takes the observations
    """
    views: dict[nn.Module, nn.Module] = {}
    for extractor in {getattr(policy, name) for name in EXTRACTORS}:
        large, *others = extractor.linear
        parts = {"linear": nn.Sequential(with_onednn(large), *others)}
        # The library computes all layers of a network except the last one, which flattens the output.
        views[extractor] = make_view(extractor, **parts, **({} if first is None else {"cnn": extractor.cnn[-1:]}))
    view = make_view(policy, **{name: views[getattr(policy, name)] for name in EXTRACTORS})
    if first is not None:
        view.normalize_images = False
    return view


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


class ConvolvedUpdate(TorchUpdate):
    """The same update with the first layers of the policy computed apart.

    :param plan: the plan of the update
    :param first: the first layers
    """

    def __init__(self, plan: UpdatePlan, first: FirstLayers):
        self._first, buffer = first, plan.buffer
        rows = np.arange(buffer.buffer_size * buffer.n_envs)
        where = where_in(buffer, rows)
        # The places of the rows in the array of observations, which has not been flattened if nothing has read it yet.
        self._places = where[0] * buffer.n_envs + where[1] if isinstance(where, tuple) else where
        images = buffer.observations.reshape(-1, *buffer.observations.shape[-3:])
        self._images = np.moveaxis(np.ascontiguousarray(np.moveaxis(images, 1, -1)), -1, 1)
        columns = (buffer.values, buffer.log_probs, buffer.advantages, buffer.returns)
        actions = in_rows(buffer, buffer.actions).astype(np.float32, copy=False)
        self._others = [*map(th.from_numpy, (actions, *(in_rows(buffer, each).ravel() for each in columns)))]
        masks: np.ndarray | None = getattr(buffer, "action_masks", None)
        self._masks = None if masks is None else th.from_numpy(in_rows(buffer, masks))
        super().__init__(replace(plan, kind=type(plan.kind)(_view_of(plan.kind.policy, first))))

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
    """Acts with a view of the policy, and with its first layers computed apart if the library computes them."""

    def __init__(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer):
        first = FirstLayers.find(plan.kind.policy)
        super().__init__(model, type(plan.kind)(_view_of(plan.kind.policy, first)), buffer)
        if first is not None:
            self._acting = ActingAfter(first, self._acting)


class Images(Reference):
    """Computes the same as the reference engine, with images and filters laid out for convolutions."""

    name = "images"
    path = "fast"
    how = "images are laid out for convolutions"

    def is_for(self, plan: UpdatePlan) -> bool:
        return not plan.kind.has_memory and isinstance(plan.kind.policy.features_extractor, NatureCNN)

    def check(self, plan: UpdatePlan) -> None:
        policy = plan.kind.policy
        recognised.check_written_out(plan)
        recognised.check_modules(plan.modules)
        if plan.proximal is not None:
            raise ObstacleError("the proximal policy is not that of the rollout")
        for extractor in [getattr(policy, name) for name in EXTRACTORS]:
            if type(extractor) is not NatureCNN:
                raise ObstacleError(f"features come from a {type(extractor).__name__}")
            if not type(extractor.cnn) is type(extractor.linear) is nn.Sequential:
                raise ObstacleError("the layers of the NatureCNN were replaced")
        space = policy.observation_space
        if space.dtype == np.uint8 and not (policy.normalize_images and is_image_space(space)):
            raise ObstacleError("images are not scaled to [0, 1]")
        recognised.check_parameters(plan.parameters.values())
        recognised.check_optimizers(plan)

    @contextmanager
    def prepared(self, plan: UpdatePlan, updating: bool) -> Iterator[None]:
        """Use the fastest layout of filters, and in updates a fused Adam, while the context is active."""
        # Rollouts leave Adam alone, because a callback may save it.
        with _lay_channels_last(plan.kind.policy, plan.optimizers), fuse_adam(plan.optimizers if updating else []):
            yield

    def update(self, plan: UpdatePlan) -> TorchUpdate:
        first = FirstLayers.find(plan.kind.policy)
        if first is not None:
            return ConvolvedUpdate(plan, first)
        return TorchUpdate(replace(plan, kind=type(plan.kind)(_view_of(plan.kind.policy, None))))

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        return recognised.UntilChanged(ImageActor(model, plan, buffer), model, plan)
