"""LunarLander-v3 in 1 million steps: 16 environments and a long horizon (gamma 0.999).

    python examples/lunar_lander.py

Reached 237, 264, 264 (seeds 1, 2, 3) after 1,015,808 steps, in 13.1 minutes of one core each.
"""

from sb3_ppo_variants.recipes.training import run_example

if __name__ == "__main__":
    run_example("LunarLander-v3", __doc__)
