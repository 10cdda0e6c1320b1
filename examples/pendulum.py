"""Pendulum-v1 in 200,000 steps: continuous actions, a short horizon (gamma 0.9) and an annealed learning rate.

    python examples/pendulum.py

Reached -177, -187, -160, -177, -157 (seeds 1, 2, 3, 4, 5) after 200,704 steps, in 0.3 minutes of one core each.
"""

from sb3_ppo_variants.recipes.training import run_example

if __name__ == "__main__":
    run_example("Pendulum-v1", __doc__)
