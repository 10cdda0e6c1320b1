"""What ends an update early: the statistics, where they end it, and on which paths."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th
from engine_models import assert_same_update, collected
from stable_baselines3.common.distributions import DiagGaussianDistribution

from helpers import ACTION_SPACES, BOX, assert_same_weights, noise_envs, update
from sb3_ppo_variants import ApproximateKL, EarlyStop, ExactKL, PPOClip, PPOUnclipped, RatioDeviation, SeparateUpdates
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.kl import MissingKLError

Double = Callable[[Any], None]
STOPS: dict[str, EarlyStop] = {
    "approximate": ApproximateKL(3e-3),
    "exact": ExactKL(3e-3),
    "ratio": RatioDeviation(0.05),
    "epochs": ApproximateKL(3e-3, ends="epoch"),
    "epochs by the exact KL": ExactKL(3e-3, ends="epoch"),
}


def plain_loop(model: Any, stop: EarlyStop) -> tuple[int, int]:
    """Update a model whose policy is Gaussian with PPO-Clip, and return the numbers of epochs and of steps."""
    policy, buffer, steps = model.policy, model.rollout_buffer, 0
    observations, actions = buffer.observations, buffer.actions
    with th.no_grad():
        old = policy.get_distribution(th.as_tensor(observations)).distribution
        old_mean, old_std = old.mean.clone(), old.stddev.clone()
    columns = [th.as_tensor(array).flatten() for array in (buffer.log_probs, buffer.advantages, buffer.returns)]
    for epoch in range(model.n_epochs):
        order = np.random.permutation(len(observations))
        for start in range(0, len(order), model.batch_size):
            rows = order[start : start + model.batch_size]
            old_log_prob, advantages, returns = (column[rows] for column in columns)
            values, log_prob, _ = policy.evaluate_actions(th.as_tensor(observations[rows]), th.as_tensor(actions[rows]))
            new = policy.get_distribution(th.as_tensor(observations[rows])).distribution
            log_ratio = log_prob - old_log_prob
            ratio = log_ratio.exp()
            std, shift = new.stddev, old_mean[rows] - new.mean
            kl = (std / old_std[rows]).log() + (old_std[rows] ** 2 + shift**2) / (2 * std**2) - 0.5
            statistic = {
                ApproximateKL: (ratio - 1 - log_ratio).mean(),
                ExactKL: kl.sum(dim=1).mean(),
                RatioDeviation: (ratio - 1).abs().mean(),
            }[type(stop)]
            if statistic.item() > stop.limit:
                if stop.ends == "update":
                    return epoch + 1, steps
                break
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            surrogate = th.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
            loss = -surrogate + model.vf_coef * ((values.flatten() - returns) ** 2).mean()
            policy.optimizer.zero_grad()
            loss.backward()
            th.nn.utils.clip_grad_norm_(policy.parameters(), model.max_grad_norm)
            policy.optimizer.step()
            steps += 1
    return model.n_epochs, steps


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", STOPS)
def test_an_update_is_that_of_a_plain_loop(name: str, fast: bool, double_precision: Double) -> None:
    model = collected(PPOClip, BOX, stop=STOPS[name], learning_rate=3e-3)
    double_precision(model)
    updated = update(model, fast)
    next(model.rollout_buffer.get())  # Flattens the columns into rows.
    np.random.seed(3)
    epochs, steps = plain_loop(model, STOPS[name])
    assert updated._n_updates == epochs
    assert 0 < steps < 40 and (STOPS[name].ends == "epoch" or epochs < model.n_epochs)
    th.testing.assert_close(updated.policy.state_dict(), model.policy.state_dict(), rtol=1e-5, atol=1e-9)


@pytest.mark.usefixtures("natively")
@pytest.mark.sampled(8)
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("space", ACTION_SPACES)
@pytest.mark.parametrize("name", STOPS)
def test_both_paths_stop_at_the_same_minibatch(
    name: str, space: str, separate: bool, double_precision: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    updates = SeparateUpdates(value_epochs=2) if separate else None
    model = collected(PPOClip, ACTION_SPACES[space], stop=STOPS[name], learning_rate=3e-3, updates=updates)
    double_precision(model)
    model.verbose = 1
    capsys.readouterr()
    assert_same_update(model)
    lines = [line for line in capsys.readouterr().out.splitlines() if "due to reaching" in line]
    assert len(lines) == 2 and lines[0] == lines[1]


@pytest.mark.parametrize("fast", [False, True])
def test_target_kl_is_a_limit_of_one_and_a_half_times_it(fast: bool) -> None:
    model = collected(PPOClip, BOX, target_kl=2e-3, learning_rate=3e-3)
    wanted = update(model, fast)
    model.target_kl, model.stop = None, ApproximateKL(3e-3)
    ours = update(model, fast)
    assert ours._n_updates == wanted._n_updates < model.n_epochs
    assert_same_weights(ours, wanted)


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (ApproximateKL(0.01), "Early stopping at step 0 due to reaching max kl: "),
        (ExactKL(0.01), "Early stopping at step 0 due to reaching max exact kl: "),
        (RatioDeviation(0.1), "Early stopping at step 0 due to reaching max ratio deviation: "),
        (ExactKL(0.01, ends="epoch"), "2 epochs ended early due to reaching max exact kl: "),
    ],
)
@pytest.mark.parametrize("fast", [False, True])
def test_the_message(stop: EarlyStop, message: str, fast: bool, capsys: pytest.CaptureFixture[str]) -> None:
    model = collected(PPOUnclipped, BOX, stop=stop, n_epochs=2)
    with th.no_grad():
        model.policy.action_net.bias += 1.0  # Exceeds all limits from the start.
    model.verbose = 1
    capsys.readouterr()
    update(model, fast)
    assert capsys.readouterr().out.startswith(message)


@pytest.mark.parametrize("stop", [3, "ExactKL(0.1)", ExactKL, 0.1, True])
def test_other_values_are_refused(stop: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^stop=.* is not allowed; allowed: ApproximateKL"):
        PPOClip("MlpPolicy", noise_envs(BOX), stop=stop)


@pytest.mark.parametrize("cls", [ApproximateKL, ExactKL, RatioDeviation])
@pytest.mark.parametrize(
    "arguments", [{"limit": -1.0}, {"limit": "1"}, {"limit": float("nan")}, {"limit": 1, "ends": "now"}]
)
def test_its_arguments_are_checked(cls: Any, arguments: dict[str, Any]) -> None:
    name = "ends" if "ends" in arguments else "limit"
    with pytest.raises(ArgumentError, match=rf"^{name}={arguments[name]!r} is not allowed"):
        cls(**arguments)


def test_both_are_refused_at_construction_and_later() -> None:
    with pytest.raises(ArgumentError, match=r"^stop=ExactKL\(.*\) and target_kl=0.1 both end updates early"):
        PPOClip("MlpPolicy", noise_envs(BOX), stop=ExactKL(0.1), target_kl=0.1)
    model = PPOClip("MlpPolicy", noise_envs(BOX), n_steps=32, stop=ExactKL(0.1))
    model.target_kl = 0.1
    with pytest.raises(ArgumentError, match="both end updates early"):
        model.learn(64)


def test_without_a_known_kl_the_exact_one_is_refused_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sb3_ppo_variants.kl._REGISTRY", {})
    with pytest.raises(MissingKLError, match=DiagGaussianDistribution.__name__):
        PPOClip("MlpPolicy", noise_envs(BOX), stop=ExactKL(0.1))
    PPOClip("MlpPolicy", noise_envs(BOX), stop=RatioDeviation(0.1), fast=False)
