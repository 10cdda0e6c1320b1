"""SB3's convolutional network on a CPU, with memory laid out for convolutions.

The computation is that of the reference. Images and filters lie in memory with their channels last, which the
convolutions of CPUs are fastest with, and Adam runs as one fused kernel.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import numpy as np
import torch as th
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import NatureCNN
from torch import nn
from torch.optim import Optimizer

from sb3_ppo_variants.backends import obstacles
from sb3_ppo_variants.backends.reference import Reference
from sb3_ppo_variants.backends.torch_update import Minibatches, TorchUpdate
from sb3_ppo_variants.rollouts.buffer import ROWS_AT_ONCE, Samples, WithParameters, in_rows
from sb3_ppo_variants.updates.plan import UpdatePlan


def _features_obstacle(policy: ActorCriticPolicy) -> str | None:
    for extractor in (policy.pi_features_extractor, policy.vf_features_extractor):
        if type(extractor) is not NatureCNN:
            return f"features come from a {type(extractor).__name__}"
    return None


@contextmanager
def fused(optimizers: list[Optimizer]) -> Iterator[None]:
    """Within it Adam runs as one fused kernel."""
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
    """Within it the filters of a policy, and what Adam knows of them, lie with their channels last.

    Their values and shapes stay as they are. Afterwards they lie as PyTorch makes them, so that how a rollout or an
    update rounds depends on its path alone and not on what came before.
    """
    try:
        _lay_out(policy, optimizers, th.channels_last)
        yield
        _lay_out(policy, optimizers, th.contiguous_format)
    except BaseException:  # Also one that cuts the line before short.
        _lay_out(policy, optimizers, th.contiguous_format)
        raise


def _lay_out(policy: ActorCriticPolicy, optimizers: list[Optimizer], memory_format: th.memory_format) -> None:
    for module in policy.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.data = module.weight.data.contiguous(memory_format=memory_format)
            for optimizer in optimizers:
                # The fused kernel takes the numbers of the weight and of its moments as they lie in memory.
                state = optimizer.state.get(module.weight, {})
                for moment in state.keys() & {"exp_avg", "exp_avg_sq"}:
                    state[moment] = state[moment].contiguous(memory_format=memory_format)


class ImageMinibatches(Minibatches):
    """The minibatches that a buffer would make, their images with channels last."""

    def __init__(self, plan: UpdatePlan):
        super().__init__(plan)
        buffer = plan.buffer
        self._images = np.ascontiguousarray(in_rows(buffer, np.moveaxis(buffer.observations, -3, -1)))
        actions = in_rows(buffer, buffer.actions).astype(np.float32, copy=False)
        numbers = [
            in_rows(buffer, array).ravel()
            for array in (buffer.values, buffer.log_probs, buffer.advantages, buffer.returns)
        ]
        self._others = [th.from_numpy(array) for array in (actions, *numbers)]

    def distributions(self) -> Iterator[Distribution]:
        for start in range(0, len(self._images), ROWS_AT_ONCE):
            yield self._kind.policy.get_distribution(self._images_at(slice(start, start + ROWS_AT_ONCE)))

    def _images_at(self, rows: slice | np.ndarray) -> th.Tensor:
        return th.from_numpy(self._images[rows]).permute(0, 3, 1, 2)

    def shuffled(self) -> Iterator[Samples]:
        permutation = np.random.permutation(len(self._images))
        old = self._buffer.old_parameters if isinstance(self._buffer, WithParameters) else None
        for start in range(0, len(permutation), self._batch_size):
            rows = permutation[start : start + self._batch_size]
            where = th.from_numpy(rows)
            old_rows = None if old is None else tuple(column[where] for column in old)
            others = [tensor[where] for tensor in self._others]
            yield Samples._make([self._images_at(rows), *others, old_rows, None])


class Images(Reference):
    """Computes as the reference does, with images and filters laid out for convolutions."""

    path = "fast"
    how = "images are laid out for convolutions"
    update = staticmethod(partial(TorchUpdate, ImageMinibatches))

    def obstacle(self, plan: UpdatePlan) -> str | None:
        policy = plan.kind.policy
        return (
            obstacles.of_policy(plan.kind)
            or obstacles.of_buffer(plan.buffer, plan.kind)
            or _features_obstacle(policy)
            or obstacles.of_parameters(policy)
            or obstacles.of_optimizers(policy, plan.optimizers)
        )

    @contextmanager
    def prepared(self, plan: UpdatePlan, updating: bool) -> Iterator[None]:
        """Within it filters lie with their channels last, and in updates Adam is fused."""
        # Not in rollouts, where a callback may save the optimizer.
        adam = fused(plan.optimizers) if updating else nullcontext()
        with _channels_last(plan.kind.policy, plan.optimizers), adam:
            yield
