"""PPOClip on HalfCheetah-v5 in several processes, each with its own environments.

torchrun --nproc-per-node 2 examples/data_parallel.py
"""

import argparse
from pathlib import Path

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppo_variants import PPOClip, init_processes


def main(timesteps: int, folder: Path) -> None:
    init_processes()
    env = VecNormalize(make_vec_env("HalfCheetah-v5", n_envs=4))
    # A minibatch contains 64 rows from each process.
    model = PPOClip("MlpPolicy", env, n_steps=512, batch_size=64, seed=1, verbose=1, device="cpu")
    model.learn(timesteps)
    model.save(folder / "model")
    if model.processes.rank == 0:
        env.save(str(folder / "vecnormalize.pkl"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path("runs/data_parallel"))
    main(**vars(parser.parse_args()))
