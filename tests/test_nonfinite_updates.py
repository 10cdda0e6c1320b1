"""A number that is not finite in an update stops it, and the policy keeps the last good update."""

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from faulty import BOX, INF, N_ENVS, N_STEPS, NAN, UPDATES, WITHIN, Fault, faulty_envs, model_for, state, stopped
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from helpers import NoiseEnv, Passive, small
from sb3_ppo_variants import NonFiniteError, PPOAdaptiveKL, PPOClip


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


@pytest.mark.sampled(4)
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

    class Overflows(Passive):
        def _on_rollout_end(self) -> None:
            if self.num_timesteps > UPDATES * N_STEPS * N_ENVS:
                self.locals["rollout_buffer"].advantages[3, 1] = INF

    error = stopped(partial(faulty_envs, **env_arguments), Fault("", 0.0), callback=Overflows(), **arguments)
    assert (error.quantity, error.env_index, error.step) == ("advantage", 1, (UPDATES * N_STEPS + 3) * N_ENVS)


class SpoilsGradient(Passive):
    """Sets a gradient to NaN in the third update, at a minibatch other than the first."""

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


class Tiny(NoiseEnv):
    """Noise whose features and rewards underflow where they are multiplied. It fails if NumPy ignores errors."""

    def step(self, action: Any) -> Any:
        assert set(np.geterr().values()) == {"raise"}
        observation, reward, *others = super().step(action)
        return observation, reward * float(self.observation_space.high[0]), *others  # type: ignore[attr-defined]


@pytest.mark.parametrize("scale", [1e-17, 1e-30, 1e-42, 1e12])
@pytest.mark.parametrize("arguments", [{"fast": True}, {"fast": False}, {"normalize_advantage": "rollout"}], ids=str)
def test_only_users_have_numpys_errors_raised(arguments: dict[str, Any], scale: float) -> None:
    observed = spaces.Box(-scale, scale, (3,), np.float64 if scale == 1e-42 else np.float32)
    model = small(env=DummyVecEnv([lambda: Tiny(BOX, observed)] * 2), **arguments)
    with np.errstate(all="raise"):
        model.learn(64)
        assert set(np.geterr().values()) == {"raise"}
