"""PPOClip with separate updates, as in Spinning Up, on Pendulum-v1: watch target_kl end the policy's passes."""

import argparse

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from sb3_ppo_variants import PPOClip, SeparateUpdates


class PrintEpochs(BaseCallback):
    """Prints how many passes over the rollout each network made."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        log = self.logger.name_to_value
        if "train/policy_epochs" in log:
            policy, value = log["train/policy_epochs"], log["train/value_epochs"]
            print(f"step {self.num_timesteps:7d}  passes of the policy {policy:2d}  of the value {value:2d}")

    _on_training_end = _on_rollout_start  # Print the last update too.


def main(timesteps: int) -> None:
    env = make_vec_env("Pendulum-v1", n_envs=4, seed=1)
    updates = SeparateUpdates(policy_epochs=80, value_epochs=80, value_learning_rate=1e-3)
    # 4 x 256 steps: each minibatch is the whole rollout.
    model = PPOClip(
        "MlpPolicy", env, 1e-3, n_steps=256, batch_size=1024, gamma=0.9, target_kl=0.01, seed=1, updates=updates
    )
    model.learn(timesteps, callback=PrintEpochs())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=50_000)
    main(**vars(parser.parse_args()))
