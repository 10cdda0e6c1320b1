"""HalfCheetah-v5 in 1 million steps: one environment, larger networks, observations and rewards normalised.

    python examples/half_cheetah.py

Reached 4667, 5349, 6118 (seeds 1, 2, 3) after 1,000,448 steps, in 11.8 minutes of one core each.
"""

from sb3_ppo_variants.recipes.training import run_example

if __name__ == "__main__":
    run_example("HalfCheetah-v5", __doc__)
