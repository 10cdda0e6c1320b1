"""Run SB3's own test suite with one of our classes in the place of ``PPO``.

    python tests/upstream.py PPOClip [pytest arguments]

The suite is taken from the source archive of the installed SB3 version, outside the repository. This file is also the
pytest plugin that puts the class in place.
"""

import importlib.metadata
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import stable_baselines3

import sb3_ppo_variants

CLASS_VARIABLE = "SB3_PPO_VARIANTS_UPSTREAM_CLASS"
# It edits a saved file and asks for a warning. Ours have hashes, so that loading raises a DamagedFileError.
EDITED = "test_load_invalid_object"
# They ask for a clip_range, which is what a class differs from PPO by.
CLIP_RANGE, OLD_CLIP_RANGE = "test_save_load_clip_range_portable", "test_save_load_backward_compatible"
# It asks for a reward after 1200 steps that PPO too reaches only with few seeds, among them the one it uses.
REWARD = "(test_discrete and env2 and PPO)"
NOT_APPLICABLE = {
    "PPOClip": [EDITED],
    "PPOAdaptiveKL": [EDITED, CLIP_RANGE],
    "PPOFixedKL": [EDITED, CLIP_RANGE],
    "PPOUnclipped": [EDITED, CLIP_RANGE, OLD_CLIP_RANGE, REWARD],
}


def replace_ppo(name: str) -> None:
    """Let ``from stable_baselines3 import PPO`` give a class of that name that is ours in all else."""
    ours = type("PPO", (getattr(sb3_ppo_variants, name),), {})
    for module in (stable_baselines3, stable_baselines3.ppo, stable_baselines3.ppo.ppo):
        vars(module)["PPO"] = ours


def main(name: str, *pytest_arguments: str) -> int:
    """Download the suite, run it, and return pytest's exit code."""
    version = importlib.metadata.version("stable_baselines3")
    with tempfile.TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "-d", folder]
        subprocess.run([*download, f"stable_baselines3=={version}"], check=True)
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        (root,) = Path(folder).glob("stable_baselines3-*/")
        os.rename(root / "tests", Path(folder, "tests"))  # Away from the sources, so that the installed SB3 is tested.
        os.rename(root / "pyproject.toml", Path(folder, "pyproject.toml"))
        excluded = " and ".join(f"not {test}" for test in NOT_APPLICABLE[name])
        command = [sys.executable, "-m", "pytest", "-q", "-p", "upstream", "-k", excluded, *pytest_arguments, "tests"]
        python_path = f"{Path(__file__).parent}:{Path(__file__).parent.parent}"
        environment = {**os.environ, CLASS_VARIABLE: name, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, cwd=folder, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
elif CLASS_VARIABLE in os.environ:
    replace_ppo(os.environ[CLASS_VARIABLE])
