"""BipedalWalker-v3 in 5 million steps: 32 environments, observations and rewards normalised.

    python examples/bipedal_walker.py

Reached 287, 278, 283 (seeds 1, 2, 3) after 5,046,272 steps, in 17.7 minutes of one core each.
"""

from sb3_ppo_variants.recipes.training import run_example

if __name__ == "__main__":
    run_example("BipedalWalker-v3", __doc__)
