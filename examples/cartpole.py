"""CartPole-v1 in 100,000 steps: the smallest task, with step size and clip range annealed to 0.

    python examples/cartpole.py

No run of it is recorded yet.
"""

from sb3_ppo_variants.recipes.training import main

if __name__ == "__main__":
    main("CartPole-v1", __doc__)
