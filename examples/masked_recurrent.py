"""Learn a task with invalid actions and a hidden state, which needs both masks and a memory.

python examples/masked_recurrent.py --timesteps 10000
"""

import argparse

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.evaluation import WithMasks

ENV = "examples.environments:LowOrHigh-v0"


def main(timesteps: int) -> None:
    env = make_vec_env(ENV, n_envs=8, seed=1)
    model = PPOClip(
        "MaskableMlpLstmPolicy",
        env,
        3e-3,
        n_steps=64,
        batch_size=256,
        n_epochs=5,
        gamma=0.9,
        seed=1,
        policy_kwargs={"lstm_hidden_size": 32, "memory": "gru"},
    )
    model.learn(timesteps, progress_bar=True)
    new = make_vec_env(ENV, n_envs=8, seed=2)
    mean, _ = evaluate_policy(WithMasks(model, new), new, n_eval_episodes=100)
    print(f"share of right actions after {timesteps} steps: {mean:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=10_000)
    main(**vars(parser.parse_args()))
