"""LunarLander-v3 in 1 million steps: 16 environments and a long horizon (gamma 0.999).

    python examples/lunar_lander.py

SCORE
"""

from sb3_ppo_variants.recipes.training import main

if __name__ == "__main__":
    main("LunarLander-v3", __doc__)
