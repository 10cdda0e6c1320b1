"""PPO with each of the four policy objectives of the paper, and with your own objective."""

from sb3_ppo_variants.variants.adaptive_kl import PPOAdaptiveKL
from sb3_ppo_variants.variants.clip import PPOClip
from sb3_ppo_variants.variants.custom import PPOCustom
from sb3_ppo_variants.variants.fixed_kl import PPOFixedKL
from sb3_ppo_variants.variants.unclipped import PPOUnclipped

__all__ = ["PPOAdaptiveKL", "PPOClip", "PPOCustom", "PPOFixedKL", "PPOUnclipped"]
