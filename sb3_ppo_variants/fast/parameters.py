"""All parameters of a policy, their gradients and Adam's moments, each as one vector."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy

from sb3_ppo_variants.fast.adam import Adam


class Layout:
    """Where each parameter stands in a vector of all.

    :param policy: the policy
    :param first: names of parameters that stand first, in this order; the others follow in the policy's order
    """

    def __init__(self, policy: ActorCriticPolicy, first: Sequence[str]):
        named = dict(policy.named_parameters())
        self._parameters = [named[name] for name in first]
        self._parameters += [parameter for name, parameter in named.items() if name not in first]
        names = [*first, *(name for name in named if name not in first)]
        ends = np.cumsum([parameter.numel() for parameter in self._parameters]).tolist()
        self._slices = [
            slice(end - parameter.numel(), end) for parameter, end in zip(self._parameters, ends, strict=True)
        ]
        self._by_name = dict(zip(names, range(len(names)), strict=True))

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
        return {name: vector[self._slices[i]].reshape(self._parameters[i].shape) for name, i in self._by_name.items()}

    def side_by_side(self, vector: np.ndarray, names: Sequence[str]) -> np.ndarray:
        """The parts of parameters of one shape that stand one behind the other, as one array, sharing memory."""
        first, last = self._by_name[names[0]], self._by_name[names[-1]]
        both = vector[self._slices[first].start : self._slices[last].stop]
        return both.reshape(len(names), *self._parameters[first].shape)

    @property
    def parameters(self) -> list[th.nn.Parameter]:
        """The policy's parameters in the order of the vector."""
        return self._parameters


def gradients(parameters: Sequence[th.nn.Parameter]) -> list[th.Tensor]:
    """The parameters' gradients, made where there are none."""
    found = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = th.zeros_like(parameter)
        found.append(parameter.grad)
    return found


def load_adam(optimizer: th.optim.Optimizer, layout: Layout) -> Adam:
    """Adam over a vector, where a torch optimizer stands.

    :param optimizer: a ``torch.optim.Adam`` with one group of parameters
    """
    (group,) = optimizer.param_groups
    beta1, beta2 = group["betas"]
    states = [_state(optimizer, parameter) for parameter in layout.parameters]
    return Adam(
        layout.gather([state["exp_avg"] for state in states]),
        layout.gather([state["exp_avg_sq"] for state in states]),
        steps=int(states[0]["step"]),
        learning_rate=float(group["lr"]),
        betas=(float(beta1), float(beta2)),
        eps=float(group["eps"]),
    )


def store_adam(adam: Adam, optimizer: th.optim.Optimizer, layout: Layout) -> None:
    """Leave the torch optimizer as if it had made the steps itself."""
    states = [_state(optimizer, parameter) for parameter in layout.parameters]
    first, second = adam.moments
    layout.scatter(first, [state["exp_avg"] for state in states])
    layout.scatter(second, [state["exp_avg_sq"] for state in states])
    for state in states:
        state["step"].fill_(float(adam.steps))


def _state(optimizer: th.optim.Optimizer, parameter: th.nn.Parameter) -> dict[str, Any]:
    # As torch's Adam begins.
    state: dict[str, Any] = optimizer.state[parameter]
    if not state:
        state["step"] = th.tensor(0.0, dtype=th.get_default_dtype())
        state["exp_avg"] = th.zeros_like(parameter)
        state["exp_avg_sq"] = th.zeros_like(parameter)
    return state
