"""Train an agent: ``rl_zoo3.train`` with this package's algorithms."""

from sb3_ppo_variants.zoo.launch import launch

if __name__ == "__main__":
    launch("train")
