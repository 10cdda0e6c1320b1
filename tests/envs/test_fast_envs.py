"""``make_fast_vec_env`` chooses by rules, and what is exact gives the same as ``gym.make`` in a ``DummyVecEnv``."""

import time
from functools import partial
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import FlattenObservation, TransformReward
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack

from helpers import BOX, NoiseEnv
from sb3_ppo_variants import ArgumentError
from sb3_ppo_variants.envs import MujocoVecEnv, SafeSubprocVecEnv, make_fast_vec_env, make_mujoco_vec_env, making
from sb3_ppo_variants.envs.mujoco import tasks
from sb3_ppo_variants.envs.subproc import count_cores, limit_cores

gym.register_envs(ale_py)
BREAKOUT = "BreakoutNoFrameskip-v4"


class Takes(NoiseEnv):
    """Takes a millisecond for a step."""

    def step(self, action: Any) -> Any:
        time.sleep(1e-3)
        return super().step(action)


class HasNoModes(NoiseEnv):
    """Does not take the argument ``render_mode``."""

    def __init__(self) -> None:
        super().__init__(BOX)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "count_cores", lambda: 2)
    # A fork starts faster than a new process.
    monkeypatch.setattr(making, "SafeSubprocVecEnv", partial(SafeSubprocVecEnv, start_method="fork"))


def registered(monkeypatch: pytest.MonkeyPatch, make: Any) -> str:
    monkeypatch.setitem(gym.registry, "Own-v0", EnvSpec("Own-v0", entry_point=make))
    return "Own-v0"


def same(ours: VecEnv, theirs: VecEnv, n_steps: int = 100) -> None:
    """Check that two environments give the same, bit for bit."""
    assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    theirs.action_space.seed(1)
    for _ in range(n_steps):
        actions = np.array([theirs.action_space.sample() for _ in range(theirs.num_envs)])
        first, second = ours.step(actions), theirs.step(actions)
        for info in (*first[3], *second[3]):
            info.get("episode", {}).pop("t", None)
        np.testing.assert_equal(first, second)
    ours.close(), theirs.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "LunarLander-v3", "Hopper-v5", "Acrobot-v1"])
def test_exact(env_id: str) -> None:
    """This holds although ``make_vec_env`` asks for pictures, which need more work in every step of LunarLander."""
    same(make_fast_vec_env(env_id, 3, seed=5, exact=True), make_vec_env(env_id, 3, seed=5))


@pytest.mark.usefixtures("cores")
def test_exact_games(capsys: pytest.CaptureFixture[str]) -> None:
    ours = make_fast_vec_env(BREAKOUT, 2, seed=5, exact=True, env_kwargs={"render_mode": "rgb_array"})
    assert "of make_atari_env for 2 x BreakoutNoFrameskip-v4: a step takes" in capsys.readouterr().out
    same(ours, VecFrameStack(make_atari_env(BREAKOUT, 2, seed=5), 4), 20)
    for arguments in ({"exact": True}, {"wrapper_class": AtariWrapper}):
        with pytest.raises(ArgumentError, match="skips 4 frames, and the wrapper skips 4 again"):
            make_fast_vec_env("ALE/Breakout-v5", **arguments)


def chosen(capsys: pytest.CaptureFixture[str], *args: Any, **kwargs: Any) -> str:
    """Return the name that is printed."""
    make_fast_vec_env(*args, **kwargs).close()
    return capsys.readouterr().out.split()[1]


def test_batches_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert chosen(capsys, "Hopper-v5", 2) == "make_mujoco_vec_env"
    assert isinstance(make_fast_vec_env("Hopper-v5", 2, exact=True, verbose=0).unwrapped, MujocoVecEnv)
    assert chosen(capsys, "Hopper-v5", 1, exact=True) == "DummyVecEnv"
    assert chosen(capsys, BREAKOUT, 2) == "make_ale_vec_env"
    assert chosen(capsys, "CartPole-v1", 2, env_kwargs={"sutton_barto_reward": True}) == "DummyVecEnv"
    assert chosen(capsys, "Hopper-v5", 2, wrapper_class=FlattenObservation) == "DummyVecEnv"


def negated(cls: Any) -> Any:
    """Make an environment whose rewards have the other sign."""
    return lambda **arguments: TransformReward(cls(**arguments), lambda reward: -float(reward))


@pytest.mark.parametrize(("env_id", "cls"), [("Hopper-v5", HopperEnv), ("CartPole-v1", CartPoleEnv)])
def test_an_id_that_was_registered_again(env_id: str, cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo's batches would simulate the environment that had the id before."""
    again = EnvSpec(env_id, entry_point=negated(cls), max_episode_steps=1000)
    monkeypatch.setitem(gym.registry, env_id, again)
    env = make_fast_vec_env(env_id, 2, verbose=0)
    env.reset()
    env.action_space.seed(0)
    actions = np.array([env.action_space.sample() for _ in range(2)])
    assert type(env.unwrapped) is DummyVecEnv and (env.step(actions)[1] < 0).all()
    with pytest.raises(ArgumentError, match=f"'{env_id}' was registered again|allowed: one of"):
        make_mujoco_vec_env(env_id, 2)


@pytest.mark.parametrize("env_id", [HasNoModes, gym.spec("CartPole-v1")])
def test_only_ids_have_a_fastest_way(env_id: Any) -> None:
    with pytest.raises(ArgumentError, match=r"env_id=.* is not allowed; allowed: the id of a registered environment"):
        make_fast_vec_env(env_id, 2)


def test_without_mujoco(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = tasks.find_spec
    monkeypatch.setattr(tasks, "find_spec", lambda name: None if name == "mujoco" else found(name))
    assert chosen(capsys, "InvertedPendulum-v5", 2, exact=True) in ("DummyVecEnv", "SafeSubprocVecEnv")


@pytest.mark.usefixtures("cores")
def test_workers_for_long_steps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    env_id = registered(monkeypatch, partial(Takes, BOX))
    assert chosen(capsys, env_id, 4) == "SafeSubprocVecEnv"
    assert chosen(capsys, env_id, 1) == "DummyVecEnv"
    assert chosen(capsys, registered(monkeypatch, partial(NoiseEnv, BOX)), 4) == "DummyVecEnv"


@pytest.mark.usefixtures("cores")
def test_other_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    venv = make_fast_vec_env(
        registered(monkeypatch, HasNoModes),
        2,
        monitor_dir=str(tmp_path),
        monitor_kwargs={"info_keywords": ()},
        verbose=0,
    )
    assert isinstance(venv, DummyVecEnv) and venv.env_is_wrapped(Monitor) == [True] * 2
    assert capsys.readouterr().out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.monitor.csv", "1.monitor.csv"]
    with pytest.raises(ArgumentError, match="exact='yes' is not allowed"):
        make_fast_vec_env("CartPole-v1", exact="yes")  # type: ignore[arg-type]
    with pytest.raises(gym.error.UnregisteredEnv, match="NoSuch"):
        make_fast_vec_env("NoSuch-v0")


def test_cores_can_be_limited(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Several runs beside each other share the cores, so that slow steps are no reason for workers."""
    before = count_cores()
    with limit_cores(1):
        assert count_cores() == 1
        env_id = registered(monkeypatch, partial(Takes, BOX))
        assert chosen(capsys, env_id, 4) == "DummyVecEnv"
    assert count_cores() == before
    with limit_cores(before + 1):
        assert count_cores() == before
