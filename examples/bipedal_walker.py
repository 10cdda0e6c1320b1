"""BipedalWalker-v3 in 5 million steps: 32 environments, observations and rewards normalised.

    python examples/bipedal_walker.py

No run of it is recorded yet.
"""

from sb3_ppo_variants.recipes.training import main

if __name__ == "__main__":
    main("BipedalWalker-v3", __doc__)
