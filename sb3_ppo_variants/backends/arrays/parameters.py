"""Parameters of a policy, their gradients and Adam's moments, each as one vector."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
import torch as th
from torch import nn
from torch.optim import Optimizer

from sb3_ppo_variants.backends.arrays.adam import Adam


class Layout:
    """Where each parameter stands in a vector.

    :param named: the parameters by name, in the order of the vector
    """

    def __init__(self, named: Mapping[str, nn.Parameter]):
        self.parameters = list(named.values())
        sizes = [parameter.numel() for parameter in self.parameters]
        ends = np.cumsum(sizes).tolist()
        self._slices = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        self._by_name = {name: i for i, name in enumerate(named)}

    def gather(self, tensors: Sequence[th.Tensor]) -> np.ndarray:
        """A new vector of what belongs to the parameters, one tensor each."""
        return np.concatenate([tensor.detach().numpy().ravel() for tensor in tensors])

    def scatter(self, vector: np.ndarray, tensors: Sequence[th.Tensor]) -> None:
        """Write a vector back."""
        with th.no_grad():
            for where, tensor in zip(self._slices, tensors, strict=True):
                tensor.copy_(th.from_numpy(vector[where]).view_as(tensor))

    def views(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """The parts of a vector by the parameters' names, in the parameters' shapes, sharing its memory."""
        return {name: vector[self._slices[i]].reshape(self.parameters[i].shape) for name, i in self._by_name.items()}

    def side_by_side(self, vector: np.ndarray, names: Sequence[str]) -> np.ndarray:
        """The parts of parameters of one shape that stand one behind the other, as one array, sharing memory."""
        first, last = self._by_name[names[0]], self._by_name[names[-1]]
        both = vector[self._slices[first].start : self._slices[last].stop]
        return both.reshape(len(names), *self.parameters[first].shape)

    def part(self, parameters: Sequence[nn.Parameter]) -> tuple[slice, "Layout"]:
        """Where parameters stand that follow one another in the vector, and the layout of that part."""
        wanted = {id(parameter) for parameter in parameters}
        named = {name: self.parameters[i] for name, i in self._by_name.items() if id(self.parameters[i]) in wanted}
        where = [self._slices[self._by_name[name]] for name in named]
        return slice(where[0].start, where[-1].stop), Layout(named)


def gradients(parameters: Sequence[nn.Parameter]) -> list[th.Tensor]:
    """The parameters' gradients, made where there are none."""
    found = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = th.zeros_like(parameter)
        found.append(parameter.grad)
    return found


class AdamState(TypedDict):
    """What torch's Adam keeps of a parameter."""

    step: th.Tensor
    exp_avg: th.Tensor
    exp_avg_sq: th.Tensor


def load_adam(optimizer: Optimizer, layout: Layout) -> Adam:
    """Adam over a vector, where a torch optimizer stands.

    :param optimizer: a ``torch.optim.Adam`` with one group of parameters, those of the layout
    """
    (group,) = optimizer.param_groups
    beta1, beta2 = group["betas"]
    states = [optimizer.state.get(parameter) or _first_state(parameter) for parameter in layout.parameters]
    return Adam(
        layout.gather([state["exp_avg"] for state in states]),
        layout.gather([state["exp_avg_sq"] for state in states]),
        steps=int(states[0]["step"]),
        learning_rate=float(group["lr"]),
        betas=(float(beta1), float(beta2)),
        eps=float(group["eps"]),
    )


def store_adam(adam: Adam, optimizer: Optimizer, layout: Layout) -> None:
    """Leave the torch optimizer as if it had made the steps itself."""
    for parameter in layout.parameters:
        if not optimizer.state[parameter]:
            optimizer.state[parameter] = dict(_first_state(parameter))
    states = [optimizer.state[parameter] for parameter in layout.parameters]
    first, second = adam.moments
    layout.scatter(first, [state["exp_avg"] for state in states])
    layout.scatter(second, [state["exp_avg_sq"] for state in states])
    for state in states:
        state["step"].fill_(float(adam.steps))


def _first_state(parameter: nn.Parameter) -> AdamState:
    """As torch's Adam begins."""
    step = th.tensor(0.0, dtype=th.get_default_dtype())
    return {"step": step, "exp_avg": th.zeros_like(parameter), "exp_avg_sq": th.zeros_like(parameter)}
