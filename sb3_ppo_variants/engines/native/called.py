"""What the library calls during a pass: losses in Python, and averages over the processes that train together."""

import ctypes
from collections.abc import Callable, Iterable, Set
from typing import Any

import numpy as np
import torch as th
from torch.autograd.graph import get_gradient_edge

from sb3_ppo_variants.engines.native import library
from sb3_ppo_variants.engines.native.networks import NativeDistribution
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.kl import Parameters, divergences_of
from sb3_ppo_variants.losses import ClippedError, Huber, SquaredError, ValueLoss, check_loss
from sb3_ppo_variants.objectives import Batch, Objective, has_term
from sb3_ppo_variants.objectives.objective import OF_DISTRIBUTIONS
from sb3_ppo_variants.rollout import Columns
from sb3_ppo_variants.update import UpdatePlan

# The value losses that losses.hpp computes.
NATIVE_VALUE_LOSSES = (SquaredError, ClippedError, Huber)
# PyTorch's name of the nodes of a graph that stand for parameters and other leaves.
LEAF = "torch::autograd::AccumulateGrad"


class PythonFunctions:
    """The functions that the library calls. Keep this object alive while it makes passes.

    The library calls the objective and the value loss of a plan, as far as it has no terms for them, once per minibatch
    with what it knows of it. Autograd differentiates the loss with respect to what it has read, and the library goes on
    from there to the parameters of the networks.

    Exceptions cannot propagate through the library, not even that of an interrupt which arrives before a function has
    begun. A function therefore reports its success in the outcome, as the last thing that it does.

    :param plan: the plan of the update
    :param distribution: how its policy draws actions
    :param columns: what a loss may read of the rollout
    :param old_parameters: the parameters of the old distributions, if the objective may read them
    :param permutation: the order of the rows in a pass
    :param gradient: the gradient, which is averaged in place
    :param outcome: the outcome of the descent
    """

    def __init__(
        self,
        plan: UpdatePlan,
        distribution: NativeDistribution,
        columns: Columns,
        old_parameters: Parameters | None,
        permutation: np.ndarray,
        gradient: np.ndarray,
        outcome: library.Outcome,
    ):
        self._plan, self._distribution, self._columns, self._permutation = plan, distribution, columns, permutation
        self._old_parameters, self._dtype = old_parameters, gradient.dtype
        self._rows = min(plan.batch_size, len(permutation))
        self._gradient, self._outcome = th.from_numpy(gradient), outcome
        self._made: list[object] = []
        # The initial value stands for an interrupt that arrives before a function has begun.
        self._error: BaseException = KeyboardInterrupt()
        self._known: dict[str, np.ndarray] = {}
        self._slopes: dict[str, np.ndarray] = {}
        self._written: Set[str] = set()
        fields: dict[str, Any] = {}
        if not has_term(plan.objective):
            fields |= self._fields_of_objective()
        if type(plan.value_loss) not in NATIVE_VALUE_LOSSES:
            fields |= self._fields_of_value_loss()
        self.own = library.OwnLosses(**fields)
        """The losses in the form that the library takes."""
        self.averages: tuple[int | None, int | None] = (None, None)
        """The addresses of the functions that average a number and the gradient; ``None`` in a process alone."""
        if plan.processes.size > 1:
            number = ctypes.POINTER(library.NUMBER)
            self.averages = self._address(self._average_number, number), self._address(self._average_gradient)

    def _address(self, function: Callable[..., object], *types: type) -> int | None:
        """Return the address of a function for the library.

        :param types: the types of its arguments
        """

        def call(*arguments: object) -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self._error = error
                return
            self._outcome.answered = 1

        made = ctypes.CFUNCTYPE(None, *types)(call)
        self._made.append(made)
        return ctypes.cast(made, ctypes.c_void_p).value

    def check(self) -> None:
        """Raise the error that ended the pass, if a function failed."""
        if not self._outcome.answered:
            raise self._error

    def _average_number(self, number: "ctypes._Pointer[ctypes.c_double]") -> None:
        number[0] = self._plan.processes.mean(number[0])

    def _average_gradient(self) -> None:
        self._plan.processes.average(self._gradient)

    def _fields_of_objective(self) -> dict[str, library.FieldValue]:
        shapes: dict[str, tuple[int, ...]] = {"log_ratio": (self._rows,), "entropy": (self._rows,)}
        if self._plan.objective.needs_kl:
            self._divergences = divergences_of(self._plan.kind.policy.action_dist)
            outputs, n_stds = self._distribution.outputs, self._distribution.n_stds
            shapes |= {"kl": (self._rows,), "reverse_kl": (self._rows,), "outputs": (self._rows, outputs)}
            shapes |= {"deviations": (self._rows, n_stds)} if n_stds else {}
        self._known = {name: np.zeros(shape, self._dtype) for name, shape in shapes.items()}
        self._slopes = {name: np.zeros(shape, self._dtype) for name, shape in shapes.items()}
        self._advantages, self._losses = np.zeros((2, self._rows), self._dtype)
        return {
            "advantages": self._advantages,
            "losses": self._losses,
            "evaluate": self._address(self._evaluate, library.INTEGER, library.INTEGER),
            **self._known,
            **{f"d_{name}": slopes for name, slopes in self._slopes.items()},
        }

    def _evaluate(self, start: int, count: int) -> None:
        """Evaluate the objective on the minibatch that begins here in the permutation."""
        objective, rows = self._plan.objective, self._permutation[start : start + count]
        leaves: dict[str, th.Tensor] = {}

        def leaf(name: str) -> th.Tensor:
            if name not in leaves:
                leaves[name] = th.from_numpy(self._known[name][:count].copy()).requires_grad_()
            return leaves[name]

        def read(name: str) -> Any:
            if name in ("log_ratio", "entropy", "kl", "reverse_kl"):
                return leaf(name) if name in self._known else None
            if name not in OF_DISTRIBUTIONS:
                return self._columns.read(name, rows, th.from_numpy)
            if self._old_parameters is None:
                return None
            deviations = leaf("deviations") if self._distribution.n_stds else None
            new = self._distribution.parameters(leaf("outputs"), deviations)
            return self._divergences.between(name, tuple(column[rows] for column in self._old_parameters), new)

        with th.enable_grad():
            loss = objective.loss(Batch(None, th.from_numpy(self._advantages[:count].copy()), source=read))
        check_loss(loss, objective, "policy")
        if not self._written:  # In the first minibatch, which the others are like.
            _check_leaves(loss, objective, leaves.values())
        self._losses[:count] = loss.item()
        found = zip(leaves, th.autograd.grad(loss, [*leaves.values()], allow_unused=True), strict=True)
        slopes = {name: slope.numpy() for name, slope in found if slope is not None}
        for name in self._written - slopes.keys():
            self._slopes[name][:] = 0.0
        for name, array in slopes.items():
            self._slopes[name][:count] = array
        self._written = slopes.keys()

    def _fields_of_value_loss(self) -> dict[str, library.FieldValue]:
        self._values, self._value_losses, self._d_values = np.zeros((3, self._rows), self._dtype)
        return {
            "values": self._values,
            "value_losses": self._value_losses,
            "d_values": self._d_values,
            "evaluate_values": self._address(self._evaluate_values, library.INTEGER, library.INTEGER),
        }

    def _evaluate_values(self, start: int, count: int) -> None:
        """Evaluate the value loss on the minibatch that begins here in the permutation."""
        value_loss, rows = self._plan.value_loss, self._permutation[start : start + count]
        old_values, returns = (self._columns.read(name, rows, th.from_numpy) for name in ("old_values", "returns"))
        with th.enable_grad():
            values = th.from_numpy(self._values[:count].copy()).requires_grad_()
            loss = value_loss.loss(values, old_values, returns)
        check_loss(loss, value_loss, "values")
        if start == 0:
            _check_leaves(loss, value_loss, [values])
        self._value_losses[:count] = loss.item()
        (slopes,) = th.autograd.grad(loss, [values])
        self._d_values[:count] = slopes.numpy()


def _check_leaves(loss: th.Tensor, part: Objective | ValueLoss, leaves: Iterable[th.Tensor]) -> None:
    """Check that a loss depends on parameters only through what it has read of the minibatch.

    :param leaves: what it has read, before anything was computed from it
    :raises ArgumentError: if there is another way
    """
    seen = {get_gradient_edge(leaf).node for leaf in leaves}
    nodes = [get_gradient_edge(loss).node]
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        if node.name() == LEAF:
            raise ArgumentError(
                f"{type(part).__name__}.loss depends on parameters in another way than through the minibatch, which "
                "the native library does not follow: pass fast=False"
            )
        seen.add(node)
        nodes += [source for source, _ in node.next_functions if source is not None]
