"""Updates with the native library, and the functions in Python that it calls during a pass."""

import ctypes
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy

from sb3_ppo_variants.backends.native import structures
from sb3_ppo_variants.backends.native.networks import Architecture, Features, evaluate, library_in_use
from sb3_ppo_variants.backends.native.parameters import Layout, TrainedPart
from sb3_ppo_variants.backends.native.structures import fitting
from sb3_ppo_variants.errors import NonFiniteError
from sb3_ppo_variants.guards.finite import is_finite
from sb3_ppo_variants.objectives import AdaptiveKL, ArrayObjective, Batch, Clipped, KLPenalized, Unclipped, gradient_of
from sb3_ppo_variants.processes import Processes
from sb3_ppo_variants.processes.statistics import normalize_together
from sb3_ppo_variants.rollouts.buffer import WithParameters, in_rows
from sb3_ppo_variants.updates.plan import Descent, UpdatePlan, in_minibatches, over_rollout
from sb3_ppo_variants.updates.run import TOLERATED, Ended, Measured

# The objectives that losses.hpp implements. Their subclasses are excluded, because they may have any loss.
NATIVE_OBJECTIVES = (Clipped, KLPenalized, AdaptiveKL, Unclipped)


class Rows(NamedTuple):
    """A rollout in the row order of its buffer, as contiguous arrays in the type of the networks."""

    features: np.ndarray
    actions: np.ndarray
    old_log_prob: np.ndarray
    advantages: np.ndarray
    returns: np.ndarray
    old_values: np.ndarray
    old: np.ndarray
    """The parameters of the distributions that the actions were drawn from, side by side."""
    masks: np.ndarray | None
    """Action masks, if the policy uses them."""

    def structure(
        self, architecture: Architecture, advantages: np.ndarray, inputs: int, with_old: bool
    ) -> structures.Rollout:
        """Return the structure of the rollout.

        :param advantages: the advantages, which may be in another order
        :param with_old: whether the loss reads the old parameters
        :raises IndexError: if the rollout has actions that the policy does not have
        :raises ValueError: if a column has another shape than the policy or the other columns ask for
        """
        n, dtype = len(self.features), self.features.dtype
        sizes = {"features": (inputs,), "actions": (architecture.action_size,), "old": (architecture.old_size,)}
        for name, column in self._replace(advantages=advantages)._asdict().items():
            if name != "masks":
                fitting(column, name, dtype, n, *sizes.get(name, ()))
        # The library does not check the actions.
        if architecture.takes_integers and not ((self.actions >= 0) & (self.actions < architecture.parts)).all():
            raise IndexError("the rollout has actions that the policy does not have")
        masks = None if self.masks is None else fitting(self.masks, "masks", bool, n, architecture.outputs)
        return structures.Rollout(
            self.features,
            self.actions,
            self.old_log_prob,
            advantages,
            self.returns,
            self.old_values,
            self.old if with_old else None,
            masks,
            n,
            architecture.action_size,
            architecture.old_size if with_old else 0,
        )


class NativeUpdate:
    """Updates as :class:`sb3_ppo_variants.backends.reference.TorchUpdate` does, outside the interpreter.

    The constructor reads the policy, and :meth:`begin` the descent's optimizer. :meth:`finish` writes all of them back.

    :param plan: the plan of the update
    """

    def __init__(self, plan: UpdatePlan):
        self._plan = plan
        self._architecture = Architecture.of(plan.kind.policy)
        part_of = {id(each): i for i, descent in enumerate(plan.descents) for each in descent.parameters}
        # The parameters of each descent are next to each other.
        names = sorted(plan.parameters, key=lambda name: part_of[id(plan.parameters[name])])
        self._layout = Layout({name: plan.parameters[name] for name in names})
        self._vector = self._layout.gather(self._layout.parameters)
        self._gradient = np.zeros_like(self._vector)
        arrays = self._layout.views(self._vector)
        self._networks = self._architecture.structure(arrays, self._layout.views(self._gradient))
        self._inputs = self._architecture.inputs(arrays)
        self._rows = self._read(plan.buffer, plan.kind.policy, arrays)
        self._parts: list[TrainedPart] = []
        self._before, self._written = self._vector.copy(), False

    def _read(self, buffer: RolloutBuffer, policy: ActorCriticPolicy, arrays: dict[str, np.ndarray]) -> Rows:
        dtype, rows = self._vector.dtype, buffer.buffer_size * buffer.n_envs

        def numbers(array: np.ndarray) -> np.ndarray:
            return np.ascontiguousarray(in_rows(buffer, array).reshape(rows, -1), dtype)

        observations: Any = buffer.observations
        if isinstance(observations, dict):
            observations = {key: in_rows(buffer, array) for key, array in observations.items()}
        else:
            observations = in_rows(buffer, observations)
        features = np.ascontiguousarray(Features(policy, dtype)(observations))
        masks: Any = getattr(buffer, "action_masks", None)
        masks = None if masks is None else in_rows(buffer, masks).astype(bool)
        normalize = over_rollout(buffer.advantages, self._plan.normalize_advantage, self._plan.processes)
        old = buffer.old_parameters if isinstance(buffer, WithParameters) else None
        if old is None:  # Another loop collected the rollout.
            outputs, std = evaluate(self._architecture, self._networks, features, masks)
            if std is None and self._architecture.has_std:
                std = np.tile(np.exp(arrays["log_std"]), (rows, 1))
            old = self._architecture.parameters(outputs, std)
        return Rows(
            features=features,
            actions=numbers(buffer.actions),
            old_log_prob=numbers(buffer.log_probs).ravel(),
            advantages=normalize(numbers(buffer.advantages).ravel()),
            returns=numbers(buffer.returns).ravel(),
            old_values=numbers(buffer.values).ravel(),
            old=np.ascontiguousarray(np.concatenate([each.numpy() for each in old], axis=1), dtype),
            masks=masks,
        )

    def begin(self, descent: Descent) -> "NativeDescent":
        self._parts.append(TrainedPart(self._vector, self._gradient, self._layout, descent))
        advantages = self._rows.advantages.copy()
        rollout = self._rows.structure(self._architecture, advantages, self._inputs, self._plan.objective.needs_kl)
        return NativeDescent(self._plan, descent, self._networks, self._rows, rollout, advantages, self._parts[-1])

    def check_finite(self) -> None:
        if not is_finite(self._vector):
            raise NonFiniteError("vector of all parameters", "not finite")

    def undo(self) -> None:
        if self._written:
            self._layout.scatter(self._before, self._layout.parameters)
            for part in self._parts:
                part.restore_optimizer()

    def finish(self) -> float:
        """Write back the policy, the gradients of the last steps and the optimizers.

        :return: the mean of KL(old || new) over the rollout
        """
        rollout = self._rows.structure(self._architecture, self._rows.advantages, self._inputs, with_old=True)
        kl = library_in_use().mean_kl(self._vector.dtype, self._networks, rollout)
        self._written = True
        self._layout.scatter(self._vector, self._layout.parameters)
        for part in self._parts:
            part.store_optimizer()
        return kl


class NativeDescent:
    """The steps of :class:`sb3_ppo_variants.backends.reference.TorchDescent`, each pass made by one call."""

    def __init__(
        self,
        plan: UpdatePlan,
        descent: Descent,
        networks: structures.Networks,
        rows: Rows,
        rollout: structures.Rollout,
        advantages: np.ndarray,
        part: TrainedPart,
    ):
        self._plan, self._descent, self._part = plan, descent, part
        self._rows, self._advantages = rows, advantages
        n, dtype = len(advantages), advantages.dtype
        self._permutation = np.zeros(n, np.int64)
        self._per_pass = -(-n // plan.batch_size)
        self._epochs = 0
        self._minibatches = np.zeros((descent.epochs * self._per_pass, len(structures.MEASURED)))
        self._outcome = structures.Outcome(self._minibatches, 0, 1, 0.0)
        self._calls, self._averages = Calls(self._outcome), Averages(plan.processes, part.gradient)
        pass_ = structures.Pass(
            self._permutation,
            *self._averages.addresses(self._calls),
            plan.batch_size,
            inf if descent.target_kl is None else TOLERATED * descent.target_kl,
        )
        self._run = library_in_use().descent(
            dtype, networks, rollout, self._terms(), self._objective(dtype), pass_, part.adam, self._outcome
        )

    def _terms(self) -> structures.Terms:
        plan, descent, objective = self._plan, self._descent, self._plan.objective
        return structures.Terms(
            inf if objective.clip_range is None else float(objective.clip_range),
            float(objective.kl_coef) if isinstance(objective, KLPenalized) else 0.0,
            float(plan.ent_coef),
            float(plan.vf_coef),
            inf if plan.clip_range_vf is None else float(plan.clip_range_vf),
            self._normalized,
            descent.of_policy,
            descent.of_value,
        )

    @property
    def _normalized(self) -> int:
        """How advantages are normalised."""
        if not in_minibatches(self._plan.normalize_advantage):
            return structures.NOT_NORMALIZED
        return structures.NORMALIZED if self._plan.processes.size == 1 else structures.NORMALIZED_IN_ORDER

    def _objective(self, dtype: np.dtype) -> structures.Objective:
        objective = self._plan.objective
        if type(objective) in NATIVE_OBJECTIVES:
            return structures.Objective(*[None] * len(structures.Objective._fields_))
        assert isinstance(objective, ArrayObjective)
        return OwnObjective(objective, min(self._plan.batch_size, len(self._advantages)), dtype).structure(self._calls)

    def descend(self) -> Ended:
        n, plan, outcome = len(self._advantages), self._plan, self._outcome
        # One call per pass, so that an interrupt is noticed after a pass.
        while self._epochs < self._descent.epochs:
            self._epochs += 1
            self._permutation[...] = np.random.permutation(n)
            if self._normalized == structures.NORMALIZED_IN_ORDER:
                ordered = self._rows.advantages[self._permutation]
                self._advantages[...] = normalized(ordered, plan.batch_size, plan.processes)
            self._run()
            self._calls.check()
            if not np.isfinite(outcome.norm):
                raise NonFiniteError("gradient of a minibatch", f"not finite: it has the norm {outcome.norm}")
            if self._part.steps < outcome.minibatches:
                alone = plan.processes.size == 1
                return Ended(self._epochs, self._measured("approx_kl")[-1] if alone else self._averages.approx_kl)
        return Ended(self._epochs)

    def _measured(self, name: str) -> np.ndarray:
        return self._minibatches[: self._outcome.minibatches, structures.MEASURED.index(name)]

    def measured(self) -> Measured:
        if self._outcome.minibatches == 0:
            return Measured({}, 0)
        descent = self._descent
        names = ["loss"]
        if descent.of_policy:
            names += ["policy_loss", "entropy_loss", "approx_kl"]
            names += [] if self._plan.objective.clip_range is None else ["clip_fraction"]
        if descent.of_value:
            names += ["value_loss"]
        values = {name: self._measured(name).copy() for name in names}
        return Measured(values, epoch_start=(self._epochs - 1) * self._per_pass)


def normalized(advantages: np.ndarray, batch_size: int, processes: Processes) -> np.ndarray:
    """Normalise the advantages of consecutive minibatches over all processes, each minibatch by itself.

    :param advantages: the advantages of a pass, shape ``(rows,)``
    :param processes: the processes that share the minibatches
    :return: the normalised advantages, same shape
    """
    whole = len(advantages) - len(advantages) % batch_size
    parts = [advantages[:whole].reshape(-1, batch_size), advantages[None, whole:]]
    made = [normalize_together(th.from_numpy(part), processes).numpy() for part in parts if part.size]
    return np.concatenate([part.ravel() for part in made])


class Calls:
    """Functions in a form that the library can call. Keep this object alive while the library makes passes.

    Exceptions cannot propagate through the library, not even that of an interrupt which arrives before a function has
    begun. A function therefore reports its success in the outcome, as the last thing that it does.

    :param outcome: the outcome of the descent
    """

    def __init__(self, outcome: structures.Outcome):
        self._outcome = outcome
        self._made: list[Any] = []
        # The initial value stands for an interrupt that arrives before a function has begun.
        self._error: BaseException = KeyboardInterrupt()

    def address(self, function: Callable[..., object], *types: Any) -> int | None:
        """Return the address of a function for the library.

        :param types: the types of its arguments
        """

        def call(*arguments: Any) -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self._error = error
                return
            self._outcome.answered = 1

        self._made.append(ctypes.CFUNCTYPE(None, *types)(call))
        return ctypes.cast(self._made[-1], ctypes.c_void_p).value

    def check(self) -> None:
        """Raise the error that ended the pass, if a function failed."""
        if not self._outcome.answered:
            raise self._error


class Averages:
    """Averages over the processes that train together.

    :param processes: the processes
    :param gradient: the gradient, which is averaged in place
    """

    def __init__(self, processes: Processes, gradient: np.ndarray):
        self._processes = processes
        self._gradient = th.from_numpy(gradient)
        self.approx_kl = 0.0
        """The last approximate KL that was averaged."""

    def addresses(self, calls: Calls) -> list[int | None]:
        """Return the functions that average the approximate KL and the gradient, or null where they are not needed."""
        if self._processes.size == 1:
            return [None, None]
        return [
            calls.address(self._average_kl, ctypes.POINTER(structures.NUMBER)),
            calls.address(self._average_gradient),
        ]

    def _average_kl(self, approx_kl: Any) -> None:
        self.approx_kl = approx_kl[0] = self._processes.mean(approx_kl[0])

    def _average_gradient(self) -> None:
        self._processes.average(self._gradient)


class OwnObjective:
    """Evaluates the gradient of a user's objective in Python.

    :param objective: the objective
    :param rows: the most rows of a minibatch
    :param dtype: the type of its numbers
    """

    def __init__(self, objective: ArrayObjective, rows: int, dtype: np.dtype):
        self._objective = objective
        self._log_ratio, self._advantages, self._losses, self._d_log_ratio = np.zeros((4, rows), dtype)
        self._kl: np.ndarray | None = np.zeros(rows, dtype) if objective.needs_kl else None
        self._d_kl: np.ndarray | None = np.zeros(rows, dtype) if objective.needs_kl else None

    def structure(self, calls: Calls) -> structures.Objective:
        """Return the objective in the form that the library takes."""
        arrays = (self._log_ratio, self._advantages, self._kl, self._losses, self._d_log_ratio, self._d_kl)
        return structures.Objective(*arrays, calls.address(self._evaluate, structures.COUNT))

    def _evaluate(self, rows: int) -> None:
        kl = None if self._kl is None else self._kl[:rows]
        batch = Batch(np.exp(self._log_ratio[:rows]), self._advantages[:rows], kl)
        self._losses[:rows], self._d_log_ratio[:rows], d_kl = gradient_of(self._objective, batch)
        if self._d_kl is not None:
            self._d_kl[:rows] = 0.0 if d_kl is None else d_kl
