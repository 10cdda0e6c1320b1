"""Separate updates of policy and value."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.utils import LinearSchedule

from helpers import BOX, IMAGE, LogRecorder, collect, noise_envs, small
from sb3_ppo_variants import ArgumentError, PPOClip, SeparateUpdates

N_STEPS, N_ENVS = 20, 3
paths = pytest.mark.parametrize("fast", [False, True])
Double = Callable[[Any], None]


def make(cls: Any = PPOClip, action_space: spaces.Space = BOX, updates: Any = None, **arguments: Any) -> Any:
    updates = SeparateUpdates(policy_epochs=4, value_epochs=6, value_learning_rate=2e-3) if updates is None else updates
    arguments = {"n_steps": N_STEPS, "batch_size": N_STEPS * N_ENVS, "learning_rate": 3e-3, **arguments}
    return cls("MlpPolicy", noise_envs(action_space, n_envs=N_ENVS), seed=1, device="cpu", updates=updates, **arguments)


def collected(*args: Any, **arguments: Any) -> Any:
    """Return a model with a full rollout buffer from the reference path."""
    return collect(make(*args, **arguments, fast=False))


def spinning_up(model: Any, eps: float, target_kl: float) -> tuple[Any, int]:
    """Make the update of https://spinningup.openai.com's ppo.py, and return the policy and the number of its steps.

    It follows SB3 in two details: the KL estimator that ends the steps of the policy, and clipping gradients.
    """
    policy, buffer = deepcopy(model.policy), model.rollout_buffer
    critic = {*policy.mlp_extractor.value_net.parameters(), *policy.value_net.parameters()}
    actor = [parameter for parameter in policy.parameters() if parameter not in critic]
    pi_optimizer = th.optim.Adam(actor, lr=3e-3, eps=1e-5)
    vf_optimizer = th.optim.Adam(list(critic), lr=2e-3, eps=1e-5)
    data = next(deepcopy(buffer).get(None))
    advantages = (data.advantages - data.advantages.mean()) / (data.advantages.std() + 1e-8)
    steps = 0
    for _ in range(4):
        _, log_prob, _ = policy.evaluate_actions(data.observations, data.actions)
        log_ratio = log_prob - data.old_log_prob
        ratio = log_ratio.exp()
        loss = -th.min(ratio * advantages, th.clamp(ratio, 1 - eps, 1 + eps) * advantages).mean()
        if (ratio - 1 - log_ratio).mean() > 1.5 * target_kl:
            break
        pi_optimizer.zero_grad()
        loss.backward()
        th.nn.utils.clip_grad_norm_(actor, 0.3)
        pi_optimizer.step()
        steps += 1
    for _ in range(6):
        loss = ((policy.predict_values(data.observations).flatten() - data.returns) ** 2).mean()
        vf_optimizer.zero_grad()
        loss.backward()
        th.nn.utils.clip_grad_norm_(list(critic), 0.7)
        vf_optimizer.step()
    return policy, steps


@paths
@pytest.mark.parametrize("target_kl", [1e-4, 1.0])
def test_an_update_is_spinning_ups(target_kl: float, fast: bool, double_precision: Double) -> None:
    updates = SeparateUpdates(policy_epochs=4, value_epochs=6, value_learning_rate=2e-3, value_max_grad_norm=0.7)
    model = collected(PPOClip, BOX, updates, vf_coef=1.0, max_grad_norm=0.3, target_kl=target_kl)
    before = deepcopy(list(model.policy.parameters()))
    double_precision(model)
    expected, steps = spinning_up(model, 0.2, target_kl)
    assert (steps < 4) == (target_kl < 1)
    model.fast = fast
    model.train()
    for got, wanted, old in zip(model.policy.parameters(), expected.parameters(), before, strict=True):
        th.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-9)
        assert not th.equal(got.float(), old)
    logged = model.logger.name_to_value
    # The pass that target_kl ended early counts as well.
    assert logged["train/policy_epochs"] == min(steps + 1, 4) and logged["train/value_epochs"] == 6
    assert model._n_updates == min(steps + 1, 4)


@paths
def test_logs(fast: bool) -> None:
    log = LogRecorder()
    schedule = LinearSchedule(1e-2, 0.0, 1.0)
    updates = SeparateUpdates(value_epochs=2, value_learning_rate=schedule)
    make(updates=updates, n_epochs=3, fast=fast).learn(240, callback=log)
    rates = [update["train/value_learning_rate"] for update in log.updates]
    assert rates == pytest.approx([7.5e-3, 5e-3, 2.5e-3, 0.0])
    joint = LogRecorder()
    PPOClip("MlpPolicy", noise_envs(BOX), n_steps=32, n_epochs=1).learn(64, callback=joint)
    own = {"train/policy_epochs", "train/value_epochs", "train/value_learning_rate"}
    last = log.updates[-1]
    assert last.keys() == joint.updates[-1].keys() | own
    assert (last["train/policy_epochs"], last["train/value_epochs"]) == (3, 2)


def test_networks_with_common_parameters_are_refused() -> None:
    def cnn(**policy_kwargs: Any) -> Any:
        env = noise_envs(BOX, IMAGE)
        return small(env=env, policy="CnnPolicy", updates=SeparateUpdates(), policy_kwargs=policy_kwargs)

    with pytest.raises(ArgumentError, match=r"features_extractor\.cnn\.0\.bias and 7 more belong to both.*share_feat"):
        cnn()
    model = cnn(share_features_extractor=False)
    before = deepcopy(model.policy.state_dict())
    model.learn(16)
    assert all(not th.equal(before[name], weight) for name, weight in model.policy.state_dict().items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy_epochs": 0}, r"^policy_epochs=0 is not allowed; allowed: an integer >= 1, or None"),
        ({"value_epochs": 1.5}, r"^value_epochs=1.5 is not allowed"),
        ({"value_learning_rate": -1}, r"^value_learning_rate=-1 is not allowed; allowed: a finite number >= 0"),
        ({"value_max_grad_norm": float("nan")}, r"^value_max_grad_norm=nan is not allowed"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        SeparateUpdates(**arguments)


def test_a_dict_of_arguments() -> None:
    assert make(updates={"value_epochs": 3}).updates == SeparateUpdates(value_epochs=3)
    with pytest.raises(ArgumentError, match=r"^updates has no entry 'epochs': SeparateUpdates takes policy_epochs"):
        make(updates={"epochs": 3})
    with pytest.raises(ArgumentError, match=r"^value_epochs=0 is not allowed"):
        make(updates={"value_epochs": 0})
