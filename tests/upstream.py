"""Run SB3's own test suite with one of our classes in the place of ``PPO``.

    python tests/upstream.py PPOClip [pytest arguments]

The suite is that of the source archive of the installed SB3 version, outside the repository, or of the clone
of SB3 in the environment variable ``SUITE_SOURCE``. This file is also the pytest plugin that puts the class in place.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import stable_baselines3

import sb3_ppo_variants

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


def class_variable(plugin: str) -> str:
    """The environment variable that tells a plugin which class to put in place."""
    return f"SB3_PPO_VARIANTS_{plugin.upper()}_CLASS"


def replace_ppo(name: str) -> None:
    """Let ``from stable_baselines3 import PPO`` give a class of that name that is ours in all else."""
    ours = type("PPO", (getattr(sb3_ppo_variants, name),), {})
    for module in (stable_baselines3, stable_baselines3.ppo, stable_baselines3.ppo.ppo):
        vars(module)["PPO"] = ours


def run_suite(distribution: str, plugin: str, name: str, choice: str, pytest_arguments: Sequence[str]) -> int:
    """Run the suite of an installed distribution, and return pytest's exit code.

    :param plugin: the module in this folder that puts the class in place
    :param name: of the class
    :param choice: the tests to run, as pytest's ``-k`` takes it
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(os.environ.get("SUITE_SOURCE") or _downloaded(distribution, folder))
        shutil.copytree(
            root / "tests", Path(folder, "tests")
        )  # Away from the sources: the installed package is tested.
        shutil.copy(root / "pyproject.toml", folder)
        command = [sys.executable, "-m", "pytest", "-q", "-p", plugin, "-k", choice, *pytest_arguments, "tests"]
        python_path = f"{Path(__file__).parent}:{Path(__file__).parent.parent}"
        environment = {**os.environ, class_variable(plugin): name, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, cwd=folder, env=environment).returncode


def _downloaded(distribution: str, folder: str) -> Path:
    """The source of an installed distribution, unpacked in a folder."""
    version = importlib.metadata.version(distribution)
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "-d", folder]
    subprocess.run([*download, f"{distribution}=={version}"], check=True)
    (archive,) = Path(folder).glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (root,) = Path(folder).glob(f"{distribution}-*/")
    return root


def main(name: str, *pytest_arguments: str) -> int:
    """Run SB3's suite with a class of this name."""
    choice = " and ".join(f"not {test}" for test in NOT_APPLICABLE[name])
    return run_suite("stable_baselines3", "upstream", name, choice, pytest_arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
elif class_variable(__name__) in os.environ:
    replace_ppo(os.environ[class_variable(__name__)])
