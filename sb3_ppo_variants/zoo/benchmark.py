"""Evaluate every trained agent in a folder: ``rl_zoo3.benchmark``, which runs ``enjoy`` for each."""

from sb3_ppo_variants.zoo.registry import launch

if __name__ == "__main__":
    launch("benchmark")
