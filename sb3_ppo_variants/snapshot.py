"""The one undo of an update: the policy, the optimizers and the model's attributes as they were before it."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
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
        self._buffers: list[tuple[th.nn.Module, str, th.Tensor]] = []
        self._tensors: list[tuple[th.Tensor, th.Tensor]] = []
        self._optimizers: list[tuple[Optimizer, dict[Any, Any], list[dict[str, Any]]]] = []
        for module in modules:
            for name, buffer in module.named_buffers():
                owner, _, own = name.rpartition(".")
                self._buffers.append((module.get_submodule(owner), own, buffer))
            for tensor in (*module.parameters(), *module.buffers()):
                self._tensors.append((tensor, tensor.detach().clone()))
        for optimizer in optimizers:
            self._optimizers.append((optimizer, _clone(dict(optimizer.state)), _clone(optimizer.param_groups)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.kept:
            with HELD:  # A second Ctrl-C must not cut this short.
                self.restore()

    @th.no_grad()
    def restore(self) -> None:
        """Restore everything, each tensor in its own memory."""
        for owner, name, buffer in self._buffers:
            setattr(owner, name, buffer)
        for tensor, before in self._tensors:
            if tensor.shape == before.shape:
                tensor.copy_(before)
            else:
                tensor.data = before
        for optimizer, state, groups in self._optimizers:
            optimizer.state.clear()
            optimizer.state.update(state)
            for group, settings in zip(optimizer.param_groups, groups, strict=True):
                group.clear()
                group.update(settings)
        attributes = self._model.__dict__
        for name in attributes.keys() - self._attributes.keys():
            del attributes[name]
        attributes.update(self._attributes)


def _clone(state: Any) -> Any:
    """Copy the tensors of an optimizer's state, except parameters."""
    if isinstance(state, th.Tensor):
        return state if isinstance(state, th.nn.Parameter) else state.detach().clone()
    if isinstance(state, dict):
        return {key: _clone(value) for key, value in state.items()}
    return [*map(_clone, state)] if isinstance(state, list) else state
