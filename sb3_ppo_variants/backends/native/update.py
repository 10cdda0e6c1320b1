"""Descents, each pass made by one call of the library."""

from math import inf

import numpy as np

from sb3_ppo_variants.backends.arrays.adam import check_norm
from sb3_ppo_variants.backends.arrays.trained import TrainedNetworks
from sb3_ppo_variants.backends.arrays.update import Part, Rows, normalized
from sb3_ppo_variants.backends.native import structures
from sb3_ppo_variants.backends.native.networks import as_structure, library_in_use
from sb3_ppo_variants.backends.native.structures import fitting
from sb3_ppo_variants.backends.native.together import Together
from sb3_ppo_variants.objectives import KLPenalized
from sb3_ppo_variants.updates.advantages import in_minibatches
from sb3_ppo_variants.updates.measured import Measured
from sb3_ppo_variants.updates.plan import Descent, UpdatePlan
from sb3_ppo_variants.updates.run import TOLERATED, Ended


class NativeDescent:
    """Descends as :class:`sb3_ppo_variants.backends.arrays.update.ArrayDescent` does, outside the interpreter."""

    def __init__(self, plan: UpdatePlan, descent: Descent, networks: TrainedNetworks, rollout: Rows, part: Part):
        self._plan = plan
        self._descent = descent
        self._part = part
        views = networks.layout.views
        self._dtype = part.vector.dtype
        self._networks = as_structure(networks.architecture, views(networks.vector), views(networks.gradient))
        self._trained, self._rollout = networks, rollout
        self._rows = len(rollout.features)
        self._per_pass = -(-self._rows // plan.batch_size)
        self._epochs = 0
        self._minibatches = np.zeros((descent.epochs * self._per_pass, len(structures.MEASURED)))
        self._outcome = structures.Outcome(self._minibatches, 0, 1, 0.0)
        alone = plan.processes.size == 1
        self._together = None if alone else Together(plan.processes, part.gradient, self._outcome)

    def descend(self) -> Ended:
        descent, outcome, together, adam = self._descent, self._outcome, self._together, self._adam()
        steps_before = adam.steps
        permutation, advantages = np.zeros(self._rows, np.int64), np.array(self._rollout.advantages, self._dtype)
        pass_ = structures.Pass(
            permutation,
            *(together.addresses if together else (None, None)),
            self._plan.batch_size,
            inf if descent.target_kl is None else TOLERATED * descent.target_kl,
        )
        rollout = _as_structure(self._rollout._replace(advantages=advantages), self._trained)
        run = library_in_use().descent(self._dtype, self._networks, rollout, self._terms(), pass_, adam, outcome)
        # One call per pass, so that an interrupt is noticed after a pass.
        for self._epochs in range(1, descent.epochs + 1):
            permutation[...] = np.random.permutation(self._rows)
            if self._normalized == structures.NORMALIZED_IN_ORDER:
                ordered = self._rollout.advantages[permutation]
                advantages[...] = normalized(ordered, self._plan.batch_size, self._plan.processes)
            run()
            self._part.adam.steps = adam.steps
            if together and not outcome.averaged:
                raise together.error
            check_norm(outcome.norm)
            if adam.steps - steps_before < outcome.minibatches:
                return Ended(self._epochs, together.approx_kl if together else self._measured("approx_kl")[-1])
        return Ended(self._epochs)

    @property
    def _normalized(self) -> int:
        """How advantages are normalised."""
        if not in_minibatches(self._plan.normalize_advantage):
            return structures.NOT_NORMALIZED
        return structures.NORMALIZED if self._plan.processes.size == 1 else structures.NORMALIZED_IN_ORDER

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

    def _adam(self) -> structures.Adam:
        part, adam = self._part, self._part.adam
        vectors = (part.vector, part.gradient, *adam.scaled_moments)
        return structures.Adam(
            *(fitting(vector, "parameters, gradient or moments", self._dtype, part.vector.size) for vector in vectors),
            part.vector.size,
            adam.steps,
            adam.learning_rate,
            *adam.betas,
            adam.eps,
            float(self._descent.max_grad_norm),
        )

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


def _as_structure(rollout: Rows, networks: TrainedNetworks) -> structures.Rollout:
    """Return the structure of a rollout.

    :raises IndexError: if the rollout has actions that the policy does not have
    :raises ValueError: if a column has another shape than the policy or the other columns ask for
    """
    architecture, dtype, rows = networks.architecture, networks.vector.dtype, len(rollout.features)
    outputs = sum(architecture.sizes)
    action_size = len(architecture.sizes) if architecture.kind.takes_integers else outputs
    inputs = networks.layout.shape_of(f"{[*architecture.actor, 'action_net'][0]}.weight")[1]

    def column(name: str, array: np.ndarray, *shape: int) -> np.ndarray:
        return fitting(np.ascontiguousarray(array, dtype), name, dtype, rows, *shape)

    actions = column("actions", rollout.actions.reshape(rows, -1), action_size)
    _check_actions(actions, networks)
    old, old_size = None, 0
    if rollout.old is not None:
        parameters = np.concatenate(rollout.old.parameters(), axis=1)
        old_size = (1 + (architecture.log_std is not None)) * outputs
        old = column("old parameters", parameters, old_size)
    return structures.Rollout(
        column("features", rollout.features, inputs),
        actions,
        column("old log-probabilities", rollout.old_log_prob),
        column("advantages", rollout.advantages),
        column("returns", rollout.returns),
        column("old values", rollout.old_values),
        old,
        rows,
        action_size,
        old_size,
    )


def _check_actions(actions: np.ndarray, networks: TrainedNetworks) -> None:
    """Check that the policy has all actions of the rollout, because the library does not check them.

    :raises IndexError: if the policy lacks an action
    """
    architecture = networks.architecture
    if architecture.kind.takes_integers and not ((actions >= 0) & (actions < architecture.sizes)).all():
        raise IndexError("the rollout has actions that the policy does not have")
