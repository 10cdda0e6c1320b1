"""Humanoid-v5 in 10 million steps (an hour on one core): 348 inputs, 17 actions, observations and rewards normalised.

    python examples/humanoid.py

Reached 928 (seed 1) after 2,000,384 steps of the recipe's 10,000,000, in 13.3 minutes of one core.
"""

from sb3_ppo_variants.recipes.training import run_example

if __name__ == "__main__":
    run_example("Humanoid-v5", __doc__)
