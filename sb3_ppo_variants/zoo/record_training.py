"""Record videos of an agent's checkpoints: ``rl_zoo3.record_training``, which runs ``record_video`` for each."""

import shutil
import sys

from sb3_ppo_variants.zoo.registry import launch

if __name__ == "__main__":
    # rl_zoo3 would record every video before it fails to join them.
    if shutil.which("ffmpeg") is None:
        sys.exit("record_training joins videos with the program ffmpeg, which is not on the PATH: install ffmpeg first")
    launch("record_training")
