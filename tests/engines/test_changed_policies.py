"""Callbacks may change the policy before a rollout, and on the fast paths change or move its parameters during one."""

from collections.abc import Callable
from copy import deepcopy
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from helpers import BOX, noise_envs
from sb3_ppo_variants import ArgumentError, PPOClip
from sb3_ppo_variants.engines.choice import choose

N_STEPS, CHANGED = 8, 3


def in_place(policy: Any) -> None:
    for parameter in policy.parameters():
        parameter.data.mul_(2)


def replaced(policy: Any) -> None:
    vector_to_parameters(2 * parameters_to_vector(policy.parameters()), policy.parameters())


def sent_away(policy: Any) -> None:
    """Do what sending the policy to another process does: PyTorch moves its parameters into shared memory."""
    ForkingPickler.dumps(policy.state_dict())


class Changing(BaseCallback):
    """Changes the policy after one of the steps of the first rollout, and evaluates it at the end of the rollout."""

    def __init__(self, change: Callable[[Any], None]):
        super().__init__()
        self.change = change

    def _on_step(self) -> bool:
        if self.n_calls == CHANGED:
            self.change(self.model.policy)
        return True

    def _on_rollout_end(self) -> None:
        model: Any = self.model
        buffer, policy = model.rollout_buffer, model.policy
        observations = th.as_tensor(buffer.observations).flatten(0, 1)
        with th.no_grad():
            values = policy.predict_values(observations).reshape(N_STEPS, -1)
        self.found, self.wanted = buffer.values.copy(), values.numpy()


@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize("change", [in_place, replaced, sent_away])
@pytest.mark.parametrize("use_sde", [False, True])
def test_the_next_step_uses_the_changed_policy(change: Callable[[Any], None], use_sde: bool) -> None:
    arguments: dict[str, Any] = {"n_steps": N_STEPS, "batch_size": 16, "seed": 0, "device": "cpu", "fast": True}
    model = PPOClip("MlpPolicy", noise_envs(BOX), use_sde=use_sde, **arguments)
    callback = Changing(change)
    if change is not sent_away:
        model.fast = "auto"  # The standard deviation changes too, so the update takes the reference path.
    model.learn(2 * N_STEPS, callback=callback)
    np.testing.assert_allclose(callback.found[CHANGED:], callback.wanted[CHANGED:], rtol=1e-5, atol=1e-6)
    assert np.allclose(callback.found, callback.wanted, atol=1e-4) == (change is sent_away)


def other_activation(model: Any) -> None:
    model.policy.mlp_extractor.policy_net[1] = model.policy.mlp_extractor.value_net[1] = nn.GELU()


def hooked(model: Any) -> None:
    model.policy.value_net.register_forward_hook(lambda module, inputs, output: output + 3)


def other_policy(model: Any) -> None:
    model.policy = deepcopy(model.policy)
    model.policy.value_net.bias.data += 100


class ChangingBefore(Changing):
    """Calls the function with the model before the rollout instead."""

    def _on_rollout_start(self) -> None:
        self.change(self.model)

    def _on_step(self) -> bool:
        return True


@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize("fast", ["auto", False])
@pytest.mark.parametrize("change", [other_activation, hooked, other_policy])
def test_a_rollout_uses_the_policy_that_was_changed_before_it(change: Callable[[Any], None], fast: Any) -> None:
    model = PPOClip("MlpPolicy", noise_envs(BOX), n_steps=N_STEPS, batch_size=16, seed=0, device="cpu", fast=fast)
    callback = ChangingBefore(change)
    model.learn(2 * N_STEPS, callback=callback)
    np.testing.assert_allclose(callback.found, callback.wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("natively")
def test_a_change_that_is_not_supported_is_refused_before_the_first_step() -> None:
    model = PPOClip("MlpPolicy", noise_envs(BOX), n_steps=N_STEPS, batch_size=16, device="cpu", fast=True)
    with pytest.raises(ArgumentError, match="fast=True is not possible, because the activation is GELU"):
        model.learn(2 * N_STEPS, callback=ChangingBefore(other_activation))
    assert model.num_timesteps == 0


class OtherType(BaseCallback):
    def _on_step(self) -> bool:
        self.model.policy.double()
        return True


@pytest.mark.usefixtures("natively")
def test_another_type_is_refused_as_by_sb3() -> None:
    for cls in (PPO, PPOClip):
        model = cls("MlpPolicy", noise_envs(BOX), n_steps=8, batch_size=16, device="cpu")
        with pytest.raises(RuntimeError, match="mat1 and mat2 must have the same dtype, but got Float and Double"):
            model.learn(16, callback=OtherType())


class Annealing(BaseCallback):
    """Reduces the logarithm of the standard deviation after every step."""

    def _on_step(self) -> bool:
        policy: Any = self.model.policy
        policy.log_std.data.sub_(0.1)
        return True


@pytest.mark.usefixtures("natively")
def test_the_kl_sees_the_standard_deviation_of_each_step() -> None:
    # Without a learning rate, only the callback changes the policy.
    arguments: dict[str, Any] = {"n_steps": N_STEPS, "batch_size": 16, "n_epochs": 1, "learning_rate": 0.0}
    model: Any = PPOClip("MlpPolicy", noise_envs(BOX), **arguments, device="cpu")
    model.learn(2 * N_STEPS, callback=Annealing())
    of_steps, now = np.exp(-0.1 * np.arange(N_STEPS)), np.exp(-0.1 * N_STEPS)
    for deviations in model.old_policy.parameters[1].reshape(2, N_STEPS, 2).permute(0, 2, 1).flatten(0, 1):
        np.testing.assert_allclose(deviations, of_steps, rtol=1e-5)
    # The KL between two normal distributions with the same mean, in each of the two dimensions.
    kl = 2 * (np.log(now / of_steps) + of_steps**2 / (2 * now**2) - 0.5)
    assert model.logger.name_to_value["train/kl"] == pytest.approx(kl.mean(), rel=1e-4)
    assert choose(model._plan(), "auto").why == "the standard deviation changed during the rollout"


@pytest.mark.usefixtures("natively")
def test_a_standard_deviation_that_changed_does_not_refuse_the_next_rollout() -> None:
    model = PPOClip("MlpPolicy", noise_envs(BOX), n_steps=N_STEPS, batch_size=16, device="cpu", fast=True)
    with pytest.raises(ArgumentError, match="because the standard deviation changed during the rollout"):
        model.learn(2 * N_STEPS, callback=Annealing())
    model.learn(2 * N_STEPS)
    assert model._n_updates == model.n_epochs


class Bounded(BaseCallback):
    """Checks that actions are clipped to their bounds."""

    def _on_step(self) -> bool:
        actions, space = self.locals["actions"], self.training_env.action_space
        assert isinstance(space, spaces.Box)
        np.testing.assert_array_equal(self.locals["clipped_actions"], np.clip(actions, space.low, space.high))
        return True


@pytest.mark.usefixtures("natively")
def test_bounds_in_any_memory_layout() -> None:
    low = np.array([[-0.1, -0.2, -0.3], [-0.4, -0.5, -0.6]], np.float32)
    space = spaces.Box(np.asfortranarray(low), -low)
    assert not space.low.flags.c_contiguous
    model = PPOClip("MlpPolicy", noise_envs(space), n_steps=8, batch_size=16, seed=0, device="cpu", fast=True)
    model.learn(16, callback=Bounded())


@pytest.mark.usefixtures("natively")
def test_observations_with_the_shape_of_their_features() -> None:
    env = noise_envs(BOX, spaces.MultiDiscrete([1, 1]))
    model = PPOClip("MlpPolicy", env, n_steps=1, batch_size=2, device="cpu", fast=True, learning_rate=0.0)
    model.learn(2)
    observations, _ = model.policy.obs_to_tensor(np.zeros((2, 2), np.int64))
    with th.no_grad():
        values = model.policy.predict_values(observations)
    np.testing.assert_allclose(model.rollout_buffer.values[0], values[:, 0], rtol=1e-5)
