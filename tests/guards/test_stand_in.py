"""While a model trains, callbacks and wrappers see the original environment; afterwards it is left unchanged."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecCheckNan,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
)

from helpers import BOX, IMAGE, NoiseEnv, assert_same_policy, noise_envs, small
from sb3_ppo_variants import EnvOutputError, ExactCheckpointCallback, NonFiniteError, PPOClip
from sb3_ppo_variants.envs import GymnasiumVecEnv, SafeSubprocVecEnv
from sb3_ppo_variants.guards.stepping import StandIn

MAKERS: list[Any] = [partial(NoiseEnv, BOX)] * 2
ENVS: dict[str, Callable[[], Any]] = {
    "DummyVecEnv": lambda: noise_envs(BOX),
    "SubprocVecEnv": lambda: SubprocVecEnv(MAKERS, start_method="fork"),
    "SafeSubprocVecEnv": lambda: SafeSubprocVecEnv(MAKERS, start_method="fork"),
    "GymnasiumVecEnv": lambda: GymnasiumVecEnv(SyncVectorEnv(MAKERS)),
    "VecNormalize": lambda: VecNormalize(noise_envs(BOX)),
    "VecFrameStack": lambda: VecFrameStack(noise_envs(BOX), 2),
    "VecMonitor": lambda: VecMonitor(noise_envs(BOX)),
    "VecCheckNan": lambda: VecCheckNan(noise_envs(BOX)),
    "VecTransposeImage": lambda: VecTransposeImage(noise_envs(BOX, IMAGE)),
    "three wrappers": lambda: VecNormalize(VecFrameStack(VecMonitor(noise_envs(BOX)), 2)),
}


def chain(env: Any) -> list[VecEnv]:
    """List an environment and all environments that it wraps, which compare by identity."""
    return [env, *chain(env.venv)] if isinstance(env, VecEnvWrapper) else [env]


class Calls(BaseCallback):
    """Calls a function once, in the middle of a rollout, and stores its result."""

    def __init__(self, function: Callable[[Any], Any]):
        super().__init__()
        self._function = function

    def _on_step(self) -> bool:
        if self.n_calls == 20:
            self.result = self._function(self)
        return True


def seen_by_a_callback(callback: BaseCallback) -> list[Any]:
    """Return the results of queries that any environment supports."""
    env: Any = callback.training_env
    env.set_attr("mine", 3, indices=[1])
    return [
        [type(each) for each in chain(env) if isinstance(each, VecEnvWrapper)],
        env.has_attr("observation_space"),
        env.get_attr("observation_space"),
        env.get_attr("mine", 1),
        env.env_is_wrapped(Monitor),
        env.reset_infos,
        env.unwrapped.reset_infos,
        type(env.unwrapped),
        (env.num_envs, env.observation_space, env.action_space, env.metadata, env.render_mode),
        env.env_method("reset", seed=5)[0][1],
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ENVS)
def test_callbacks_see_what_they_do_in_sb3(name: str) -> None:
    seen = []
    for cls in (PPO, PPOClip):
        env = ENVS[name]()
        callback = Calls(seen_by_a_callback)
        small(cls, env).learn(64, callback)
        seen.append(callback.result)
        env.close()
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", ENVS)
def test_the_environment_is_left_as_it_was(name: str) -> None:
    env = ENVS[name]()
    before = chain(env)
    model = small(env=env)
    callback = Calls(lambda callback: (callback.training_env, type(chain(callback.model.env)[-1])))
    model.learn(64, callback)
    assert callback.result == (env, StandIn)
    assert chain(env) == before and model.env is env and model.get_env() is env
    env.close()


@pytest.mark.parametrize("name", ["DummyVecEnv", "VecNormalize"])
def test_so_it_is_after_an_error(name: str) -> None:
    def fails(_: Any) -> None:
        raise ZeroDivisionError

    env = ENVS[name]()
    before = chain(env)
    model = small(env=env)
    with pytest.raises(ZeroDivisionError):
        model.learn(64, Calls(fails))
    assert chain(env) == before and model.env is env


@pytest.mark.parametrize("name", ["DummyVecEnv", "VecNormalize"])
def test_a_copy_and_a_pickle_have_no_stand_in(name: str) -> None:
    def copied(callback: Any) -> Any:
        env = callback.model.env
        inner = chain(env)[-1]
        return deepcopy(inner), pickle.loads(pickle.dumps(inner)), deepcopy(callback.model).env

    callback = Calls(copied)
    env = ENVS[name]()
    small(env=env).learn(64, callback)
    inner = chain(env)[-1]
    for copy in callback.result[:2]:
        assert type(copy) is DummyVecEnv and copy is not inner
        assert copy.envs[0] is not inner.envs[0]  # type: ignore[attr-defined]
        copy.reset()
    if name == "DummyVecEnv":
        assert type(callback.result[2]) is DummyVecEnv


def test_what_is_set_on_the_stand_in_is_set_on_the_environment() -> None:
    env = VecNormalize(noise_envs(BOX))
    inner: Any = env.venv

    def sets(_: Any) -> int:
        stand_in: Any = env.venv
        assert stand_in is not inner
        stand_in.mine = 3
        stand_in.metadata = {"render_modes": ["ansi"]}
        return stand_in.mine

    callback = Calls(sets)
    small(env=env).learn(64, callback)
    assert callback.result == inner.mine == 3
    assert inner.metadata == {"render_modes": ["ansi"]}


def test_all_else_is_of_the_environment() -> None:
    """This includes attributes that a later version of SB3 adds to ``VecEnv``."""
    env = noise_envs(BOX)
    stand_in = StandIn(env, env)

    def same(one: Any, other: Any) -> bool:
        # Bound methods are created on each access.
        return one is other or (callable(one) and one == other)

    names = {name for name in dir(env) if not name.startswith("_")}
    assert {"envs", "buf_rews", "close", "seed", "unwrapped", "num_envs"} <= names
    assert [name for name in sorted(names) if not same(getattr(stand_in, name), getattr(env, name))] == []


@pytest.mark.parametrize("fast", [False, True])
def test_an_evaluation_with_normalization(fast: bool) -> None:
    env, eval_env = (VecNormalize(VecMonitor(noise_envs(BOX))) for _ in range(2))
    eval_env.training = False
    callback = EvalCallback(eval_env, eval_freq=16, n_eval_episodes=2, verbose=0, warn=False)
    model = PPOClip("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, device="cpu", fast=fast)
    model.learn(32, callback)
    assert callback.n_calls == 16 and np.isfinite(callback.last_mean_reward)
    np.testing.assert_equal(vars(eval_env.obs_rms), vars(env.obs_rms))


def test_an_evaluation_on_the_training_environment() -> None:
    callback = Calls(lambda callback: evaluate_policy(callback.model, callback.training_env, 2, warn=False)[0])
    small().learn(64, callback)
    assert np.isfinite(callback.result)


@pytest.mark.parametrize("name", ["DummyVecEnv", "VecNormalize", "SafeSubprocVecEnv"])
@pytest.mark.parametrize("of", ["training_env", "model.env"])
def test_a_second_model_learns_on_the_same_environment(name: str, of: str) -> None:
    env = ENVS[name]()
    before = chain(env)

    def learns(callback: Any) -> Any:
        of_first = callback.training_env if of == "training_env" else callback.model.env
        first = chain(callback.model.env)[-1]
        inner = Calls(lambda second: chain(second.model.env))
        second = small(env=of_first).learn(64, inner)
        assert second.num_timesteps == 64
        assert chain(callback.model.env)[-1] is first
        stand_ins: list[Any] = [each for each in inner.result if isinstance(each, StandIn)]
        assert len(stand_ins) == 1 and stand_ins[0] is not first
        # A stand-in does not replace another stand-in.
        assert stand_ins[0]._inner is before[-1]
        return second

    callback = Calls(learns)
    model = small(env=env).learn(128, callback)
    assert model.num_timesteps == 128
    assert chain(env) == before and model.env is env and callback.result.get_env() is env
    env.close()


def test_two_models_one_after_the_other() -> None:
    weights = []
    for cls in (PPO, partial(PPOClip, fast=False)):
        env = VecNormalize(noise_envs(BOX))
        env.seed(0)
        first, second = small(cls, env).learn(32), small(cls, env).learn(64)
        first.learn(32, reset_num_timesteps=False)
        weights.append([parameter.detach().numpy() for parameter in first.policy.parameters()])
        assert second.env is env
    for theirs, ours in zip(*weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_an_environment_that_a_callback_sets_stays() -> None:
    env, other = noise_envs(BOX), noise_envs(BOX)
    model = small(env=env)
    other.reset()
    model.learn(128, Calls(lambda callback: callback.model.set_env(other, force_reset=False)))
    assert model.env is other
    assert other.get_attr("_steps") == [32 % 7] * 2


def test_a_wrapper_that_a_callback_adds_stays() -> None:
    def wraps(callback: Any) -> None:
        callback.model.env = VecNormalize(callback.model.env)

    env = noise_envs(BOX)
    model = small(env=env).learn(128, Calls(wraps))
    assert type(model.env) is VecNormalize and model.env.venv is env


@pytest.mark.parametrize("name", ["DummyVecEnv", "SubprocVecEnv", "VecNormalize"])
def test_it_is_an_instance_of_the_same_classes(name: str) -> None:
    env = ENVS[name]()
    callback = Calls(lambda callback: (chain(callback.locals["env"])[-1], callback.model.env))
    small(env=env).learn(64, callback)
    inner, outer = callback.result
    assert isinstance(inner, type(chain(env)[-1])) and isinstance(outer, type(env))
    env.close()


class OfAnotherKind(DummyVecEnv):
    """Unwraps to something other than an SB3 environment, as those of some simulators do."""

    @property
    def unwrapped(self) -> Any:
        return self.envs


def test_what_is_unwrapped_may_be_of_another_kind() -> None:
    env = VecMonitor(OfAnotherKind([partial(NoiseEnv, BOX)]))
    callback = Calls(lambda callback: callback.training_env.unwrapped)
    small(env=env).learn(64, callback)
    assert callback.result is env.unwrapped


class Loses(NoiseEnv):
    """Returns ``None`` as the reward at one step."""

    def step(self, action: Any) -> Any:
        observation, _, *others = super().step(action)
        return observation, None if self._steps == 5 else 0.0, *others


@pytest.mark.parametrize("name", [name for name in ENVS if name.startswith("Vec")])
def test_under_wrappers_the_environment_is_checked(name: str) -> None:
    env = ENVS[name]()
    inner: Any = env.venv
    inner.envs[1] = Loses(BOX, deepcopy(inner.observation_space))
    with pytest.raises(
        EnvOutputError, match="the reward of environment 1 at step 8 is None, but must be a real number"
    ):
        small(env=env).learn(64)


def test_an_environment_that_a_callback_puts_in_is_checked() -> None:
    def loses(callback: Any) -> None:
        callback.training_env.envs[0] = Loses(BOX)

    with pytest.raises(EnvOutputError, match="the reward of environment 0"):
        small().learn(640, Calls(loses))


class PassesOn(VecEnvWrapper):
    """Passes on actions in a form of its own, which need not be that of the action space."""

    def __init__(self, venv: VecEnv, form: Callable[[np.ndarray], Any]):
        super().__init__(venv)
        self._form = form

    def reset(self) -> Any:
        return self.venv.reset()

    def step_async(self, actions: np.ndarray) -> None:
        self.venv.step_async(self._form(actions))

    def step_wait(self) -> Any:
        return self.venv.step_wait()


FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "lists": lambda actions: actions.tolist(),
    "of different lengths": lambda actions: [actions[0], [*actions[1], 0.0]],
    "dicts": lambda actions: tuple([{"force": action, "reset": False} for action in actions]),
}


@pytest.mark.parametrize("form", FORMS)
def test_wrappers_pass_on_actions_in_any_form(form: str) -> None:
    ours, sb3s = (
        small(cls, PassesOn(noise_envs(BOX), FORMS[form]), **kwargs).learn(64)
        for cls, kwargs in ((PPOClip, {"fast": False}), (PPO, {}))
    )
    assert_same_policy(ours, sb3s)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_finite_is_found_in_any_form(form: str) -> None:
    def spoiled(actions: np.ndarray) -> Any:
        return FORMS[form](np.where([[False], [True]], np.nan, actions))

    with pytest.raises(NonFiniteError, match="the action of environment 1 at step 0 is not finite"):
        small(env=PassesOn(noise_envs(BOX), spoiled)).learn(64)


def test_a_video(tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    pytest.importorskip("pygame")
    env = make_vec_env("CartPole-v1", env_kwargs={"render_mode": "rgb_array"})
    recorder = VecVideoRecorder(env, str(tmp_path), lambda step: step == 3, video_length=5)
    small(env=recorder).learn(16)
    recorder.close()
    assert [file.suffix for file in tmp_path.iterdir()] == [".mp4"]


@pytest.mark.parametrize("name", ["DummyVecEnv", "three wrappers"])
def test_checkpoints(name: str, tmp_path: Path) -> None:
    env = ENVS[name]()
    before = chain(env)
    small(env=env).learn(96, ExactCheckpointCallback(32, tmp_path))
    assert chain(env) == before
    resumed_env = ENVS[name]()
    before = chain(resumed_env)
    resumed = PPOClip.resume(tmp_path, resumed_env, device="cpu")
    resumed.learn(resumed.remaining_timesteps, ExactCheckpointCallback(32, tmp_path), reset_num_timesteps=False)
    assert resumed.num_timesteps == 96 and chain(resumed_env) == before
