"""PPOAdaptiveKL on Pendulum-v1: watch beta follow the KL."""

import argparse

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from sb3_ppo_variants import PPOAdaptiveKL


class PrintKL(BaseCallback):
    """Prints the KL of every update and the beta that it used."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        log = self.logger.name_to_value
        if "train/kl" in log:
            print(f"step {self.num_timesteps:7d}  KL {log['train/kl']:.4f}  beta {log['train/kl_coef']:g}")

    _on_training_end = _on_rollout_start  # Print the last update too.


def main(timesteps: int) -> None:
    env = make_vec_env("Pendulum-v1", n_envs=4, seed=1)
    model = PPOAdaptiveKL("MlpPolicy", env, learning_rate=1e-3, n_steps=256, gamma=0.9, desired_kl=0.01, seed=1)
    model.learn(timesteps, callback=PrintKL())
    print(f"beta is now {model.kl_coef:g}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=50_000)
    main(**vars(parser.parse_args()))
