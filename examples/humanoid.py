"""Humanoid-v5 in 10 million steps: 348 observations, 17 actions, both normalised; hours without a GPU.

    python examples/humanoid.py

No run of it is recorded yet.
"""

from sb3_ppo_variants.recipes.training import main

if __name__ == "__main__":
    main("Humanoid-v5", __doc__)
