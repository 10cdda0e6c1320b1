"""Pendulum-v1 in 200,000 steps: continuous actions, a short horizon (gamma 0.9) and an annealed step size.

    python examples/pendulum.py

No run of it is recorded yet.
"""

from sb3_ppo_variants.recipes.training import main

if __name__ == "__main__":
    main("Pendulum-v1", __doc__)
