"""Record a video of a trained agent: ``rl_zoo3.record_video`` with this package's algorithms."""

from sb3_ppo_variants.zoo.launch import launch

if __name__ == "__main__":
    launch("record_video")
