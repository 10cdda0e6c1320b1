"""Updates: gradient descent on the policy objective and the value loss."""

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
