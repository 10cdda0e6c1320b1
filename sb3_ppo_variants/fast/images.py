"""The update of the reference path for SB3's convolutional network on a CPU, with memory laid out for convolutions.

The computation is the reference's. Images and filters lie in memory with their channels last, which the convolutions
of CPUs are fastest with, and Adam runs as one fused kernel.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import RolloutBufferSamples
from torch import nn

from sb3_ppo_variants.base.coefficients import Coefficients
from sb3_ppo_variants.base.rollout import in_rows
from sb3_ppo_variants.base.update import ROWS_AT_ONCE, TorchUpdate, Trained


@contextmanager
def channels_last(policy: ActorCriticPolicy) -> Iterator[None]:
    """Within it the filters of a policy, and what Adam knows of them, lie with their channels last.

    Their values and shapes stay as they are. Afterwards they lie as PyTorch makes them, so that how a rollout or an
    update rounds depends on its path alone and not on what came before.
    """
    _lay_out(policy, th.channels_last)
    try:
        yield
    finally:
        _lay_out(policy, th.contiguous_format)


def _lay_out(policy: ActorCriticPolicy, memory_format: th.memory_format) -> None:
    for module in policy.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.data = module.weight.data.contiguous(memory_format=memory_format)
            # The fused kernel takes the numbers as they lie in memory, those of the weight and of its moments alike.
            state = policy.optimizer.state.get(module.weight, {})
            for moment in state.keys() & {"exp_avg", "exp_avg_sq"}:
                state[moment] = state[moment].contiguous(memory_format=memory_format)


class ImageUpdate(TorchUpdate):
    """:class:`sb3_ppo_variants.base.update.TorchUpdate` for images, to be made and used within :func:`channels_last`.

    :param model: a model with a full rollout buffer
    :param coefficients: the coefficients of this update's objective
    """

    def __init__(self, model: Trained, coefficients: Coefficients):
        buffer = model.rollout_buffer
        self._images = np.ascontiguousarray(in_rows(buffer, np.moveaxis(buffer.observations, -3, -1)))
        actions = in_rows(buffer, buffer.actions).astype(np.float32, copy=False)
        numbers = [
            in_rows(buffer, array).ravel()
            for array in (buffer.values, buffer.log_probs, buffer.advantages, buffer.returns)
        ]
        self._others = [th.from_numpy(array) for array in (actions, *numbers)]
        super().__init__(model, coefficients)

    def _observations(self) -> Iterator[th.Tensor]:
        for start in range(0, len(self._images), ROWS_AT_ONCE):
            yield self._images_at(slice(start, start + ROWS_AT_ONCE))

    def _images_at(self, rows: Any) -> th.Tensor:
        return th.from_numpy(self._images[rows]).permute(0, 3, 1, 2)

    def minibatches(self) -> Iterator[tuple[np.ndarray, RolloutBufferSamples]]:
        """The minibatches that the buffer would make."""
        self._statistics.start_epoch()
        permutation = np.random.permutation(len(self._images))
        for start in range(0, len(permutation), self._model.batch_size):
            rows = permutation[start : start + self._model.batch_size]
            where = th.from_numpy(rows)
            yield rows, RolloutBufferSamples(self._images_at(rows), *(tensor[where] for tensor in self._others))

    def step(self) -> None:
        """One step of the policy's optimizer, the gradient clipped."""
        (group,) = self._policy.optimizer.param_groups
        chosen = group["fused"]
        group["fused"] = True
        try:
            super().step()
        finally:
            group["fused"] = chosen
