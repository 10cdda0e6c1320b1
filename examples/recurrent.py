"""CartPole-v1 without velocities, which an LSTM infers from past positions, with an adaptive KL penalty.

python examples/recurrent.py --timesteps 100000
"""

import argparse

from sb3_ppo_variants import recipes


def main(timesteps: int) -> None:
    made = recipes.recipe("ppo_adaptive_kl", "examples.environments:CartPoleNoVel-v1")
    folder = "runs/recurrent"
    recipes.train(made, folder, seed=1, timesteps=timesteps, progress_bar=True)
    returns = recipes.evaluate(made, folder, episodes=20)
    print(f"mean reward after {timesteps} steps: {returns.mean():.0f} of 500")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=100_000)
    main(**vars(parser.parse_args()))
