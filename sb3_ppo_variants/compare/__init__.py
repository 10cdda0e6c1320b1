"""Compare algorithms over environments and seeds: plan the runs, execute them, and report the results."""

from pathlib import Path

from sb3_ppo_variants.recipes import ALGORITHMS

# The import path of each algorithm. The others are compared with SB3's PPO.
BASELINE = "sb3_ppo"
MASKABLE_PPO = "sb3_contrib:MaskablePPO"
ALGORITHM_PATHS = {
    **{name: f"sb3_ppo_variants:{algorithm.__name__}" for name, algorithm in ALGORITHMS.items()},
    BASELINE: "stable_baselines3:PPO",
    "sb3_a2c": "stable_baselines3:A2C",
    "trpo": "sb3_contrib:TRPO",
    "contrib_maskable_ppo": MASKABLE_PPO,
    "contrib_recurrent_ppo": "sb3_contrib:RecurrentPPO",
}
# The package's comparisons. Each file begins with a line that says what it compares.
PRESETS = {path.stem: path for path in sorted(Path(__file__).with_name("presets").glob("*.yml"))}
EXAMPLE = "ppo_clip:clip_range=0.1"
# What is compared by default.
DEFAULT_ALGORITHMS = (*(name for name in ALGORITHMS if name != "ppo_custom"), BASELINE)
