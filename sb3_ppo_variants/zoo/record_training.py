"""Record videos of an agent's checkpoints: ``rl_zoo3.record_training`` with this package's algorithms."""

from sb3_ppo_variants.zoo.launch import launch

if __name__ == "__main__":
    launch("record_training")
