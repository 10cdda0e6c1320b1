"""What records say about how a run was computed."""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.compare.execution import installed_versions, numerics, own_modules, processor

MODULE = """
import gymnasium as gym

class Still(gym.Wrapper):
    pass
"""


def test_the_backend_of_the_updates_is_recorded() -> None:
    assert numerics(PPOClip("MlpPolicy", "CartPole-v1", fast=False))["path"] == "reference"
    assert numerics(None)["path"] == ""


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="not Linux")
def test_the_processor_is_the_one_that_lscpu_names() -> None:
    try:
        listed = subprocess.run(["lscpu"], capture_output=True, text=True, check=True, env={"LC_ALL": "C"}).stdout
    except OSError:
        pytest.skip("lscpu is not installed")
    name = next((line.split(":")[1].strip() for line in listed.splitlines() if line.startswith("Model name")), "")
    assert name in processor()


def test_versions_of_packages_with_environments_are_recorded() -> None:
    pytest.importorskip("mujoco")
    import mujoco

    assert installed_versions()["mujoco"] == mujoco.__version__


def test_modules_of_the_user_are_recorded_with_a_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_the_user.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    __import__("of_the_user")
    monkeypatch.setitem(gym.registry, "Own-v0", gym.envs.registration.EnvSpec("Own-v0", "of_the_user:Still"))
    digest = hashlib.sha256(MODULE.encode()).hexdigest()
    expected = {"of_the_user": digest[:12]}
    assert own_modules("of_the_user:Still", "CartPole-v1", None) == expected
    assert own_modules("", "Own-v0", None) == expected
    assert own_modules("", "CartPole-v1", None, "of_the_user:Pull(0.2)") == expected
    assert own_modules("", "CartPole-v1", None, "Clipped(0.2)") == {}
    wrappers: Any = ["gymnasium.wrappers.TimeAwareObservation", {"of_the_user.Still": {"a": 1}}]
    assert own_modules("sb3_ppo_variants:PPOClip", "CartPole-v1", wrappers) == expected
    sys.modules.pop("of_the_user")


def test_modules_of_packages_are_left_to_their_versions() -> None:
    assert own_modules("stable_baselines3:PPO", "CartPole-v1", "sb3_ppo_variants.envs.ActionsAsDrawn") == {}
