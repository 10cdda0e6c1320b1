"""Every backend fulfils the contract of SB3's VecEnv."""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor, load_results
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecMonitor, VecNormalize

from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.envs import GymnasiumVecEnv, make_ale_vec_env, make_mujoco_vec_env

N_ENVS = 3


def native(n_envs: int = 1, seed: int | None = None, monitor_dir: str | None = None, env_kwargs: Any = None) -> VecEnv:
    """Wrap the vector environment that gymnasium has for an id."""
    env = GymnasiumVecEnv(gym.make_vec("CartPole-v1", n_envs, "vector_entry_point", **(env_kwargs or {})))
    env.seed(seed)
    env.action_space.seed(seed)
    return VecMonitor(env, None if monitor_dir is None else str(Path(monitor_dir) / "0"))


def pooled(env_id: str, n_envs: int, seed: int = 0, monitor_dir: Path | str | None = None, **arguments: Any) -> VecEnv:
    envpool = pytest.importorskip("envpool")
    env = GymnasiumVecEnv(envpool.make(env_id, "gymnasium", num_envs=n_envs, seed=seed, **arguments))
    return VecMonitor(env, None if monitor_dir is None else str(Path(monitor_dir) / "0"))


BACKENDS: Mapping[str, Callable[..., VecEnv]] = {
    "native": native,
    "envpool": partial(pooled, "CartPole-v1"),
    "envpool, cut off": partial(pooled, "Pendulum-v1", max_episode_steps=7),
    "mujoco": partial(make_mujoco_vec_env, "InvertedPendulum-v5", env_kwargs={"max_episode_steps": 7}),
    "ale": partial(
        make_ale_vec_env,
        "BreakoutNoFrameskip-v4",
        wrapper_kwargs={"frame_skip": 16},
        env_kwargs={"max_num_frames_per_episode": 800},
    ),
}


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest) -> Callable[..., VecEnv]:
    return BACKENDS[request.param]


@pytest.fixture
def venv(make: Callable[..., VecEnv]) -> Iterator[VecEnv]:
    made = make(n_envs=N_ENVS, seed=0)
    yield made
    made.close()


def actions(venv: VecEnv, n_steps: int) -> list[np.ndarray]:
    venv.action_space.seed(0)
    return [np.array([venv.action_space.sample() for _ in range(venv.num_envs)]) for _ in range(n_steps)]


@pytest.mark.sampled(2)
def test_steps_have_the_form_of_sb3(venv: VecEnv) -> None:
    space = venv.observation_space
    assert venv.num_envs == N_ENVS
    observations: Any = venv.reset()
    n_dones = 0
    for action in actions(venv, 60):
        assert observations.dtype == space.dtype and observations.shape == (N_ENVS, *(space.shape or ()))
        assert all(space.contains(observation) for observation in observations)
        observations, rewards, dones, infos = venv.step(action)
        assert rewards.dtype == np.float32 and rewards.shape == (N_ENVS,)
        assert dones.dtype == bool and dones.shape == (N_ENVS,)
        assert [type(info) for info in infos] == [dict] * N_ENVS
        for done, info in zip(dones, infos, strict=True):
            assert ("terminal_observation" in info) == done
            assert type(info["TimeLimit.truncated"]) is bool and done >= info["TimeLimit.truncated"]
            if done:
                assert space.contains(info["terminal_observation"])
                n_dones += 1
    assert n_dones > N_ENVS


@pytest.mark.sampled(2)
def test_what_was_returned_does_not_change(venv: VecEnv) -> None:
    returned: list[Any] = [venv.reset()]
    returned += [venv.step(action) for action in actions(venv, 5)]
    kept = deepcopy(returned)
    for action in actions(venv, 30):
        venv.step(action)
    venv.reset()
    # With a VecFrameStack, the observations of a reset share SB3's own memory.
    first = 1 if isinstance(venv, VecFrameStack) else 0
    np.testing.assert_equal(returned[first:], kept[first:])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("make", [make for name, make in BACKENDS.items() if "envpool" not in name])
def test_seeds(make: Callable[..., VecEnv]) -> None:
    def run(venv: VecEnv, seed: int | None) -> list[Any]:
        if seed is not None:
            assert list(venv.seed(seed)) == [seed, seed + 1, seed + 2]
        # Copy them, because a VecFrameStack changes its last observations at a reset.
        return deepcopy([venv.reset(), *(venv.step(action)[0] for action in actions(venv, 20))])

    venvs = [make(n_envs=N_ENVS, seed=seed) for seed in (3, 3, 4, None)]
    drawn, again = ([venv.action_space.sample() for _ in range(20)] for venv in venvs[:2])
    np.testing.assert_equal(drawn, again)
    first, same, other, random = (run(venv, None) for venv in venvs)
    np.testing.assert_equal(first, same)
    # A seed applies to one reset, and is incremented for each environment.
    later = run(venvs[0], None)
    seeded = run(venvs[0], 3)
    np.testing.assert_equal(first, seeded)
    for different in (other, random, later):
        assert any((a != b).any() for a, b in zip(first, different, strict=True))
    np.testing.assert_equal(run(make(n_envs=N_ENVS, seed=4), None), other)
    for venv in venvs:
        venv.close()


def test_the_native_poles_go_on_while_others_begin_anew() -> None:
    """The native environments match gymnasium's single CartPole from the same states."""
    venv = native(N_ENVS, seed=0)
    poles: list[Any] = [gym.make("CartPole-v1").unwrapped for _ in range(N_ENVS)]
    for pole, observation in zip(poles, np.asarray(venv.reset()), strict=True):
        pole.reset()
        pole.state = observation.astype(np.float64)
    observations: Any
    for action in actions(venv, 60):
        observations, _, dones, infos = venv.step(action)
        for i, pole in enumerate(poles):
            expected, *_ = pole.step(int(action[i]))
            np.testing.assert_allclose(infos[i].get("terminal_observation", observations[i]), expected, atol=1e-5)
            if dones[i]:
                pole.reset()
                pole.state = observations[i].astype(np.float64)


@pytest.mark.sampled(2)
def test_attributes_and_wrappers_can_be_asked_for(venv: VecEnv) -> None:
    assert venv.get_attr("render_mode") == [venv.render_mode] * N_ENVS
    assert venv.get_attr("render_mode", indices=[0, 2]) == [venv.render_mode] * 2
    assert venv.has_attr("render_mode") and not venv.has_attr("no_such_thing")
    with pytest.raises(AttributeError, match="no_such_thing"):
        venv.get_attr("no_such_thing")
    assert venv.env_is_wrapped(TimeLimit, indices=1) == [venv.env_is_wrapped(TimeLimit)[1]]
    assert len(venv.env_is_wrapped(Monitor)) == N_ENVS
    # The environment still works.
    venv.reset()
    venv.close()
    venv.close()  # A second call does nothing.


def test_pictures() -> None:
    venv = native(n_envs=N_ENVS, env_kwargs={"render_mode": "rgb_array"})
    venv.reset()
    images: Any = venv.get_images()
    assert len(images) == N_ENVS and all(np.shape(image)[2] == 3 for image in images)
    picture = venv.render()
    assert picture is not None and picture.shape[0] == 2 * np.shape(images[0])[0]
    venv.close()


@pytest.mark.parametrize("name", ["native", "envpool", "ale"])
def test_a_monitor_file_of_all(name: str, tmp_path: Path) -> None:
    venv = BACKENDS[name](n_envs=N_ENVS, seed=0, monitor_dir=str(tmp_path))
    venv.reset()
    episodes = []
    for action in actions(venv, 120):
        episodes += [info["episode"] for info in venv.step(action)[3] if "episode" in info]
    venv.close()
    written = load_results(str(tmp_path))
    np.testing.assert_allclose(written[["r", "l"]], [[episode["r"], episode["l"]] for episode in episodes])
    assert len(episodes) > 1


@pytest.mark.filterwarnings("ignore:EnvPool seeds are fixed")
@pytest.mark.parametrize("name", ["native", "envpool", "mujoco", "ale"])
def test_models_train_and_are_evaluated(name: str) -> None:
    venv = BACKENDS[name](n_envs=2)
    policy = "CnnPolicy" if name == "ale" else "MlpPolicy"
    wrapped = venv if name == "ale" else VecNormalize(venv)
    model = PPOClip(policy, wrapped, n_steps=16, batch_size=16, n_epochs=1, seed=0, device="cpu").learn(64)
    assert model.num_timesteps == 64
    # The monitor reports whole episodes with raw rewards, without a warning.
    _, lengths = evaluate_policy(model, wrapped, n_eval_episodes=2, return_episode_rewards=True)
    assert np.shape(lengths) == (2,)
    venv.close()


def test_what_is_one_whole_has_its_own_attributes() -> None:
    venv = native(N_ENVS)
    assert venv.get_attr("gravity", indices=0) == [9.8]
    for call in (partial(venv.set_attr, "gravity", 5.0), partial(venv.env_method, "reset")):
        with pytest.raises(NotImplementedError, match="no single environments"):
            call()
