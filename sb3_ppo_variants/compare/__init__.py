"""Compare algorithms over environments and seeds: plan the runs, execute them, and report the results."""

# The import path of each algorithm. The others are compared with SB3's PPO.
BASELINE = "sb3_ppo"
MASKABLE_PPO = "sb3_contrib:MaskablePPO"
ALGORITHM_PATHS = {
    "ppo_clip": "sb3_ppo_variants:PPOClip",
    "ppo_adaptive_kl": "sb3_ppo_variants:PPOAdaptiveKL",
    "ppo_fixed_kl": "sb3_ppo_variants:PPOFixedKL",
    "ppo_unclipped": "sb3_ppo_variants:PPOUnclipped",
    "ppo_custom": "sb3_ppo_variants:PPOCustom",
    BASELINE: "stable_baselines3:PPO",
    "sb3_a2c": "stable_baselines3:A2C",
    "trpo": "sb3_contrib:TRPO",
    "contrib_maskable_ppo": MASKABLE_PPO,
    "contrib_recurrent_ppo": "sb3_contrib:RecurrentPPO",
}
EXAMPLE = "ppo_clip:clip_range=0.1"
# What is compared by default.
DEFAULT_ALGORITHMS = ("ppo_clip", "ppo_adaptive_kl", "ppo_fixed_kl", "ppo_unclipped", BASELINE)
PROTOCOL_NAMES = ("text", "released-code", "sb3")
