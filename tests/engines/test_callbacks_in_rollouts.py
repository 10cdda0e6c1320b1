"""Callbacks find the same and may change the same on all paths, before and during rollouts."""

import warnings
from collections.abc import Callable
from copy import deepcopy
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch as th
from engine_models import rolled_out
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from helpers import ACTION_SPACES, BOX, Passive, flat_weights, noise_envs, small
from sb3_ppo_variants import ArgumentError, PPOClip
from sb3_ppo_variants.engines.choice import choose

pytestmark = [pytest.mark.usefixtures("natively"), pytest.mark.filterwarnings("ignore:no optimizer has the policy's")]
N_STEPS, CHANGED = 8, 3


def in_place(model: Any) -> None:
    for parameter in model.policy.parameters():
        parameter.data.mul_(2)


def other_tensors(model: Any) -> None:
    parameters = [*model.policy.parameters()]
    vector_to_parameters(2 * parameters_to_vector(parameters), parameters)


def sent_away(model: Any) -> None:
    """Do what sending the policy to another process does: PyTorch moves its parameters into shared memory."""
    ForkingPickler.dumps(model.policy.state_dict())


def other_parameter(model: Any) -> None:
    model.policy.value_net.weight = nn.Parameter(2 * model.policy.value_net.weight.data)


def other_policy(model: Any) -> None:
    with th.no_grad():  # Noise that requires gradients cannot be deep-copied.
        model.policy.reset_noise(2) if model.use_sde else None
    model.policy = deepcopy(model.policy)
    model.policy.value_net.bias.data += 100


def smaller(model: Any) -> None:
    model.policy.mlp_extractor.value_net[0].weight.data = th.ones(2, 3)


def narrower(model: Any) -> None:
    model.policy.action_net.weight.data = model.policy.action_net.weight.data[:, :32]


def other_type(model: Any) -> None:
    model.policy.double()


class Changing(BaseCallback):
    """Changes the model after one of the steps of the first rollout, and evaluates its policy at the rollout's end."""

    def __init__(self, change: Callable[[Any], None]):
        super().__init__()
        self.change = change

    def _on_step(self) -> bool:
        if self.n_calls == CHANGED:
            self.change(self.model)
        return True

    def _on_rollout_end(self) -> None:
        model: Any = self.model
        observations = th.as_tensor(model.rollout_buffer.observations).flatten(0, 1)
        with th.no_grad():
            values = model.policy.predict_values(observations).reshape(N_STEPS, -1)
        self.found, self.wanted = model.rollout_buffer.values.copy(), values.numpy()


class ChangingBefore(Changing):
    """Changes the model before the rollout instead."""

    def _on_rollout_start(self) -> None:
        self.change(self.model)

    def _on_step(self) -> bool:
        return True


def learnt(change: Callable[[Any], None], fast: Any) -> th.Tensor | type[Exception]:
    """Return the weights after two rollouts and updates, of which a callback has changed the first, or the error.

    With gSDE, both paths draw the same actions.
    """
    arguments: dict[str, Any] = {"n_steps": N_STEPS, "batch_size": 16, "seed": 0, "device": "cpu", "use_sde": True}
    model = PPOClip("MlpPolicy", noise_envs(BOX), fast=fast, **arguments)
    try:
        model.learn(4 * N_STEPS, callback=Changing(change))
    except (RuntimeError, ValueError) as error:
        return type(error)
    return flat_weights(model)


LEARNING = [in_place, other_tensors, sent_away, other_parameter, other_policy]
FAILING = [smaller, narrower, other_type]


@pytest.mark.parametrize("change", [*LEARNING, *FAILING])
def test_a_change_during_a_rollout_ends_as_on_the_reference_path(change: Callable[[Any], None]) -> None:
    """Nothing reads memory that is no longer that of a tensor, whatever its new size."""
    found, wanted = learnt(change, "auto"), learnt(change, False)
    assert isinstance(wanted, th.Tensor) == (change in LEARNING)
    if isinstance(wanted, th.Tensor):
        th.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    else:
        assert found is wanted


def test_pytorch_does_not_free_the_memory_that_the_library_reads() -> None:
    def reallocate(model: Any) -> None:
        model.policy.value_net.weight.data.resize_(4096, 64)

    with pytest.raises(RuntimeError, match="storage that is not resizable"):
        small(fast=True).learn(32, callback=Changing(reallocate))


@pytest.mark.parametrize("change", LEARNING)
@pytest.mark.parametrize("use_sde", [False, True])
def test_the_next_step_uses_the_changed_policy(change: Callable[[Any], None], use_sde: bool) -> None:
    model = PPOClip("MlpPolicy", noise_envs(BOX), n_steps=N_STEPS, batch_size=16, seed=0, device="cpu", use_sde=use_sde)
    callback = Changing(change)
    model.learn(2 * N_STEPS, callback=callback)
    np.testing.assert_allclose(callback.found[CHANGED:], callback.wanted[CHANGED:], rtol=1e-5, atol=1e-6)
    assert np.allclose(callback.found, callback.wanted, atol=1e-4) == (change is sent_away)


def other_activation(model: Any) -> None:
    model.policy.mlp_extractor.policy_net[1] = model.policy.mlp_extractor.value_net[1] = nn.GELU()


def hooked(model: Any) -> None:
    model.policy.value_net.register_forward_hook(lambda module, inputs, output: output + 3)


@pytest.mark.parametrize("fast", ["auto", False])
@pytest.mark.parametrize("change", [other_activation, hooked, other_policy])
def test_a_rollout_uses_the_policy_that_was_changed_before_it(change: Callable[[Any], None], fast: Any) -> None:
    model = PPOClip("MlpPolicy", noise_envs(BOX), n_steps=N_STEPS, batch_size=16, seed=0, device="cpu", fast=fast)
    callback = ChangingBefore(change)
    model.learn(2 * N_STEPS, callback=callback)
    np.testing.assert_allclose(callback.found, callback.wanted, rtol=1e-5, atol=1e-6)


def test_a_change_that_is_not_supported_is_refused_before_the_first_step() -> None:
    model = small(fast=True)
    with pytest.raises(ArgumentError, match="fast=True is not possible, because the activation is GELU"):
        model.learn(32, callback=ChangingBefore(other_activation))
    assert model.num_timesteps == 0


class Annealing(BaseCallback):
    """Reduces the logarithm of the standard deviation after every step."""

    def _on_step(self) -> bool:
        policy: Any = self.model.policy
        policy.log_std.data.sub_(0.1)
        return True


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
    model.fast = True
    with pytest.raises(ArgumentError, match="because the standard deviation changed during the rollout"):
        model.learn(2 * N_STEPS, callback=Annealing())
    before = model._n_updates
    model.learn(2 * N_STEPS)  # It does not refuse the next rollout.
    assert model._n_updates == before + 1


class Calls(BaseCallback):
    """Calls a function with the model and the locals of each step."""

    def __init__(self, function: Callable[[Any, dict[str, Any], int], object]):
        super().__init__()
        self.function = function

    def _on_step(self) -> bool:
        return self.function(self.model, self.locals, self.n_calls) is not False


def reset_noise(model: Any, _: object, n_calls: int) -> None:
    if n_calls == 5:
        model.policy.reset_noise(3)


def change_frequency(model: Any, *_: object) -> None:
    model.sde_sample_freq = 2


@pytest.mark.parametrize("change", [reset_noise, change_frequency])
def test_noise_that_a_callback_changes_takes_effect(change: Any) -> None:
    acted = [
        rolled_out(noise_envs(BOX, n_envs=3), Calls(change), fast=fast, use_sde=True).rollout_buffer.actions
        for fast in (False, True)
    ]
    np.testing.assert_allclose(acted[1], acted[0], rtol=1e-4, atol=1e-5)


def test_rewards_that_a_callback_changes_are_stored() -> None:
    def double(_: object, found: dict[str, Any], __: int) -> None:
        found["rewards"] *= 2

    plain, doubled = (rolled_out(noise_envs(BOX), c, fast=True).rollout_buffer.rewards for c in (None, Calls(double)))
    alone = np.arange(len(plain)) % 7 != 6  # At other steps, the reward includes the value of the last state.
    np.testing.assert_allclose(doubled[alone], 2 * plain[alone])


@pytest.mark.parametrize(("cls", "arguments"), [(PPO, {}), (PPOClip, {"fast": False}), (PPOClip, {"fast": True})])
def test_observations_that_a_callback_replaces_are_stored(cls: Any, arguments: dict[str, Any]) -> None:
    def replace(model: Any, _: object, n_calls: int) -> None:
        model._last_obs = np.full_like(model._last_obs, n_calls)

    model = cls("MlpPolicy", noise_envs(BOX), n_steps=4, batch_size=4, n_epochs=1, **arguments)
    model.learn(8, Calls(replace))
    # The paths store the rows in different orders.
    stored = np.sort(model.rollout_buffer.observations.reshape(8, 3), axis=0)
    assert stored.tolist() == [[n] * 3 for n in (1, 1, 2, 2, 3, 3, 4, 4)]


@pytest.mark.parametrize("fast", [False, True])
def test_a_callback_ends_training(fast: bool) -> None:
    model = small(fast=fast)
    model.learn(1000, Calls(lambda _, __, n_calls: n_calls < 3))
    assert model.num_timesteps == 6 and model._n_updates == 0


@pytest.mark.parametrize("name", ACTION_SPACES)
def test_callbacks_find_the_same_names(name: str) -> None:
    seen = []
    for fast in (False, True):
        kinds: list[dict[str, Any]] = []

        def keep(_: object, found: dict[str, Any], __: int, kinds: list[dict[str, Any]] = kinds) -> None:
            named = {key: value for key, value in found.items() if key != "self"}
            kinds.append({
                key: (type(value), getattr(value, "shape", None), getattr(value, "dtype", None))
                for key, value in named.items()
            })  # fmt: skip

        rolled_out(noise_envs(ACTION_SPACES[name], n_envs=3), Calls(keep), fast=fast)
        seen.append(kinds)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("fast", [False, True])
def test_callbacks_find_no_distribution_of_another_state(fast: bool) -> None:
    """A distribution that the policy keeps has the log-probabilities of the step."""
    errors: list[float] = []

    def compare(model: Any, found: dict[str, Any], _: int) -> None:
        policy = model.policy
        observations, actions, expected = (th.as_tensor(found[key]) for key in ("obs_tensor", "actions", "log_probs"))
        kept = [policy.action_dist] if hasattr(policy.action_dist, "distribution") else []
        for each in (*kept, policy.get_distribution(observations)):
            errors.append((each.log_prob(actions) - expected).abs().max().item())
        vars(policy.action_dist).pop("distribution")

    rolled_out(noise_envs(BOX), Calls(compare), fast=fast)
    assert len(errors) == 40 * (1 if fast else 2) and max(errors) < 1e-5


class Rewards(Passive):
    """Changes rewards when the rollout is complete."""

    def __init__(self, factor: float, computes: bool):
        super().__init__()
        self.factor, self.computes = factor, computes

    def _on_rollout_end(self) -> None:
        buffer: Any = self.locals["rollout_buffer"]
        buffer.rewards = self.factor * buffer.rewards
        if self.computes:
            buffer.compute_returns_and_advantage(self.locals["values"], self.locals["dones"])


@pytest.mark.parametrize("fast", [False, True])
def test_rewards_that_change_too_late_are_noticed(fast: bool) -> None:
    model = small(PPOClip, noise_envs(BOX), fast=fast)
    with pytest.warns(UserWarning, match="a callback changed the rewards after the rollout") as caught:
        model.learn(32, Rewards(0.0, computes=False))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(32, [Rewards(0.0, computes=True), Rewards(1.0, computes=False)])
