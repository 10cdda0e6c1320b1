"""Updates: gradient descent on the policy objective and the value loss."""

from sb3_ppo_variants.losses import ClippedError, Huber, SquaredError
from sb3_ppo_variants.saving import register_plain
from sb3_ppo_variants.stops import ApproximateKL, ExactKL, RatioDeviation
from sb3_ppo_variants.updates.plan import JOINT, Descent, NormalizeAdvantage, UpdatePlan, Updates
from sb3_ppo_variants.updates.run import AllOrNothing, UpdateOutcome, run_update, summary
from sb3_ppo_variants.updates.separate import SeparateUpdates
from sb3_ppo_variants.updates.step_size import KLAdaptive

__all__ = [
    "JOINT",
    "AllOrNothing",
    "Descent",
    "KLAdaptive",
    "NormalizeAdvantage",
    "SeparateUpdates",
    "UpdateOutcome",
    "UpdatePlan",
    "Updates",
    "run_update",
    "summary",
]

# These are arguments of updates, so files store them without pickle too. Their modules are below `saving`, so that they
# cannot register themselves.
for _part in (ApproximateKL, ExactKL, RatioDeviation, ClippedError, Huber, SquaredError):
    register_plain(_part.__name__, _part)
