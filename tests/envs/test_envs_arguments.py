"""What vector environments cannot do is refused, and the error says what to do instead."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import ClipReward, NormalizeObservation, NormalizeReward, RecordEpisodeStatistics

from sb3_ppo_variants import ArgumentError
from sb3_ppo_variants.envs import GymnasiumVecEnv, make_ale_vec_env

BREAKOUT = "BreakoutNoFrameskip-v4"
CARTPOLE: list[Callable[[], gym.Env]] = [lambda: gym.make("CartPole-v1")] * 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(make_ale_vec_env, BREAKOUT, 0), "n_envs=0"),
        (partial(make_ale_vec_env, BREAKOUT, wrapper_kwargs={"noop": 3}), "wrapper_kwargs={'noop': 3} .*noop_max"),
        (partial(make_ale_vec_env, BREAKOUT, wrapper_kwargs={"frame_skip": 0}), "frame_skip=0"),
        (partial(make_ale_vec_env, "BrickoutNoFrameskip-v4"), "'BrickoutNoFrameskip-v4'.*Did you mean: `Breakout"),
        (partial(make_ale_vec_env, "CartPole-v1"), "'CartPole-v1'.*Atari game, such as 'BreakoutNoFrameskip-v4'"),
        (partial(make_ale_vec_env, "ALE/Breakout-v5"), "'BreakoutNoFrameskip-v4', or env_kwargs={'frameskip': 1}"),
        (partial(make_ale_vec_env, "Breakout-v4", wrapper_kwargs={"frame_skip": 1}), "no fixed frameskip: use 'B"),
        # The error does not suggest an id that does not exist.
        (partial(make_ale_vec_env, "ALE/Tetris-v5"), "again: use env_kwargs={'frameskip': 1}$"),
        (partial(make_ale_vec_env, "no_such_module:Pong-v4"), "No module named 'no_such_module'"),
    ],
)
def test_arguments_of_the_factories(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


class Undeclared(VectorEnv):
    """Does not declare its autoreset mode, and ignores masks."""

    num_envs = 2
    single_observation_space: Any = spaces.Box(0, 9, (1,), np.float32)
    single_action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        self.steps = np.zeros((2, 1), np.float32)
        return self.steps, {}

    def step(self, actions: Any) -> Any:
        self.steps = self.steps + 1
        return self.steps, np.ones(2), self.steps[:, 0] * [1, 0] >= 2, np.zeros(2, bool), {}


class Declared(Undeclared):
    def __init__(self, mode: Any):
        self.metadata = {"autoreset_mode": mode}


def test_the_autoreset_mode_must_be_known() -> None:
    with pytest.raises(ArgumentError, match=r"autoreset_mode=None must be .* one of 'NextStep', 'Same"):
        GymnasiumVecEnv(Undeclared())
    for mode in ("Sometimes", 3):
        with pytest.raises(ArgumentError, match="autoreset_mode="):
            GymnasiumVecEnv(Undeclared(), mode)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match=f"metadata says {mode}"):
            GymnasiumVecEnv(Declared(mode))
    with pytest.raises(ArgumentError, match=r"metadata says AutoresetMode\.NEXT_STEP"):
        GymnasiumVecEnv(VectorWrapper(SyncVectorEnv(CARTPOLE)), AutoresetMode.SAME_STEP)
    for known in (AutoresetMode.DISABLED, "Disabled"):
        assert GymnasiumVecEnv(Undeclared(), known).num_envs == 2
    assert GymnasiumVecEnv(Declared("Disabled"), AutoresetMode.DISABLED).num_envs == 2


def test_a_reset_that_heeds_no_mask() -> None:
    venv = GymnasiumVecEnv(Undeclared(), AutoresetMode.NEXT_STEP)
    venv.reset()
    venv.step(np.zeros(2))
    with pytest.raises(ArgumentError, match=r"must reset only the environments in options\['reset_mask'\]"):
        venv.step(np.zeros(2))


def test_a_last_observation_that_is_missing() -> None:
    venv = GymnasiumVecEnv(Undeclared(), AutoresetMode.SAME_STEP)
    venv.reset()
    venv.step(np.zeros(2))
    with pytest.raises(ArgumentError, match=r"must return infos\['final_obs'\]"):
        venv.step(np.zeros(2))


def test_other_environments() -> None:
    single: Any = gym.make("CartPole-v1")
    with pytest.raises(ArgumentError, match=r"a gymnasium.vector.VectorEnv"):
        GymnasiumVecEnv(single)
    nested = Declared(AutoresetMode.SAME_STEP)
    nested.single_observation_space = spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)})})
    with pytest.raises(NotImplementedError):
        GymnasiumVecEnv(nested)


def test_some_environments_at_a_time() -> None:
    from ale_py.vector_env import AtariVectorEnv

    venv = GymnasiumVecEnv(AtariVectorEnv("pong", 4, batch_size=2))
    with pytest.raises(ArgumentError, match="returns 2 observations for 4 environments: create it with batch_size"):
        venv.reset()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_wrappers_that_know_no_reset_of_some(mode: AutoresetMode) -> None:
    """Resets of some environments lose what these know of all, or raise an error."""
    inner = SyncVectorEnv(CARTPOLE, autoreset_mode=mode)
    with pytest.raises(ArgumentError, match=r"^NormalizeReward .*use SB3's VecNormalize"):
        GymnasiumVecEnv(ClipReward(NormalizeReward(inner), -1, 1))
    with pytest.raises(ArgumentError, match=r"^RecordEpisodeStatistics .*use SB3's VecMonitor"):
        GymnasiumVecEnv(RecordEpisodeStatistics(inner))
    if mode is AutoresetMode.NEXT_STEP:  # gymnasium itself refuses the others.
        with pytest.raises(ArgumentError, match=r"^NormalizeObservation .*use SB3's VecNormalize$"):
            GymnasiumVecEnv(NormalizeObservation(inner))
