"""The policy that an EWMA stays close to, in the form that the library takes."""

from typing import TYPE_CHECKING

import numpy as np

from sb3_ppo_variants.backends.native import structures
from sb3_ppo_variants.backends.native.networks import arrays_of
from sb3_ppo_variants.backends.obstacles import ObstacleError
from sb3_ppo_variants.objectives import has_term
from sb3_ppo_variants.proximal import ProximalPolicy
from sb3_ppo_variants.update import UpdatePlan

if TYPE_CHECKING:
    from sb3_ppo_variants.backends.native.update import NativeUpdate, TrainedPart


def check_proximal(plan: UpdatePlan) -> None:
    """Check that the library can compute the proximal policy of a plan, which has one.

    :raises ObstacleError: if not
    """
    objective = plan.objective.within
    if not has_term(objective):
        raise ObstacleError(f"an EWMA is around {type(objective).__name__}, which the native library does not compute")
    if objective.numbers_per_sample:
        raise ObstacleError(f"an EWMA is around {type(objective).__name__}, which reads the whole rollout")
    if any(descent.needs_kl for descent in plan.descents):
        raise ObstacleError("minibatches have a KL to the old policy and, because of an EWMA, others")


class FollowingPolicy:
    """The proximal policy of an update, which follows the parameters that a descent trains.

    :param proximal: the policy, which changes with :meth:`store`
    :param update: the update
    :param part: what the descent trains
    """

    def __init__(self, proximal: ProximalPolicy, update: "NativeUpdate", part: "TrainedPart"):
        self._proximal, rollout, dtype = proximal, update.rollout, update.dtype
        self._average = proximal.average.numpy().astype(dtype)
        arrays = {**arrays_of(update.plan.parameters), **part.views(self._average)}
        networks = update.architecture.structure(arrays)
        decay = update.plan.objective.proximal_decay
        assert decay is not None
        self.structure = structures.Proximal(
            structures.as_array([networks]),
            self._average,
            np.zeros(rollout.rows, dtype),
            np.zeros((rollout.rows, rollout.old_size), dtype) if update.plan.objective.needs_kl else None,
            decay,
            float(proximal.total_weight),
        )
        """The policy in the form that the library takes."""

    def store(self) -> None:
        """Write the average back."""
        self._proximal.average.numpy()[...] = self._average
        self._proximal.total_weight.fill_(self.structure.total_weight)
