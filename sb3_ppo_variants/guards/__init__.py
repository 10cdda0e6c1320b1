"""Guards that stop training before a bad value from an environment, callback or worker process spoils it."""

from sb3_ppo_variants.guards.callbacks import Supervised
from sb3_ppo_variants.guards.guarded import check_seen, guarded
from sb3_ppo_variants.guards.stand_in import original

__all__ = ["Supervised", "check_seen", "guarded", "original"]
