"""Rollout buffers with the distribution parameters of the old policy."""

import gc
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.type_aliases import RolloutBufferSamples

from helpers import ACTION_SPACES, BOX, PENALISED, VARIANTS, Passive, collect, noise_envs, small, with_old_parameters
from sb3_ppo_variants import ArgumentError, NonFiniteError, PPOClip
from sb3_ppo_variants.rollout import draw_minibatches

N_STEPS, N_ENVS = 5, 3


def numbered_buffer() -> Any:
    """Return a full buffer in which every observation, action and value is 10 * step + env."""
    spaces_of = spaces.Box(-1, 99, (1,)), ACTION_SPACES["Discrete"]
    buffer = RolloutBuffer(N_STEPS, *spaces_of, "cpu", n_envs=N_ENVS)
    for step in range(N_STEPS):
        number = 10.0 * step + np.arange(N_ENVS)
        column, tensor = number[:, None], th.as_tensor(number)
        buffer.add(column, column, number, np.zeros(N_ENVS), tensor, tensor)
    return buffer


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("is_read", [False, True])
def test_a_bad_reward_is_found_before_and_after_the_buffer_is_read(is_read: bool, n_envs: int) -> None:
    env = noise_envs(BOX, n_envs=n_envs)
    model: Any = PPOClip("MlpPolicy", env, n_steps=N_STEPS, batch_size=5, n_epochs=1, device="cpu")
    buffer = model.rollout_buffer
    collect(model)
    buffer.rewards[3, n_envs - 1] = np.nan
    if is_read:
        list(buffer.get(5))
    with pytest.raises(NonFiniteError) as raised:
        model.train()
    assert (raised.value.env_index, raised.value.step) == (n_envs - 1, 3 * n_envs)


def test_minibatches_come_with_their_rows() -> None:
    buffer = numbered_buffer()
    numbers = np.array([10.0 * step + env for env in range(N_ENVS) for step in range(N_STEPS)])
    seen: list[int] = []
    for samples, rows in draw_minibatches(buffer, 4):
        assert samples.observations.flatten().tolist() == numbers[rows].tolist()
        assert rows is not None
        seen.extend(rows)
    assert sorted(seen) == [*range(N_STEPS * N_ENVS)]


def test_a_rollout_has_the_parameters_it_was_drawn_from() -> None:
    model: Any = PPOClip("MlpPolicy", noise_envs(BOX), n_steps=8, batch_size=8, n_epochs=1, device="cpu")
    collect(model)
    for read, _, (mean, std) in with_old_parameters(model, 4):
        log_prob = th.distributions.Normal(mean, std).log_prob(read.actions).sum(dim=1)
        th.testing.assert_close(log_prob, read.old_log_prob, rtol=1e-4, atol=1e-5)
    assert model.old_policy.of(model.rollout_buffer) is not None
    model.rollout_buffer.reset()  # Another loop begins a rollout.
    assert model.old_policy.of(model.rollout_buffer) is None


class WholeBuffer(RolloutBuffer):
    """A user's buffer that creates its single minibatch itself."""

    def get(self, batch_size: int | None = None) -> Any:
        assert batch_size is not None
        arrays = (self.observations, self.actions, self.values, self.log_probs, self.advantages, self.returns)
        flat = [self.to_torch(self.swap_and_flatten(array)) for array in arrays]
        yield RolloutBufferSamples(flat[0], flat[1], *(tensor.flatten() for tensor in flat[2:]))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_buffer_that_hides_its_rows_serves_those_without_a_penalty(variant: Any) -> None:
    model = variant("MlpPolicy", noise_envs(BOX), n_steps=32, rollout_buffer_class=WholeBuffer)
    if variant in PENALISED:
        without = r"^rollout_buffer_class: this buffer does not tell which rows .* as in SB3$"
        with pytest.raises(ArgumentError, match=without):
            model.learn(64)
    else:
        logged = model.learn(64).logger.name_to_value
        assert logged["train/kl"] > 0


@pytest.mark.parametrize("fast", [False, "auto"])
@pytest.mark.parametrize("distribution", ["gaussian", "squashed_gaussian", "beta"])
def test_a_box_of_integers(distribution: str, fast: Any) -> None:
    """The actions that were drawn are stored with their fractions, so the ratio to the policy that drew them is 1.

    A bounded distribution has its bounds from the space, so environments and ``predict`` get elements of it.
    """
    space = spaces.Box(-2, 3, (2,), np.int64)
    env = noise_envs(space)
    arguments: dict[str, Any] = {"policy_kwargs": {"distribution": distribution}, "learning_rate": 0.0, "fast": fast}
    model = PPOClip("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, seed=1, device="cpu", **arguments)
    with patch.object(env, "step_async", wraps=env.step_async) as stepped:
        model.learn(32)
    taken = [action for call in stepped.call_args_list for action in call.args[0]]
    assert (model.rollout_buffer.actions % 1 > 0).all()
    if distribution != "gaussian":
        predicted = model.predict(np.ones((20, 3), np.float32))[0]
        assert len(taken) == 32 and all(space.contains(action) for action in [*taken, *predicted])
    assert model.logger.name_to_value["train/approx_kl"] == pytest.approx(0.0, abs=1e-6)


def test_a_rollout_keeps_no_tensors_of_each_step() -> None:
    """Many small tensors would pin the memory of the large ones that are freed between them."""

    class Counting(Passive):
        def _on_rollout_end(self) -> None:
            # A Gaussian has two of the shape of a step.
            self.small = sum(type(each) is th.Tensor and each.shape == (N_ENVS, 2) for each in gc.get_objects())

    counting = Counting()
    small(env=noise_envs(BOX, n_envs=N_ENVS), fast=False, n_steps=64).learn(64 * N_ENVS, callback=counting)
    assert counting.small < 64
