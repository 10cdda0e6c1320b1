"""The one undo of an update: the policy, the optimizers and the model's attributes as they were before it."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from copy import deepcopy
from types import TracebackType
from typing import Any

import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from torch.optim import Optimizer

from sb3_ppo_variants.interrupts import HELD


class Snapshot(AbstractContextManager["Snapshot"]):
    """A context manager that undoes an update, unless ``kept`` was set.

    It restores the weights and buffers of modules, the state and the settings of optimizers, and the attributes of the
    model, such as the number of updates.

    This is a class rather than a generator with ``@contextmanager``, because an interrupt within contextlib would leave
    the generator suspended, and nothing would be undone.

    :param model: the model
    :param modules: the modules that the update changes, such as the policy
    :param optimizers: the optimizers that it steps
    """

    kept: bool = False
    """Whether to keep all changes. No interrupt can divide the assignment that sets it."""

    def __init__(self, model: OnPolicyAlgorithm, modules: Iterable[th.nn.Module], optimizers: Iterable[Optimizer]):
        self._model = model
        self._attributes = dict(model.__dict__)
        self._modules = [(module, _clone(module.state_dict())) for module in modules]
        self._optimizers = [(optimizer, _clone(optimizer.state_dict())) for optimizer in optimizers]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.kept:
            with HELD:  # A second Ctrl-C must not cut this short.
                self.restore()

    def restore(self) -> None:
        """Restore everything."""
        for module, state in self._modules:
            for name, buffer in module.named_buffers():
                # The update may have changed its shape, which load_state_dict() refuses to change back.
                if name in state and buffer.shape != state[name].shape:
                    buffer.data = state[name].clone()
            module.load_state_dict(state)
        for optimizer, state in self._optimizers:
            optimizer.load_state_dict(state)
        attributes = self._model.__dict__
        for name in attributes.keys() - self._attributes.keys():
            del attributes[name]
        attributes.update(self._attributes)


def _clone(state: Any) -> Any:
    # The result equals that of deepcopy, which takes many times as long for a tensor, but also copies sparse ones.
    if isinstance(state, th.Tensor) and state.layout is th.strided:
        return state.detach().clone(memory_format=th.contiguous_format)
    if isinstance(state, dict):
        return {key: _clone(value) for key, value in state.items()}
    return [*map(_clone, state)] if isinstance(state, list) else deepcopy(state)
