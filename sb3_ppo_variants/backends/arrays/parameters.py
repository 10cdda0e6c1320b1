"""The parameters of a policy, their gradients and Adam's moments, each as one vector."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypedDict

import numpy as np
import torch as th
from torch import nn
from torch.optim import Optimizer

from sb3_ppo_variants.backends.arrays.adam import Adam


class Layout:
    """The position of each parameter in a vector.

    :param named: the parameters by name, in the order of the vector
    """

    def __init__(self, named: Mapping[str, nn.Parameter]):
        self.parameters = list(named.values())
        sizes = [parameter.numel() for parameter in self.parameters]
        self.slices = [slice(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]
        self._by_name = {name: i for i, name in enumerate(named)}

    def gather(self, tensors: Sequence[th.Tensor]) -> np.ndarray:
        """Concatenate tensors, one per parameter, into a new vector."""
        return np.concatenate([tensor.detach().numpy().ravel() for tensor in tensors])

    def scatter(self, vector: np.ndarray, tensors: Sequence[th.Tensor]) -> None:
        """Copy a vector back into tensors, one per parameter."""
        for where, tensor in zip(self.slices, tensors, strict=True):
            _write(vector[where], tensor)

    def views(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parts of a vector by parameter name, in the parameters' shapes, sharing its memory."""
        return {name: vector[self.slices[i]].reshape(self.parameters[i].shape) for name, i in self._by_name.items()}

    def shape_of(self, name: str) -> th.Size:
        """Return the shape of a parameter."""
        return self.parameters[self._by_name[name]].shape

    def side_by_side(self, vector: np.ndarray, names: Sequence[str]) -> np.ndarray:
        """Return the parts of consecutive parameters of the same shape as one stacked array, sharing memory."""
        first, last = self._by_name[names[0]], self._by_name[names[-1]]
        both = vector[self.slices[first].start : self.slices[last].stop]
        return both.reshape(len(names), *self.parameters[first].shape)

    def part(self, parameters: Sequence[nn.Parameter]) -> tuple[slice, "Layout"]:
        """Return the slice of the vector that consecutive parameters occupy, and the layout of that slice."""
        wanted = {id(parameter) for parameter in parameters}
        named = {name: self.parameters[i] for name, i in self._by_name.items() if id(self.parameters[i]) in wanted}
        where = [self.slices[self._by_name[name]] for name in named]
        return slice(where[0].start, where[-1].stop), Layout(named)


def gradients(parameters: Sequence[nn.Parameter]) -> list[th.Tensor]:
    """Return the parameters' gradients, and create those that are missing or of another shape or type."""
    found = []
    for parameter in parameters:
        grad = parameter.grad
        if grad is None or grad.shape != parameter.shape or grad.dtype != parameter.dtype:
            grad = parameter.grad = th.zeros_like(parameter)
        found.append(grad)
    return found


class AdamState(TypedDict):
    """The state that torch's Adam keeps for a parameter."""

    step: th.Tensor
    exp_avg: th.Tensor
    exp_avg_sq: th.Tensor


class Moments(NamedTuple):
    """The state of a ``torch.optim.Adam`` that has one parameter group with the parameters of a layout."""

    first: np.ndarray
    second: np.ndarray
    steps: Sequence[float]
    """The number of steps made with each parameter."""
    known: Sequence[bool]
    """Whether the optimizer has a state for each parameter. It creates them in its first step."""

    @classmethod
    def of(cls, optimizer: Optimizer, layout: Layout) -> "Moments":
        """Copy the state of an optimizer, with zeros for parameters without a state."""
        # Only write() stores missing states in the optimizer, because the update may be undone.
        found = [optimizer.state.get(parameter) for parameter in layout.parameters]
        states = [state or _fresh(parameter) for state, parameter in zip(found, layout.parameters, strict=True)]
        first, second = (layout.gather([state[name] for state in states]) for name in ("exp_avg", "exp_avg_sq"))
        return cls(first, second, [float(state["step"]) for state in states], [*map(bool, found)])

    @classmethod
    def after(cls, adam: Adam, layout: Layout) -> "Moments":
        """Return the state of an Adam over a vector."""
        n = len(layout.parameters)
        return cls(*adam.moments, [adam.steps] * n, [True] * n)

    def adam(self, optimizer: Optimizer) -> Adam:
        """Create an Adam over a vector, with this state and the settings of the torch optimizer."""
        (group,) = optimizer.param_groups
        beta1, beta2 = group["betas"]
        betas, learning_rate, eps = (float(beta1), float(beta2)), float(group["lr"]), float(group["eps"])
        return Adam(self.first, self.second, int(self.steps[0]), learning_rate, betas, eps)

    def write(self, optimizer: Optimizer, layout: Layout) -> None:
        """Write this state to the torch optimizer."""
        rows = zip(layout.parameters, layout.slices, self.steps, self.known, strict=True)
        for parameter, where, steps, known in rows:
            if not known:
                optimizer.state.pop(parameter, None)
                continue
            state = optimizer.state[parameter]
            if not state:
                state.update(_fresh(parameter))
            _write(self.first[where], state["exp_avg"])
            _write(self.second[where], state["exp_avg_sq"])
            state["step"].fill_(steps)


def _write(values: np.ndarray, tensor: th.Tensor) -> None:
    """Copy values into a tensor of any shape."""
    # Through NumPy, because PyTorch takes twice as long to view and copy small tensors.
    array = tensor.detach().numpy()
    array[...] = values.reshape(array.shape)


def _fresh(parameter: nn.Parameter) -> AdamState:
    """Return the initial state of torch's Adam."""
    return AdamState(
        step=th.tensor(0.0, dtype=th.get_default_dtype()),
        exp_avg=th.zeros_like(parameter),
        exp_avg_sq=th.zeros_like(parameter),
    )
