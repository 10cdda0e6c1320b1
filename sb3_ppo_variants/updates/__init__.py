"""Updates: gradient descent on the policy objective and the value loss."""

from sb3_ppo_variants.updates.advantages import NormalizeAdvantage
from sb3_ppo_variants.updates.commit import AllOrNothing
from sb3_ppo_variants.updates.plan import Descent, UpdatePlan
from sb3_ppo_variants.updates.run import Outcome, run
from sb3_ppo_variants.updates.separate import SeparateUpdates
from sb3_ppo_variants.updates.updates import JOINT, Updates

__all__ = [
    "JOINT",
    "AllOrNothing",
    "Descent",
    "NormalizeAdvantage",
    "Outcome",
    "SeparateUpdates",
    "UpdatePlan",
    "Updates",
    "run",
]
