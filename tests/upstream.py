"""Run SB3's own test suite with one of our classes in place of ``PPO``.

    python tests/upstream.py PPOClip [pytest arguments]

The suite comes from the source archive of the installed SB3 version, which is downloaded, or from the clone of SB3 that
the environment variable ``SUITE_SOURCE`` names. This file is also the pytest plugin that replaces the class.
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

# It edits a saved file and expects a warning. Our files contain hashes, so loading raises a DamagedFileError.
EDITED = "test_load_invalid_object"
# They need PPO's clip_range, which these classes do not have or do not use by default.
CLIP_RANGE, OLD_CLIP_RANGE = "test_save_load_clip_range_portable", "test_save_load_backward_compatible"
# It requires a reward after 1200 steps that even PPO reaches only with few seeds, including the one in the test.
REWARD = "(test_discrete and env2 and PPO)"
NOT_APPLICABLE = {
    "PPOClip": [EDITED],
    "PPOAdaptiveKL": [EDITED, CLIP_RANGE],
    "PPOFixedKL": [EDITED, CLIP_RANGE],
    "PPOUnclipped": [EDITED, CLIP_RANGE, OLD_CLIP_RANGE, REWARD],
}


def class_variable(plugin: str) -> str:
    """Return the environment variable that tells a plugin which class to use."""
    return f"SB3_PPO_VARIANTS_{plugin.upper()}_CLASS"


def replace_ppo(name: str) -> None:
    """Make ``from stable_baselines3 import PPO`` import our class under that name."""
    ours = type("PPO", (getattr(sb3_ppo_variants, name),), {})
    for module in (stable_baselines3, stable_baselines3.ppo, stable_baselines3.ppo.ppo):
        vars(module)["PPO"] = ours


def run_suite(distribution: str, plugin: str, name: str, choice: str, pytest_arguments: Sequence[str]) -> int:
    """Run the suite of an installed distribution, and return pytest's exit code.

    :param distribution: name of the distribution
    :param plugin: the module in this folder that replaces the upstream class
    :param name: name of our class
    :param choice: the tests to run, as an expression for pytest's ``-k``
    :param pytest_arguments: further arguments of pytest
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(os.environ.get("SUITE_SOURCE") or _downloaded(distribution, folder))
        shutil.copytree(
            root / "tests", Path(folder, "tests")
        )  # Run the tests outside the sources, so that they import the installed package.
        shutil.copy(root / "pyproject.toml", folder)
        command = [sys.executable, "-m", "pytest", "-q", "-p", plugin, "-k", choice, *pytest_arguments, "tests"]
        python_path = f"{Path(__file__).parent}:{Path(__file__).parent.parent}"
        environment = {**os.environ, class_variable(plugin): name, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, cwd=folder, env=environment).returncode


def _downloaded(distribution: str, folder: str) -> Path:
    """Download and unpack the source of an installed distribution."""
    version = importlib.metadata.version(distribution)
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "-d", folder]
    subprocess.run([*download, f"{distribution}=={version}"], check=True)
    (archive,) = Path(folder).glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (root,) = Path(folder).glob(f"{distribution}-*/")
    return root


def main(name: str, *pytest_arguments: str) -> int:
    """Run SB3's suite with the class of the given name."""
    choice = " and ".join(f"not {test}" for test in NOT_APPLICABLE[name])
    return run_suite("stable_baselines3", "upstream", name, choice, pytest_arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
elif class_variable(__name__) in os.environ:
    replace_ppo(os.environ[class_variable(__name__)])
