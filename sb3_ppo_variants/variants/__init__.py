"""The four policy objectives of the PPO paper."""

from sb3_ppo_variants.variants.adaptive_kl import PPOAdaptiveKL
from sb3_ppo_variants.variants.clip import PPOClip
from sb3_ppo_variants.variants.fixed_kl import PPOFixedKL
from sb3_ppo_variants.variants.unclipped import PPOUnclipped

__all__ = ["PPOAdaptiveKL", "PPOClip", "PPOFixedKL", "PPOUnclipped"]
