"""The parameters of a policy, their gradients and Adam's moments, each as one vector."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
import torch as th
from torch import nn

from sb3_ppo_variants.backends.native import structures
from sb3_ppo_variants.backends.native.structures import fitting
from sb3_ppo_variants.updates.plan import Descent

MOMENTS = ("exp_avg", "exp_avg_sq")
"""The names of Adam's moments."""


class Layout:
    """The position of each parameter in a vector.

    :param named: the parameters by name, in the order of the vector
    """

    def __init__(self, named: Mapping[str, nn.Parameter]):
        self.parameters = list(named.values())
        sizes = [parameter.numel() for parameter in self.parameters]
        self.slices = [slice(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]
        self._named = named

    def gather(self, tensors: Sequence[th.Tensor]) -> np.ndarray:
        """Concatenate tensors, one per parameter, into a new vector."""
        return np.concatenate([tensor.detach().numpy().ravel() for tensor in tensors])

    def scatter(self, vector: np.ndarray, tensors: Sequence[th.Tensor]) -> None:
        """Copy a vector back into tensors, one per parameter and of any shape."""
        for where, tensor in zip(self.slices, tensors, strict=True):
            # Through NumPy, because PyTorch takes twice as long to view and copy small tensors.
            array = tensor.detach().numpy()
            array[...] = vector[where].reshape(array.shape)

    def views(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parts of a vector by parameter name, in the parameters' shapes, sharing its memory."""
        rows = zip(self._named.items(), self.slices, strict=True)
        return {name: vector[where].reshape(parameter.shape) for (name, parameter), where in rows}

    def part(self, parameters: Sequence[nn.Parameter]) -> tuple[slice, "Layout"]:
        """Return the slice of the vector that consecutive parameters occupy, and the layout of that slice."""
        wanted = {id(parameter) for parameter in parameters}
        where = [at for at, parameter in zip(self.slices, self.parameters, strict=True) if id(parameter) in wanted]
        named = {name: parameter for name, parameter in self._named.items() if id(parameter) in wanted}
        return slice(where[0].start, where[-1].stop), Layout(named)


class TrainedPart:
    """The parameters that a descent trains, with their gradient and the state of Adam.

    :param vector: all parameters of the policy, in the order of the layout
    :param gradient: their gradient
    :param layout: the layout of both
    :param descent: the descent
    """

    def __init__(self, vector: np.ndarray, gradient: np.ndarray, layout: Layout, descent: Descent):
        where, self._layout = layout.part(descent.parameters)
        self._state = descent.optimizer.state
        # Only store_optimizer() creates missing states in the optimizer, because the update may be undone.
        self._is_new = [not self._state.get(parameter) for parameter in self._layout.parameters]
        pairs = zip(self._layout.parameters, self._is_new, strict=True)
        states = [_new_state(parameter) if is_new else self._state[parameter] for parameter, is_new in pairs]
        self._before = [self._layout.gather([state[name] for state in states]) for name in MOMENTS]
        self._steps_before = [float(state["step"]) for state in states]
        (group,) = descent.optimizer.param_groups
        self._betas = [float(beta) for beta in group["betas"]]
        # The library divides the moments by 1 - beta, which saves it a product for each of them.
        self._scaled = [moment / (1 - beta) for moment, beta in zip(self._before, self._betas, strict=True)]
        self.gradient = gradient[where]
        vectors, size = (vector[where], self.gradient, *self._scaled), len(self.gradient)
        self.adam = structures.Adam(
            *(fitting(each, "parameters, gradient or moments", vector.dtype, size) for each in vectors),
            size,
            int(self._steps_before[0]),
            float(group["lr"]),
            *self._betas,
            float(group["eps"]),
            float(descent.max_grad_norm),
        )
        """The part in the form that the library takes."""

    @property
    def steps(self) -> int:
        """The number of steps that the descent has made."""
        return self.adam.steps - int(self._steps_before[0])

    def store_optimizer(self) -> None:
        """Leave the gradients and the torch optimizer as if it had made the steps itself, if there were any."""
        if self.steps == 0:
            return
        for parameter, is_new in zip(self._layout.parameters, self._is_new, strict=True):
            grad = parameter.grad
            if grad is None or grad.shape != parameter.shape or grad.dtype != parameter.dtype:
                parameter.grad = th.zeros_like(parameter)
            if is_new:
                self._state[parameter] = _new_state(parameter)
        self._layout.scatter(self.gradient, [parameter.grad for parameter in self._layout.parameters])  # type: ignore[misc]
        moments = [moment * (1 - beta) for moment, beta in zip(self._scaled, self._betas, strict=True)]
        self._write(moments, [self.adam.steps] * len(self._is_new))

    def restore_optimizer(self) -> None:
        """Restore the torch optimizer to its state before the descent."""
        new = [each for each, is_new in zip(self._layout.parameters, self._is_new, strict=True) if is_new]
        self._state.update({parameter: _new_state(parameter) for parameter in new})
        self._write(self._before, self._steps_before)
        for parameter in new:
            del self._state[parameter]

    def _write(self, moments: Sequence[np.ndarray], steps: Sequence[float]) -> None:
        states = [self._state[parameter] for parameter in self._layout.parameters]
        for name, moment in zip(MOMENTS, moments, strict=True):
            self._layout.scatter(moment, [state[name] for state in states])
        for state, n_steps in zip(states, steps, strict=True):
            state["step"].fill_(n_steps)


def _new_state(parameter: nn.Parameter) -> dict[str, th.Tensor]:
    """Return the initial state of torch's Adam."""
    step = th.tensor(0.0, dtype=th.get_default_dtype())
    return {"step": step, **{name: th.zeros_like(parameter) for name in MOMENTS}}
