"""The losses of a descent: the terms that the native library has, and losses in Python that it calls."""

from collections.abc import Callable, Iterable, Mapping, Set
from math import inf
from typing import Any

import numpy as np
import torch as th
from torch.autograd.graph import get_gradient_edge

from sb3_ppo_variants.engines.native import structures
from sb3_ppo_variants.engines.native.distributions import Drawn
from sb3_ppo_variants.engines.native.library import Calls
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.kl import Parameters, divergences_of
from sb3_ppo_variants.losses import ClippedError, Huber, SquaredError, ValueLoss, check_loss
from sb3_ppo_variants.objectives import Batch, Objective, has_term
from sb3_ppo_variants.objectives.objective import OF_DISTRIBUTIONS
from sb3_ppo_variants.rollout import Columns
from sb3_ppo_variants.update import Descent, UpdatePlan

# The value losses that losses.hpp implements: for each, its name there, and its constant.
NATIVE_VALUE_LOSSES: Mapping[type, Callable[[Any], tuple[str, float]]] = {
    SquaredError: lambda loss: ("SQUARED_ERROR", 0.0),
    ClippedError: lambda loss: ("PESSIMISTIC_ERROR" if loss.pessimistic else "CLIPPED_ERROR", loss.clip_range),
    Huber: lambda loss: ("HUBER", loss.delta),
}
# PyTorch's name of the nodes of a graph that stand for parameters and other leaves.
LEAF = "torch::autograd::AccumulateGrad"


def terms_of(plan: UpdatePlan, descent: Descent) -> structures.Terms:
    """Return the terms of the loss that a descent minimises, in the form that the library takes."""
    objective = plan.objective.within
    normalization = "NOT_NORMALIZED"
    if plan.normalize_advantage == "minibatch":
        normalization = "NORMALIZED" if plan.processes.size == 1 else "NORMALIZED_IN_ORDER"
    constants, term = None, 0
    if has_term(objective):
        constants, term = np.array(objective.constants, float), structures.CONSTANTS["Objectives"][objective.term]
    value_loss, constant = "SQUARED_ERROR", 0.0
    if type(plan.value_loss) in NATIVE_VALUE_LOSSES:
        value_loss, constant = NATIVE_VALUE_LOSSES[type(plan.value_loss)](plan.value_loss)
    return structures.Terms(
        constants,
        inf if objective.clip_range is None else float(objective.clip_range),
        float(plan.ent_coef),
        float(plan.vf_coef),
        float(constant),
        term,
        structures.CONSTANTS["ValueLosses"][value_loss],
        structures.CONSTANTS["Normalizations"][normalization],
        descent.of_policy,
        descent.of_value,
    )


class LossesInPython:
    """The objective and the value loss of a plan, as far as the library has no terms for them.

    The library calls each once per minibatch with what it knows of it. Autograd differentiates the loss with respect to
    what it has read, and the library goes on from there to the parameters of the networks.

    :param plan: the plan of the update
    :param drawn: how its policy draws actions
    :param columns: what else a loss may read of the rollout
    :param old_parameters: the parameters of the old distributions, if the objective may read them
    :param permutation: the order of the rows in a pass
    :param dtype: the type of the networks
    :param calls: makes functions callable for the library
    """

    def __init__(
        self,
        plan: UpdatePlan,
        drawn: Drawn,
        columns: Columns,
        old_parameters: Parameters | None,
        permutation: np.ndarray,
        dtype: np.dtype,
        calls: Calls,
    ):
        self._plan, self._drawn, self._columns, self._permutation = plan, drawn, columns, permutation
        self._old_parameters, self._rows, self._dtype = old_parameters, min(plan.batch_size, len(permutation)), dtype
        self._known: dict[str, np.ndarray] = {}
        self._slopes: dict[str, np.ndarray] = {}
        self._written: Set[str] = set()
        fields: dict[str, Any] = {}
        if not has_term(plan.objective.within):
            fields |= self._fields_of_objective(calls)
        if type(plan.value_loss) not in NATIVE_VALUE_LOSSES:
            fields |= self._fields_of_value_loss(calls)
        self.structure = structures.OwnLosses(**fields)
        """The losses in the form that the library takes."""

    def _fields_of_objective(self, calls: Calls) -> dict[str, structures.FieldValue]:
        shapes: dict[str, tuple[int, ...]] = {"log_ratio": (self._rows,), "entropy": (self._rows,)}
        if self._plan.objective.needs_kl:
            self._divergences = divergences_of(self._plan.kind.policy.action_dist)
            shapes |= {"kl": (self._rows,), "reverse_kl": (self._rows,), "outputs": (self._rows, self._drawn.outputs)}
            shapes |= {"deviations": (self._rows, self._drawn.n_stds)} if self._drawn.n_stds else {}
        self._known = {name: np.zeros(shape, self._dtype) for name, shape in shapes.items()}
        self._slopes = {name: np.zeros(shape, self._dtype) for name, shape in shapes.items()}
        self._advantages, self._losses = np.zeros((2, self._rows), self._dtype)
        return {
            "advantages": self._advantages,
            "losses": self._losses,
            "evaluate": calls.address(self._evaluate, structures.INTEGER, structures.INTEGER),
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
            new = self._drawn.parameters(leaf("outputs"), leaf("deviations") if self._drawn.n_stds else None)
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

    def _fields_of_value_loss(self, calls: Calls) -> dict[str, structures.FieldValue]:
        self._values, self._value_losses, self._d_values = np.zeros((3, self._rows), self._dtype)
        return {
            "values": self._values,
            "value_losses": self._value_losses,
            "d_values": self._d_values,
            "evaluate_values": calls.address(self._evaluate_values, structures.INTEGER, structures.INTEGER),
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
