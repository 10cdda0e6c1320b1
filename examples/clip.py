"""PPOClip on CartPole-v1: train, evaluate, save, reload, plot the learning curve."""

import argparse
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from stable_baselines3.common import results_plotter
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule

from sb3_ppo_variants import PPOClip


def main(timesteps: int, folder: Path) -> None:
    env = make_vec_env("CartPole-v1", n_envs=8, seed=1, monitor_dir=str(folder))
    settings: dict[str, Any] = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8}
    annealed: dict[str, Any] = {
        "learning_rate": LinearSchedule(1e-3, 0, 1.0),
        "clip_range": LinearSchedule(0.2, 0, 1.0),
    }
    model = PPOClip("MlpPolicy", env, **settings, **annealed, seed=1, device="cpu")
    model.learn(timesteps, progress_bar=True)
    model.save(folder / "model")

    model = PPOClip.load(folder / "model", device="cpu")
    mean, deviation = evaluate_policy(model, make_vec_env("CartPole-v1", seed=100), n_eval_episodes=20)
    print(f"Mean reward of the model loaded from {folder}: {mean:.1f} +- {deviation:.1f} over 20 episodes")

    results_plotter.plot_results([str(folder)], None, results_plotter.X_TIMESTEPS, "PPOClip on CartPole-v1", (8, 4))
    pyplot.savefig(folder / "learning_curve.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, default=Path("runs/cartpole"))
    main(**vars(parser.parse_args()))
