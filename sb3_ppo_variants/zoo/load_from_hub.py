"""Download a trained agent: ``rl_zoo3.load_from_hub`` with this package's algorithms."""

from sb3_ppo_variants.zoo.launch import launch

if __name__ == "__main__":
    launch("load_from_hub")
