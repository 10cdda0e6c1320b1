"""What stops training before a bad value spoils it: from environments, callbacks and worker processes."""

from sb3_ppo_variants.guards.callbacks import Supervised
from sb3_ppo_variants.guards.steps import check_seen, checked_actions, checked_steps

__all__ = ["Supervised", "check_seen", "checked_actions", "checked_steps"]
