"""What stops training before a bad value spoils it: from environments, callbacks and worker processes."""

from sb3_ppo_variants.guards.callbacks import Supervised
from sb3_ppo_variants.guards.guarded import check_seen, guarded
from sb3_ppo_variants.guards.stand_in import original

__all__ = ["Supervised", "check_seen", "guarded", "original"]
