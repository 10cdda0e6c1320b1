"""Watch a trained agent, or print its rewards: ``rl_zoo3.enjoy`` with this package's algorithms."""

from sb3_ppo_variants.zoo.launch import launch

if __name__ == "__main__":
    launch("enjoy")
