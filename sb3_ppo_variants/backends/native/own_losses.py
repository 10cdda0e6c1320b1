"""Objectives and value losses in Python that the native library calls."""

from collections.abc import Iterable, Set
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch as th
from torch.autograd.graph import get_gradient_edge

from sb3_ppo_variants.backends.native import structures
from sb3_ppo_variants.backends.native.library import Calls
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.kl import divergences_of
from sb3_ppo_variants.losses import ValueLoss, check_loss
from sb3_ppo_variants.objectives import ArrayObjective, Batch, Objective, gradient_of, has_gradient
from sb3_ppo_variants.objectives.objective import DERIVED, OF_DISTRIBUTIONS

if TYPE_CHECKING:
    from sb3_ppo_variants.backends.native.update import NativeUpdate

# PyTorch's name of the nodes of a graph that stand for parameters and other leaves.
LEAF = "torch::autograd::AccumulateGrad"


class OwnObjective:
    """Evaluates an objective in Python on what the library knows of a minibatch, and differentiates it.

    If the objective has no gradient over arrays, autograd differentiates its loss with respect to what the objective
    has read. The library goes on from there to the parameters of the networks.

    :param update: the update
    :param permutation: the order of the rows in a pass
    """

    def __init__(self, update: "NativeUpdate", permutation: np.ndarray):
        plan, architecture = update.plan, update.architecture
        self._plan, self._drawn, self._permutation = plan, architecture.drawn, permutation
        self._has_gradient = has_gradient(plan.objective)
        self._old_parameters, self._columns = update.old_parameters, update.columns
        self._divergences = divergences_of(plan.kind.policy.action_dist)
        self._written: Set[str] = set()
        rows, dtype = min(plan.batch_size, len(permutation)), update.dtype
        states, columns = ["log_ratio", "entropy"], {}
        if plan.objective.needs_kl:
            states += ["kl", "reverse_kl"]
        if plan.objective.needs_kl and not self._has_gradient:
            columns = {"outputs": self._drawn.outputs, "deviations": self._drawn.n_stds}
        shapes = {**dict.fromkeys(states, (rows,)), **{name: (rows, n) for name, n in columns.items() if n}}
        self._known = {name: np.zeros(shape, dtype) for name, shape in shapes.items()}
        self._slopes = {name: np.zeros(shape, dtype) for name, shape in shapes.items()}
        self._advantages, self._losses = np.zeros((2, rows), dtype)

    def fields(self, calls: Calls) -> dict[str, structures.FieldValue]:
        """Return the objective as the fields of ``OwnLosses``."""
        return {
            "advantages": self._advantages,
            "losses": self._losses,
            "evaluate": calls.address(self._evaluate, structures.INTEGER, structures.INTEGER),
            **self._known,
            **{f"d_{name}": slopes for name, slopes in self._slopes.items()},
        }

    def _evaluate(self, start: int, count: int) -> None:
        rows = self._permutation[start : start + count]
        known = {name: array[:count] for name, array in self._known.items()}
        evaluate = self._by_gradient if self._has_gradient else self._by_autograd
        slopes = evaluate(rows, self._advantages[:count], known)
        for name in self._written - slopes.keys():
            self._slopes[name][:] = 0.0
        for name, array in slopes.items():
            self._slopes[name][:count] = array
        self._written = slopes.keys()

    def _by_gradient(
        self, rows: np.ndarray, advantages: np.ndarray, known: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        objective = cast(ArrayObjective, self._plan.objective)
        source = partial(self._columns.read, rows=rows, convert=np.asarray)
        batch: Batch[np.ndarray] = Batch(None, advantages, source=source, **known)
        self._losses[: len(rows)], *slopes = gradient_of(objective, batch)
        return {name: slope for name, slope in zip(DERIVED, slopes, strict=True) if slope is not None}

    def _by_autograd(
        self, rows: np.ndarray, advantages: np.ndarray, known: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        leaves: dict[str, th.Tensor] = {}

        def leaf(name: str) -> th.Tensor:
            if name not in leaves:
                leaves[name] = th.from_numpy(known[name].copy()).requires_grad_()
            return leaves[name]

        def read(name: str) -> Any:
            if name in known:
                return leaf(name)
            if name not in OF_DISTRIBUTIONS:
                return self._columns.read(name, rows, th.from_numpy)
            if self._old_parameters is None:
                return None
            new = self._drawn.parameters(leaf("outputs"), leaf("deviations") if "deviations" in known else None)
            return self._divergences.between(name, tuple(column[rows] for column in self._old_parameters), new)

        with th.enable_grad():
            batch: Batch[th.Tensor] = Batch(None, th.from_numpy(advantages.copy()), source=read)
            loss = self._plan.objective.loss(batch)
        check_loss(loss, self._plan.objective, "policy")
        if not self._written:  # In the first minibatch, which the others are like.
            _check_leaves(loss, self._plan.objective, leaves.values())
        self._losses[: len(rows)] = loss.item()
        found = th.autograd.grad(loss, [*leaves.values()], allow_unused=True)
        return {name: slope.numpy() for name, slope in zip(leaves, found, strict=True) if slope is not None}


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


class OwnValueLoss:
    """Evaluates a value loss in Python on the values of a minibatch, and differentiates it with autograd.

    :param update: the update
    :param permutation: the order of the rows in a pass
    """

    def __init__(self, update: "NativeUpdate", permutation: np.ndarray):
        plan = update.plan
        self._value_loss, self._columns, self._permutation = plan.value_loss, update.columns, permutation
        rows = min(plan.batch_size, len(permutation))
        self._values, self._losses, self._slopes = np.zeros((3, rows), update.dtype)

    def fields(self, calls: Calls) -> dict[str, structures.FieldValue]:
        """Return the value loss as the fields of ``OwnLosses``."""
        return {
            "values": self._values,
            "value_losses": self._losses,
            "d_values": self._slopes,
            "evaluate_values": calls.address(self._evaluate, structures.INTEGER, structures.INTEGER),
        }

    def _evaluate(self, start: int, count: int) -> None:
        rows = self._permutation[start : start + count]
        old_values, returns = (self._columns.read(name, rows, th.from_numpy) for name in ("old_values", "returns"))
        with th.enable_grad():
            values = th.from_numpy(self._values[:count].copy()).requires_grad_()
            loss = self._value_loss.loss(values, old_values, returns)
        check_loss(loss, self._value_loss, "values")
        if start == 0:
            _check_leaves(loss, self._value_loss, [values])
        self._losses[:count] = loss.item()
        (slopes,) = th.autograd.grad(loss, [values])
        self._slopes[:count] = slopes.numpy()
