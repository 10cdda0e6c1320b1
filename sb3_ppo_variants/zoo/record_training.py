"""Record videos of an agent's checkpoints: ``rl_zoo3.record_training`` with this package's algorithms."""

import shutil
import sys

from sb3_ppo_variants.zoo.launch import launch


def record_training() -> None:
    """Run rl_zoo3's script, which records every video before it finds that it cannot join them.

    :raises SystemExit: if there is no ffmpeg
    """
    if shutil.which("ffmpeg") is None:
        sys.exit("record_training joins videos with the program ffmpeg, which is not on the PATH: install ffmpeg first")
    launch("record_training")


if __name__ == "__main__":
    record_training()
