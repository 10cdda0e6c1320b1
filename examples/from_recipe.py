"""Any environment with the hyperparameters of its recipe: train, evaluate, print the result.

    python examples/from_recipe.py --env CartPole-v1
    python examples/from_recipe.py --env HalfCheetah-v5 --algo ppo_adaptive_kl

docs/reports/gallery/README.md shows what these reach.
"""

import argparse
import time
from pathlib import Path

from sb3_ppo_variants.commandline import whole_number
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.processes import current, init_processes
from sb3_ppo_variants.recipes import ALGORITHMS, evaluate, recipe, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1", help="environment id (default: %(default)s)")
    names = [name for name in ALGORITHMS if name != "ppo_custom"]  # It needs an objective.
    parser.add_argument("--algo", default="ppo_clip", choices=names, help="(default: %(default)s)")
    parser.add_argument("--timesteps", type=whole_number, help="environment steps (default: the recipe's)")
    parser.add_argument("--seed", type=whole_number, default=1)
    parser.add_argument("--episodes", type=whole_number, default=100, help="evaluation episodes (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where to save (default: runs/ALGORITHM/ENVIRONMENT)")
    options = parser.parse_args()
    if options.episodes < 1:
        parser.error(f"--episodes must be an integer >= 1, not {options.episodes}")
    if options.timesteps == 0:
        parser.error("--timesteps must be an integer >= 1, not 0")
    folder = options.folder or Path("runs", options.algo, options.env)
    made = recipe(options.algo, options.env)
    init_processes()
    start = time.perf_counter()
    try:
        model = train(made, folder, options.seed, options.timesteps, progress_bar=True)
    except (ArgumentError, FileExistsError) as error:
        parser.error(str(error))
    seconds = time.perf_counter() - start
    if current("auto").rank > 0:
        return  # Rank 0 has saved the model of all.
    print(f"{model.num_timesteps} steps in {seconds:.0f} s; saved in {folder}")
    print(f"The model plays {options.episodes} episodes, or fewer with --episodes.", flush=True)
    returns = evaluate(made, folder, options.episodes)
    print(f"Mean reward of the saved model: {returns.mean():.1f} +- {returns.std():.1f} over {len(returns)} episodes")


if __name__ == "__main__":
    main()
