"""Breakout in 10 million steps (40 million frames), as in the paper: step size and clip range annealed to 0.

    python examples/breakout.py

No run of it is recorded yet.
"""

from sb3_ppo_variants.recipes.training import main

if __name__ == "__main__":
    main("BreakoutNoFrameskip-v4", __doc__)
