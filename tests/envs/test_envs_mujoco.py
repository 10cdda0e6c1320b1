"""MuJoCo's environments in batches are those of gymnasium, bit for bit."""

import gc
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor, load_results
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_ppo_variants import ExactCheckpointCallback, PPOClip
from sb3_ppo_variants.envs import make_mujoco_vec_env
from sb3_ppo_variants.errors import ArgumentError, NonFiniteError

batch = pytest.importorskip("mujoco.batch")

IDS = [
    *("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "InvertedPendulum-v5", "InvertedDoublePendulum-v5", "Swimmer-v5"),
    *("Reacher-v5", "Pusher-v5", "Ant-v5", "Humanoid-v5", "HumanoidStandup-v5"),
]
# Arguments other than the defaults.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "HalfCheetah-v5": {"ctrl_cost_weight": 0.3, "exclude_current_positions_from_observation": False},
    "Hopper-v5": {"healthy_state_range": (-3, 3), "healthy_z_range": (0.9, 1.3), "max_episode_steps": 12},
    "Walker2d-v5": {"terminate_when_unhealthy": False, "frame_skip": 2, "max_episode_steps": 60},
    "InvertedPendulum-v5": {"reset_noise_scale": 0.15, "max_episode_steps": 5},
    "InvertedDoublePendulum-v5": {"healthy_reward": 3, "reset_noise_scale": 0.2},
    "Swimmer-v5": {"exclude_current_positions_from_observation": False, "max_episode_steps": -1},
    "Reacher-v5": {"reward_dist_weight": 2.5, "reward_control_weight": 0.3},
    "Pusher-v5": {"reward_near_weight": 0.1, "reward_dist_weight": 3, "reward_control_weight": 0.7},
    "Ant-v5": {"include_cfrc_ext_in_observation": False, "main_body": 2, "contact_force_range": (-0.1, 0.2)},
    "Humanoid-v5": {"include_cinert_in_observation": False, "contact_cost_range": (0.1, 0.4)},
    "HumanoidStandup-v5": {"include_cvel_in_observation": False, "impact_cost_weight": 1e-3, "uph_cost_weight": 2},
}
N_ENVS = 3
Controller = Callable[[np.ndarray], np.ndarray]


def pair(env_id: str, n_threads: int = 2, **env_kwargs: Any) -> tuple[VecEnv, VecEnv]:
    ours = make_mujoco_vec_env(env_id, N_ENVS, seed=7, env_kwargs=env_kwargs, n_threads=n_threads)
    return ours, make_vec_env(env_id, N_ENVS, seed=7, env_kwargs=env_kwargs)


def without_times(step: Any) -> Any:
    for info in step[3]:
        info.get("episode", {}).pop("t", None)
    return step


def random_controller(venv: VecEnv, scale: float = 1.0) -> Controller:
    """Draw actions between the bounds, times the scale."""
    space: Any = venv.action_space
    rng = np.random.default_rng(1)
    return lambda _: (scale * rng.uniform(space.low, space.high, (venv.num_envs, *space.shape))).astype(np.float32)


def assert_same(ours: VecEnv, theirs: VecEnv, n_steps: int, control: Controller) -> int:
    assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space
    observations: Any = ours.reset()
    np.testing.assert_array_equal(observations, np.asarray(theirs.reset()))
    np.testing.assert_equal(ours.reset_infos, theirs.reset_infos)
    n_dones = 0
    for _ in range(n_steps):
        actions = control(observations)
        first, second = without_times(ours.step(actions)), without_times(theirs.step(actions))
        for one, other in zip(first[:3], second[:3], strict=True):
            assert one.dtype == other.dtype
        np.testing.assert_equal(first, second)
        np.testing.assert_equal(ours.reset_infos, theirs.reset_infos)
        observations = first[0]
        n_dones += int(first[2].sum())
    return n_dones


@pytest.mark.sampled(5)
@pytest.mark.parametrize("env_id", IDS)
def test_random_actions(env_id: str) -> None:
    ours, theirs = pair(env_id, max_episode_steps=150)
    # Weak actions keep the pendulums up for a while.
    control = random_controller(ours, 0.05 if env_id.startswith("Inverted") else 1.0)
    assert assert_same(ours, theirs, 310, control) >= 2 * N_ENVS


@pytest.mark.sampled(5)
@pytest.mark.parametrize("env_id", IDS)
def test_arguments(env_id: str) -> None:
    ours, theirs = pair(env_id, **ARGUMENTS[env_id])
    assert_same(ours, theirs, 150, random_controller(ours))


def test_seeds() -> None:
    ours, theirs = pair("Hopper-v5")
    assert_same(ours, theirs, 20, random_controller(ours))
    assert list(ours.seed(3)) == list(theirs.seed(3)) == [3, 4, 5]
    assert_same(ours, theirs, 20, random_controller(ours))
    # Without seeds, the generators go on.
    assert_same(ours, theirs, 20, random_controller(ours))


def test_an_exact_resume(tmp_path: Path) -> None:
    def start(folder: str) -> PPOClip:
        env = VecNormalize(make_mujoco_vec_env("Hopper-v5", N_ENVS, seed=2))
        model = PPOClip.resume_or_start(tmp_path / folder, "MlpPolicy", env, n_steps=32, batch_size=48, seed=2)
        return model

    def checkpoints(folder: str) -> ExactCheckpointCallback:
        return ExactCheckpointCallback(every=96, path=tmp_path / folder, at_end=True)

    whole = start("whole")
    whole.learn_to(288, callback=checkpoints("whole"))
    start("parts").learn(96, callback=checkpoints("parts"))
    resumed = start("parts")
    assert resumed.num_timesteps == 96
    resumed.learn_to(288, callback=checkpoints("parts"))
    for name, tensor in whole.policy.state_dict().items():
        assert th.equal(tensor, resumed.policy.state_dict()[name]), name


def test_the_guards_name_the_environment() -> None:
    env = make_mujoco_vec_env("Hopper-v5", N_ENVS, seed=0)
    model = PPOClip("MlpPolicy", env, n_steps=16, batch_size=16)
    env.reset()
    env.task.qvel[1] = 1e12
    with pytest.raises(NonFiniteError, match=r"the simulation of environment 1 is unstable: .*QVEL") as caught:
        env.step(np.zeros((N_ENVS, 3), np.float32))
    assert caught.value.env_index == 1
    env.reset()
    with pytest.raises(NonFiniteError, match=r"the simulation of environment 2 is unstable: .*CTRL"):
        env.step(np.array([[0.0] * 3, [0.0] * 3, [0.0, np.nan, 0.0]]))
    # A reset makes them stable again.
    assert model.learn(48).num_timesteps == 48


def test_monitor_files(tmp_path: Path) -> None:
    folders = tmp_path / "ours", tmp_path / "theirs"
    keywords = {"info_keywords": ("x_position",)}
    ours = make_mujoco_vec_env("Hopper-v5", N_ENVS, 1, str(folders[0]), monitor_kwargs=keywords)
    theirs = make_vec_env("Hopper-v5", N_ENVS, 1, monitor_dir=str(folders[1]), monitor_kwargs=keywords)
    assert_same(ours, theirs, 200, random_controller(ours))
    assert ours.env_method("get_total_steps") == theirs.env_method("get_total_steps") == [200] * N_ENVS
    assert ours.env_method("get_episode_rewards") == theirs.env_method("get_episode_rewards")
    assert ours.env_is_wrapped(Monitor) == [True] * N_ENVS
    for env in (ours, ours, theirs):
        env.close()
    columns = ["r", "l", "x_position"]
    tables = [load_results(str(folder)).sort_values(columns)[columns].to_numpy() for folder in folders]
    np.testing.assert_array_equal(*tables)
    assert len(tables[0]) > N_ENVS


def test_attributes() -> None:
    env = make_mujoco_vec_env("Hopper-v5", N_ENVS, env_kwargs={"healthy_reward": 2.0})
    env.reset()
    assert env.get_attr("spec")[0].id == "Hopper-v5"
    assert env.get_attr("healthy_reward", [0, 2]) == [2.0, 2.0] and not env.has_attr("no_such_thing")
    for call in (lambda: env.env_method("reset", indices=0), lambda: env.set_attr("dt", 1)):
        with pytest.raises(NotImplementedError, match="use SB3's make_vec_env"):
            call()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env_id": "Hopper-v4"}, "env_id='Hopper-v4'.*Hopper-v5"),
        ({"n_envs": 0}, "n_envs=0"),
        ({"n_threads": 0}, "n_threads=0"),
        ({"n_threads": "all"}, "n_threads='all'"),
        ({"seed": -1}, "seed=-1"),
        ({"env_kwargs": {"healthy_rewards": 1}}, "healthy_rewards.*healthy_reward"),
        ({"env_kwargs": {"frame_skip": 0}}, "frame_skip=0"),
        ({"env_kwargs": {"max_episode_steps": 0}}, "max_episode_steps=0"),
        ({"env_kwargs": {"render_mode": "rgb_array"}}, "render_mode.*use make_vec_env"),
    ],
)
def test_refused_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_mujoco_vec_env(**{"env_id": "Hopper-v5", **arguments})


def test_refused_calls() -> None:
    env = make_mujoco_vec_env("Hopper-v5", 2)
    with pytest.raises(RuntimeError, match=r"reset\(\) must come before"):
        env.step(np.zeros((2, 3)))
    env.reset()
    with pytest.raises(ArgumentError, match=r"actions have the shape \(2, 1\)"):
        env.step(np.zeros((2, 1)))
    env.set_options({"low": 1})
    with pytest.raises(ArgumentError, match="options="):
        env.reset()


def forked(action: Callable[[], object]) -> int:
    """Return the exit code of a forked process that takes an action."""
    process = multiprocessing.get_context("fork").Process(target=action)
    process.start()
    process.join(30)
    if process.exitcode is None:
        process.kill()
        pytest.fail("the process hangs")
    return process.exitcode


@pytest.mark.slow
@pytest.mark.parametrize("n_threads", [1, 2, 4])
def test_a_forked_process_can_drop_the_environments(n_threads: int) -> None:
    gc.collect()
    env: Any = make_mujoco_vec_env("Hopper-v5", 4, n_threads=n_threads)
    env.reset()
    env.itself = env
    gc.disable()
    try:
        del env
        assert forked(lambda: gc.collect()) == 0
    finally:
        gc.enable()


def test_threads_end_with_the_environments() -> None:
    threads = psutil.Process().num_threads()
    gc.disable()
    try:
        env = make_mujoco_vec_env("Hopper-v5", 4, n_threads=3)
        env.reset()
        assert psutil.Process().num_threads() > threads
        env.close()
        del env
        assert psutil.Process().num_threads() == threads
    finally:
        gc.enable()


def test_without_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco.batch", None)
    with pytest.raises(ImportError, match=r"MuJoCo >= 4, which needs Python >= 3\.11: pip install"):
        make_mujoco_vec_env("Hopper-v5")
