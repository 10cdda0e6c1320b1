"""Descents, each made by one call of the library."""

from math import inf

import numpy as np

from sb3_ppo_variants.backends.arrays.adam import check_norm
from sb3_ppo_variants.backends.arrays.trained import TrainedNetworks
from sb3_ppo_variants.backends.arrays.update import Part, Rows, normalized
from sb3_ppo_variants.backends.native import structures
from sb3_ppo_variants.backends.native.networks import as_structure, library_in_use
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
        self._together = Together(plan.processes, part.gradient) if plan.processes.size > 1 else None
        self._networks = as_structure(networks.architecture, views(networks.vector), views(networks.gradient))
        self._trained, self._rollout = networks, rollout
        self._rows = len(rollout.features)
        self._per_pass = -(-self._rows // plan.batch_size)
        self._minibatches = np.zeros((descent.epochs * self._per_pass, len(structures.MEASURED)))
        self._outcome = structures.Outcome(self._minibatches, 0, 0, 0, 0.0)

    def descend(self) -> Ended:
        descent, outcome, together, adam = self._descent, self._outcome, self._together, self._adam()
        steps_before = adam.steps
        random_state = np.random.get_state()
        permutations = self._permutations(descent.epochs)
        passes = structures.Passes(
            permutations,
            *(together.addresses if together else (None, None)),
            descent.epochs,
            self._plan.batch_size,
            inf if descent.target_kl is None else TOLERATED * descent.target_kl,
        )
        rollout, normalized = self._normalized(permutations)
        given = _as_structure(rollout, self._trained), self._terms(normalized), passes
        library_in_use().descent(self._dtype, self._networks, *given, adam, outcome)()
        self._part.adam.steps = adam.steps
        if together and outcome.failed:
            raise together.error
        check_norm(outcome.norm)
        if adam.steps - steps_before == outcome.minibatches:
            return Ended(outcome.epochs)
        # Leave the generator as if no permutations had been drawn for the passes that did not begin.
        np.random.set_state(random_state)
        self._permutations(outcome.epochs)
        return Ended(outcome.epochs, together.approx_kl if together else self._measured("approx_kl")[-1])

    def _permutations(self, epochs: int) -> np.ndarray:
        return np.stack([np.random.permutation(self._rows) for _ in range(epochs)]).astype(np.int64, copy=False)

    def _normalized(self, permutations: np.ndarray) -> tuple[Rows, int]:
        """Return the rollout for the passes, and how its advantages are normalised."""
        plan, rollout = self._plan, self._rollout
        if not in_minibatches(plan.normalize_advantage):
            return rollout, structures.NOT_NORMALIZED
        if plan.processes.size == 1:
            return rollout, structures.NORMALIZED
        advantages = normalized(rollout.advantages[permutations], plan.batch_size, plan.processes)
        return rollout._replace(advantages=advantages.ravel()), structures.NORMALIZED_IN_ORDER

    def _terms(self, normalized: int) -> structures.Terms:
        plan, descent, objective = self._plan, self._descent, self._plan.objective
        return structures.Terms(
            inf if objective.clip_range is None else float(objective.clip_range),
            float(objective.kl_coef) if isinstance(objective, KLPenalized) else 0.0,
            float(plan.ent_coef),
            float(plan.vf_coef),
            inf if plan.clip_range_vf is None else float(plan.clip_range_vf),
            normalized,
            descent.of_policy,
            descent.of_value,
        )

    def _adam(self) -> structures.Adam:
        part, adam = self._part, self._part.adam
        return structures.Adam(
            part.vector,
            part.gradient,
            *adam.scaled_moments,
            len(part.vector),
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
        return Measured(values, epoch_start=(self._outcome.epochs - 1) * self._per_pass)


def _as_structure(rollout: Rows, networks: TrainedNetworks) -> structures.Rollout:
    dtype, rows = networks.vector.dtype, len(rollout.features)
    actions = np.ascontiguousarray(rollout.actions, dtype).reshape(rows, -1)
    _check_actions(actions, networks)
    old = None
    if rollout.old is not None:
        old = np.ascontiguousarray(np.concatenate(rollout.old.parameters(), axis=1), dtype)
    columns = [rollout.old_log_prob, rollout.advantages, rollout.returns, rollout.old_values]
    return structures.Rollout(
        np.ascontiguousarray(rollout.features, dtype),
        actions,
        *(np.ascontiguousarray(column, dtype) for column in columns),
        old,
        rows,
        actions.shape[1],
        0 if old is None else old.shape[1],
    )


def _check_actions(actions: np.ndarray, networks: TrainedNetworks) -> None:
    """Check that the policy has all actions of the rollout, because the library does not check them.

    :raises IndexError: if the policy lacks an action
    """
    architecture = networks.architecture
    if architecture.kind.takes_integers and not ((actions >= 0) & (actions < architecture.sizes)).all():
        raise IndexError("the rollout has actions that the policy does not have")
