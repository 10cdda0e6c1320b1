"""HalfCheetah-v5 in 1 million steps: one environment, larger networks, observations and rewards normalised.

    python examples/half_cheetah.py

No run of it is recorded yet.
"""

from sb3_ppo_variants.recipes.training import main

if __name__ == "__main__":
    main("HalfCheetah-v5", __doc__)
