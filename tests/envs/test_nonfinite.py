"""A value that is not finite stops training with an error that names it, and the policy keeps the last good update."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch as th
from faulty import AT_END, INF, N_ENVS, N_STEPS, NAN, WITHIN, Fault, FaultyEnv, faulty_envs, model_for, state, stopped
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)

from helpers import ACTION_SPACES, VECTOR
from sb3_ppo_variants import NonFiniteError
from sb3_ppo_variants.envs import SafeSubprocVecEnv

PLACES = {
    "reward": ("reward", WITHIN),
    "observation": ("observation", WITHIN),
    "terminal": ("terminal observation", AT_END),
    "first": ("observation", AT_END),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("space", ACTION_SPACES)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("place", PLACES)
def test_from_an_environment(place: str, value: float, space: str, fast: bool) -> None:
    quantity, at = PLACES[place]
    fault = Fault(place, value, at)
    error = stopped(partial(faulty_envs, action_space=ACTION_SPACES[space]), fault, fast=fast)
    assert (error.quantity, error.env_index, error.step) == (quantity, 1, fault.step)
    assert f"the {quantity} of environment 1 at step {fault.step} is not finite" in str(error)


DICT = spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)})


FORKED = partial(SubprocVecEnv, start_method="fork")
OWN = partial(SafeSubprocVecEnv, start_method="fork", n_workers=2)
SET_UPS: dict[str, Callable[[Fault | None], VecEnv]] = {
    "normalized": lambda fault: VecNormalize(faulty_envs(fault)),
    "stacked and normalized": lambda fault: VecNormalize(VecFrameStack(VecMonitor(faulty_envs(fault)), 2)),
    "dictionaries": lambda fault: faulty_envs(fault, observation_space=DICT),
    "normalized dicts": lambda fault: VecNormalize(faulty_envs(fault, observation_space=DICT), norm_obs_keys=["a"]),
    "normalized processes": lambda fault: VecNormalize(faulty_envs(fault, FORKED)),
    "normalized workers": lambda fault: VecNormalize(faulty_envs(fault, OWN)),
}


@pytest.mark.sampled(16)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", SET_UPS)
def test_under_wrappers(name: str, place: str, fast: bool) -> None:
    quantity, at = PLACES[place]
    made: list[Any] = []

    def make_env(fault: Fault | None) -> VecEnv:
        made.append(SET_UPS[name](fault))
        return made[-1]

    fault = Fault(place, NAN, at)
    error = stopped(make_env, fault, fast=fast)
    key = "['a']" if "dict" in name and quantity != "reward" else ""
    assert (error.quantity, error.env_index, error.step) == (quantity + key, 1, fault.step)
    if isinstance(made[1], VecNormalize):
        statistics = made[1].obs_rms if isinstance(made[1].obs_rms, dict) else {"a": made[1].obs_rms}
        for each in (statistics["a"], made[1].ret_rms):
            assert np.isfinite([each.mean, each.var]).all()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", SET_UPS)
def test_of_the_first_observation_of_all(name: str, fast: bool) -> None:
    model = model_for(SET_UPS[name](Fault("first", NAN, at=0)), fast=fast)
    before = state(model)
    with pytest.raises(NonFiniteError, match=r"observation.* of environment 1 at step 0 is not finite"):
        model.learn(100)
    assert th.equal(state(model), before)
    model.env.close()


class SpoiledBetween(VecEnvWrapper):
    """Corrupts what the environments return, after it has been checked."""

    def __init__(self, env: VecEnv, fault: Fault | None):
        super().__init__(env)
        self._fault, self._taken = fault, 0

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = self.venv.step_wait()
        self._taken += 1
        if self._fault and self._fault.at == self._taken:
            array: Any = observations if self._fault.place == "observation" else rewards
            array[1] = self._fault.value
        return observations, rewards, dones, infos


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("place", ["observation", "reward"])
def test_from_a_wrapper(place: str, validate: bool, fast: bool) -> None:
    th.distributions.Distribution.set_default_validate_args(validate)
    try:
        error = stopped(lambda fault: SpoiledBetween(faulty_envs(None), fault), Fault(place, NAN), fast=fast)
    finally:
        th.distributions.Distribution.set_default_validate_args(True)
    # Without validation, an observation may only be noticed when the policy's action for it is not finite.
    assert error.quantity == place or (error.quantity == "action" and not validate)
    assert error.env_index == 1


@pytest.mark.parametrize("fast", [False, True])
def test_actions_too_large_for_single_precision(fast: bool) -> None:
    """exp(100) is infinite in single precision. The reference path takes steps as SB3 does, with clipped actions."""
    model = model_for(faulty_envs(None), fast=fast)
    with th.no_grad():
        model.policy.log_std.fill_(100.0)
    before = state(model)
    with pytest.raises(NonFiniteError):
        model.learn(N_STEPS * N_ENVS)
    assert th.equal(state(model), before)
    assert model.num_timesteps == (0 if fast else N_STEPS * N_ENVS)


@pytest.mark.parametrize("make", [DummyVecEnv, OWN, FORKED])
def test_the_remedy_for_missing_data(make: Any) -> None:
    def env(wrap: Any) -> VecEnv:
        return make([lambda: wrap(FaultyEnv(Fault("observation", NAN, at=3)))] * 2)

    advice = r"Replace missing data in each environment, as with gymnasium.wrappers.TransformObservation\("
    with pytest.raises(NonFiniteError, match=advice):
        model_for(env(lambda single: single)).learn(28)
    model_for(env(lambda single: TransformObservation(single, np.nan_to_num, single.observation_space))).learn(28)


WIDE = spaces.Box(-np.inf, np.inf, (3,), np.float64)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("space", [WIDE, spaces.Dict({"a": WIDE})], ids=["Box", "Dict"])
def test_numbers_that_are_too_large_for_single_precision(space: Any, fast: bool) -> None:
    model = model_for(faulty_envs(Fault("observation", 1e200, at=5), observation_space=space), fast=fast)
    before = state(model)
    with pytest.raises(NonFiniteError, match=r"observation is too large for single precision.* compute: 1e\+200"):
        model.learn(28)
    assert th.equal(state(model), before)
