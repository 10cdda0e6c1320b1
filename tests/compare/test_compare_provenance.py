"""What records say about how a run was computed."""

import hashlib
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.registration import EnvSpec

from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.compare.plan import Run
from sb3_ppo_variants.compare.provenance import installed_versions, numerics, own_modules, processor

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


def run_of(algorithm: str = "", env: str = "CartPole-v1", **hyperparameters: Any) -> Run:
    return Run("setting", algorithm, env, 0, 100, hyperparameters, {})


def test_modules_of_the_user_are_recorded_with_a_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_the_user.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    module = import_module("of_the_user")
    for env, entry_point in {"Own-v0": "of_the_user:Still", "Called-v0": module.Still, "Other-v0": CartPoleEnv}.items():
        monkeypatch.setitem(gym.registry, env, EnvSpec(env, entry_point))
    wrappers = ["gymnasium.wrappers.TimeAwareObservation", {"of_the_user.Still": {"a": 1}}]
    for run in (
        run_of("of_the_user:Still"),
        run_of(env="Own-v0"),
        run_of(env="Called-v0"),
        run_of(env="of_the_user:Other-v0"),
        run_of(objective="of_the_user:Pull(0.2)"),
        run_of("sb3_ppo_variants:PPOClip", env_wrapper=wrappers),
        run_of(env_wrapper=module.Still),
        run_of(policy="of_the_user.Policy"),
        run_of(policy_kwargs={"features_extractor_class": "of_the_user.Extractor"}),
    ):
        assert own_modules(run) == {"of_the_user": hashlib.sha256(MODULE.encode()).hexdigest()[:12]}, run
    assert own_modules(run_of(objective="Clipped(0.2)", learning_rate="lin_0.0003")) == {}
    # This process goes on with what it has imported.
    Path(str(module.__file__)).write_text(MODULE + "CHANGED = True")
    assert own_modules(run_of("of_the_user:Still")) == {"of_the_user": hashlib.sha256(MODULE.encode()).hexdigest()[:12]}
    sys.modules.pop("of_the_user")


def test_modules_of_packages_are_left_to_their_versions() -> None:
    run = run_of("stable_baselines3:PPO", "ALE/Pong-v5", env_wrapper="sb3_ppo_variants.envs.ActionsAsDrawn")
    assert own_modules(run) == {}
