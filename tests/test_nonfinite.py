"""A value that is not finite stops training with an error that names it, and the policy keeps the last good update."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)

from helpers import ACTION_SPACES, VECTOR, NoiseEnv, latin
from sb3_ppo_variants import NonFiniteError, PPOAdaptiveKL, PPOClip
from sb3_ppo_variants.backends.torch_update import TorchDescent

NAN, INF = float("nan"), float("inf")
BOX = ACTION_SPACES["Box"]
N_STEPS, N_ENVS, EPISODE = 14, 2, 7
UPDATES = 2
# Steps of the rollout after these updates: one within an episode, and one at its end.
WITHIN, AT_END = UPDATES * N_STEPS + 4, UPDATES * N_STEPS + EPISODE


@dataclass
class Fault:
    """A wrong value that environment 1 returns at one step."""

    place: str
    value: float
    at: int = WITHIN

    @property
    def step(self) -> int:
        """The model's number of timesteps when the fault occurs."""
        return (self.at - 1) * N_ENVS


def spoiled(observation: Any, value: float) -> Any:
    if isinstance(observation, dict):
        return {key: spoiled(part, value) if key == "a" else part for key, part in observation.items()}
    observation = np.array(observation, np.float32)
    observation.flat[-1] = value
    return observation


class FaultyEnv(NoiseEnv):
    """Returns a wrong value once."""

    def __init__(self, fault: Fault | None, action_space: spaces.Space = BOX, observation_space: spaces.Space = VECTOR):
        super().__init__(action_space, deepcopy(observation_space))
        self._fault = fault
        self._taken = 0

    def _is(self, place: str) -> bool:
        return self._fault is not None and self._fault.place == place and self._fault.at == self._taken

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        observation, info = super().reset(seed=seed)
        return (spoiled(observation, self._fault.value) if self._fault and self._is("first") else observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        self._taken += 1
        observation, reward, terminated, truncated, info = super().step(action)
        if self._fault and (self._is("observation") or self._is("terminal")):
            observation = spoiled(observation, self._fault.value)
        if self._fault and self._is("reward"):
            reward = self._fault.value
        return observation, reward, terminated, truncated, info


def faulty_envs(fault: Fault | None, vec_env: Any = DummyVecEnv, **arguments: Any) -> VecEnv:
    env: VecEnv = vec_env([partial(FaultyEnv, each, **arguments) for each in (None, fault)])
    return env


def model_for(env: VecEnv, cls: Any = PPOClip, **arguments: Any) -> Any:
    policy = "MultiInputPolicy" if isinstance(env.observation_space, spaces.Dict) else "MlpPolicy"
    if env.observation_space.shape == (1, 36, 36):
        policy = "CnnPolicy"
    arguments = {"n_steps": N_STEPS, "batch_size": 14, "n_epochs": 2, "seed": 0, "device": "cpu", **arguments}
    return cls(policy, env, **arguments)


def state(model: Any) -> th.Tensor:
    """Return all weights, and Adam's moments and step counts."""
    moments = model.policy.optimizer.state_dict()["state"].values()
    tensors = [*model.policy.parameters(), *(tensor for each in moments for tensor in each.values())]
    return th.cat([tensor.detach().flatten() for tensor in tensors])


def stopped(
    make_env: Callable[[Fault | None], VecEnv], fault: Fault, callback: Any = None, **arguments: Any
) -> NonFiniteError:
    """Return the error of a run with a fault, and check that the model is as after the updates before it."""
    good = model_for(make_env(None), **arguments).learn(UPDATES * N_STEPS * N_ENVS)
    bad = model_for(make_env(fault), **arguments)
    with pytest.raises(NonFiniteError) as caught:
        bad.learn(9 * N_STEPS * N_ENVS, callback)
    assert th.equal(state(bad), state(good)) and state(bad).isfinite().all()
    assert bad._n_updates == good._n_updates
    for model in (good, bad):
        model.env.close()
    return caught.value


PLACES = {
    "reward": ("reward", WITHIN),
    "observation": ("observation", WITHIN),
    "terminal": ("terminal observation", AT_END),
    "first": ("observation", AT_END),
}


@latin(4, place=PLACES, value=[NAN, INF, -INF], space=ACTION_SPACES, fast=[False, True])
def test_from_an_environment(place: str, value: float, space: str, fast: bool) -> None:
    quantity, at = PLACES[place]
    fault = Fault(place, value, at)
    error = stopped(partial(faulty_envs, action_space=ACTION_SPACES[space]), fault, fast=fast)
    assert (error.quantity, error.env_index, error.step) == (quantity, 1, fault.step)
    assert f"the {quantity} of environment 1 at step {fault.step} is not finite" in str(error)


DICT = spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)})


class Together(SubprocVecEnv):
    """Starts its processes quickly."""

    def __init__(self, env_fns: Any):
        super().__init__(env_fns, start_method="fork")


SET_UPS: dict[str, Callable[[Fault | None], VecEnv]] = {
    "normalized": lambda fault: VecNormalize(faulty_envs(fault)),
    "stacked": lambda fault: VecFrameStack(faulty_envs(fault), 3),
    "monitored": lambda fault: VecMonitor(faulty_envs(fault)),
    "stacked and normalized": lambda fault: VecNormalize(VecFrameStack(faulty_envs(fault), 2)),
    "dictionaries": lambda fault: faulty_envs(fault, observation_space=DICT),
    "normalized dictionaries": lambda fault: VecNormalize(
        faulty_envs(fault, observation_space=DICT), norm_obs_keys=["a"]
    ),
    "processes": lambda fault: faulty_envs(fault, Together),
    "normalized processes": lambda fault: VecNormalize(faulty_envs(fault, Together)),
}


@latin(4, name=SET_UPS, place=PLACES, fast=[False, True])
def test_under_wrappers(name: str, place: str, fast: bool) -> None:
    quantity, at = PLACES[place]
    made: list[Any] = []

    def make_env(fault: Fault | None) -> VecEnv:
        made.append(SET_UPS[name](fault))
        return made[-1]

    fault = Fault(place, NAN, at)
    error = stopped(make_env, fault, fast=fast)
    key = "['a']" if "dictionaries" in name and quantity != "reward" else ""
    assert (error.quantity, error.env_index, error.step) == (quantity + key, 1, fault.step)
    if isinstance(made[1], VecNormalize):
        statistics = made[1].obs_rms if isinstance(made[1].obs_rms, dict) else {"a": made[1].obs_rms}
        for each in (statistics["a"], made[1].ret_rms):
            assert np.isfinite([each.mean, each.var]).all()


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", SET_UPS)
def test_of_the_first_observation_of_all(name: str, fast: bool) -> None:
    model = model_for(SET_UPS[name](Fault("first", NAN, at=0)), fast=fast)
    before = state(model)
    with pytest.raises(NonFiniteError, match=r"observation.* of environment 1 at step 0 is not finite"):
        model.learn(100)
    assert th.equal(state(model), before)
    model.env.close()


@pytest.fixture
def _no_validation() -> Any:
    """Disable validation, so that PyTorch's distributions accept any parameters."""
    th.distributions.Distribution.set_default_validate_args(False)
    yield
    th.distributions.Distribution.set_default_validate_args(True)


@pytest.mark.usefixtures("_no_validation")
@pytest.mark.parametrize("use_sde", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_without_validation(place: str, use_sde: bool) -> None:
    quantity, at = PLACES[place]
    error = stopped(faulty_envs, Fault(place, NAN, at), fast=False, use_sde=use_sde)
    assert error.quantity == quantity


class SpoiledBetween(VecEnvWrapper):
    """Corrupts what the environments return, after it has been checked."""

    def __init__(self, env: VecEnv, fault: Fault | None):
        super().__init__(env)
        self._fault = fault
        self._taken = 0

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        self._taken += 1
        observations, rewards, dones, infos = self.venv.step_wait()
        if self._fault and self._fault.at == self._taken:
            array: Any = observations if self._fault.place == "observation" else rewards
            array[1] = self._fault.value
        return observations, rewards, dones, infos


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


class TakesNoNaN(NoiseEnv):
    def step(self, action: Any) -> Any:
        assert np.isfinite(action).all()
        return super().step(action)


class Spoils(BaseCallback):
    """Sets a parameter to NaN in the third rollout."""

    def __init__(self, name: str):
        super().__init__()
        self._name = name

    def _on_step(self) -> bool:
        if self.n_calls == WITHIN:
            policy: Any = self.model.policy
            policy.get_parameter(self._name).data.flatten()[0] = NAN
        return True


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("name", ["log_std", "action_net.bias", "value_net.bias", "mlp_extractor.policy_net.0.weight"])
def test_a_spoiled_policy_does_not_act(name: str, validate: bool, fast: bool) -> None:
    th.distributions.Distribution.set_default_validate_args(validate)
    model = model_for(DummyVecEnv([partial(TakesNoNaN, BOX)] * N_ENVS), fast=fast)
    try:
        with pytest.raises(NonFiniteError, match=f"parameter {name} is not finite"):
            model.learn(1000, Spoils(name))
    finally:
        th.distributions.Distribution.set_default_validate_args(True)
    assert model._n_updates == UPDATES * 2


IMAGE = spaces.Box(0, 255, (1, 36, 36), np.uint8)
PATHS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "reference": ({}, {"fast": False}),
    "arrays": ({}, {"fast": True}),
    "images": ({"observation_space": IMAGE}, {"fast": True}),
    "gSDE": ({}, {"use_sde": True}),
    "adaptive": ({}, {"cls": PPOAdaptiveKL}),
}


@pytest.mark.filterwarnings("ignore:The reward of environment", "ignore:overflow encountered")
@pytest.mark.parametrize("name", PATHS)
def test_of_a_loss(name: str) -> None:
    env_arguments, arguments = PATHS[name]
    error = stopped(partial(faulty_envs, **env_arguments), Fault("reward", 1e30), **arguments)
    assert error.quantity.startswith("value loss of minibatch")


@pytest.mark.parametrize("name", PATHS)
def test_of_an_advantage(name: str) -> None:
    env_arguments, arguments = PATHS[name]

    class Overflows(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            if self.num_timesteps > UPDATES * N_STEPS * N_ENVS:
                self.locals["rollout_buffer"].advantages[3, 1] = INF

    error = stopped(partial(faulty_envs, **env_arguments), Fault("", 0.0), callback=Overflows(), **arguments)
    assert (error.quantity, error.env_index, error.step) == ("advantage", 1, (UPDATES * N_STEPS + 3) * N_ENVS)


class SpoilsGradient(BaseCallback):
    """Sets a gradient to NaN in the third update, at a minibatch other than the first."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps == UPDATES * N_STEPS * N_ENVS:
            policy: Any = self.model.policy
            self._minibatches = 0
            policy.value_net.bias.register_hook(self._spoiled)

    def _spoiled(self, gradient: th.Tensor) -> th.Tensor:
        self._minibatches += 1
        return gradient * NAN if self._minibatches == 3 else gradient


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("name", ["reference", "images", "gSDE"])
def test_of_a_gradient(name: str, validate: bool) -> None:
    env_arguments, arguments = PATHS[name]
    th.distributions.Distribution.set_default_validate_args(validate)
    try:
        make_env = partial(faulty_envs, **env_arguments)
        error = stopped(make_env, Fault("", 0.0), callback=SpoilsGradient(), **{"fast": False, **arguments})
    finally:
        th.distributions.Distribution.set_default_validate_args(True)
    assert error.quantity == "gradient of minibatch 2"


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize(
    "arguments",
    [
        {"fast": True, "learning_rate": 1e39},
        {"learning_rate": 1e38, "vf_coef": 1e6, "policy_kwargs": {"optimizer_class": th.optim.SGD}},
    ],
)
def test_of_a_step_that_is_too_large(arguments: dict[str, Any]) -> None:
    """The step is the last of its update, so no later loss reveals it."""
    model = model_for(faulty_envs(None), batch_size=N_STEPS * N_ENVS, n_epochs=1, max_grad_norm=INF, **arguments)
    before = deepcopy(model.policy.state_dict())
    with pytest.raises(NonFiniteError, match="parameter"):
        model.learn(1)
    for key, weight in model.policy.state_dict().items():
        assert th.equal(weight, before[key])


@pytest.mark.parametrize("fast", [False, True])
def test_a_huge_reward_is_named_once(fast: bool) -> None:
    class Pays(NoiseEnv):
        def step(self, action: Any) -> Any:
            observation, _, *others = super().step(action)
            return observation, 1e30, *others

    env = VecNormalize(DummyVecEnv([partial(Pays, BOX)] * N_ENVS))
    model = model_for(env, fast=fast)
    with pytest.warns(UserWarning, match=r"The reward of environment 0 at step 0 is 1e\+30") as warned:
        model.learn(3 * N_STEPS * N_ENVS)
    assert len(warned) == 1
    assert state(model).isfinite().all()


def test_the_model_is_as_good_as_before(tmp_path: Path) -> None:
    model = model_for(VecNormalize(faulty_envs(Fault("reward", NAN))))
    with pytest.raises(NonFiniteError):
        model.learn(1000)
    model.save(tmp_path / "model")
    loaded = PPOClip.load(tmp_path / "model", device="cpu")
    assert th.equal(state(loaded), state(model))
    # The environment's fault occurs only once.
    model.learn(100, reset_num_timesteps=False)
    assert state(model).isfinite().all()


def test_an_interrupted_update_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    good = model_for(faulty_envs(None), fast=False).learn(UPDATES * N_STEPS * N_ENVS)
    step = TorchDescent.step
    steps: list[None] = []

    def interrupted(descent: TorchDescent) -> None:
        if bad._n_updates == good._n_updates:
            steps.append(step(descent))
            if len(steps) == 3:
                raise KeyboardInterrupt
        else:
            step(descent)

    bad = model_for(faulty_envs(None), fast=False)
    monkeypatch.setattr(TorchDescent, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bad.learn(1000)
    assert th.equal(state(bad), state(good)) and bad._n_updates == good._n_updates


@pytest.mark.parametrize("fast", [False, True])
def test_so_is_one_interrupted_at_its_end(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    model = model_for(faulty_envs(None), fast=fast).learn(N_STEPS * N_ENVS)
    before, n_updates = state(model), model._n_updates
    what = "arrays.gaussian.DiagGaussian.kl_from" if fast else "rollout_kl.RolloutKL.of_rollout"
    monkeypatch.setattr(f"sb3_ppo_variants.backends.{what}", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.learn(1000)
    assert th.equal(state(model), before) and model._n_updates == n_updates


def test_in_a_rollout_the_part_of_an_observation_is_named() -> None:
    class Spoils(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            self.locals["rollout_buffer"].observations["reward"][1, 0] = NAN

    space = spaces.Dict({"reward": VECTOR})
    model = PPOClip("MultiInputPolicy", faulty_envs(None, observation_space=space), n_steps=8, batch_size=8)
    with pytest.raises(NonFiniteError, match=r"the observation\['reward'\] of environment 0 at step"):
        model.learn(64, callback=Spoils())
