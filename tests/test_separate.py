"""Separate updates of policy and value."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.utils import LinearSchedule

from helpers import (
    ACTION_SPACES,
    BOX,
    IMAGE,
    KICK,
    NESTED,
    LogRecorder,
    collect,
    noise_envs,
)
from sb3_ppo_variants import ArgumentError, NonFiniteError, PPOClip, SeparateUpdates
from sb3_ppo_variants.engines.native.update import NativeUpdate
from sb3_ppo_variants.engines.reference import TorchUpdate
from sb3_ppo_variants.recipes import evaluate, recipe, train

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


@pytest.mark.parametrize("space", [*ACTION_SPACES.values(), KICK, NESTED], ids=lambda space: type(space).__name__)
def test_a_new_model_can_be_copied(space: spaces.Space) -> None:
    """PyTorch refuses to copy tensors with a graph, such as those of a distribution computed with gradients."""
    model = make(action_space=space)
    copied = deepcopy(model).policy.state_dict()
    th.testing.assert_close(copied, model.policy.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(("own", "expected"), [(None, float("inf")), (0.7, 0.7)])
def test_gradients_that_are_not_clipped(own: float | None, expected: float) -> None:
    model = make(updates=SeparateUpdates(value_max_grad_norm=own), max_grad_norm=None)
    assert [descent.max_grad_norm for descent in model._plan().descents] == [float("inf"), expected]


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
        return PPOClip(
            "CnnPolicy", env, n_steps=8, batch_size=16, updates=SeparateUpdates(), policy_kwargs=policy_kwargs
        )

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


def test_what_is_no_division_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"^updates='separate' is not allowed; allowed: SeparateUpdates"):
        make(updates="separate")


# The descent of each path, and its method that makes the steps, one by one or all at once.
STEPS: dict[str, tuple[Any, str]] = {
    "reference": (TorchUpdate, "step"),
    "natively": (NativeUpdate, "descend"),
}


@pytest.mark.parametrize("path", STEPS)
def test_an_update_interrupted_in_the_values_passes_is_taken_back(
    path: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path != "reference":
        request.getfixturevalue(path)
    descents, step = STEPS[path]
    model = make(fast=descents is not TorchUpdate).learn(60)
    before, n_updates = deepcopy(model.get_parameters()), model._n_updates
    made = getattr(descents, step)

    def interrupted(descent: Any, *loss: Any) -> Any:
        ended = made(descent, *loss)
        if not descent._descent.of_policy:
            raise KeyboardInterrupt
        return ended

    monkeypatch.setattr(descents, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.learn(60, reset_num_timesteps=False)
    th.testing.assert_close(model.get_parameters(), before, rtol=0, atol=0)
    assert model._n_updates == n_updates


@paths
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_numbers_that_are_not_finite_are_named(fast: bool) -> None:
    model = make(fast=fast).learn(60)
    before = deepcopy(model.get_parameters())
    model.rollout_buffer.returns[3] = 1e25
    with pytest.raises(NonFiniteError, match="the value loss of minibatch 0 is not finite: inf"):
        model.train()
    th.testing.assert_close(model.get_parameters(), before, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "bar"), [("CartPole-v1", 475), ("Pendulum-v1", -250)])
@pytest.mark.parametrize("seed", range(3))
def test_it_learns(env_id: str, bar: float, seed: int, tmp_path: Path) -> None:
    made = recipe("ppo_clip", env_id, updates={"value_learning_rate": 1e-3})
    train(made, tmp_path, seed=seed)
    assert evaluate(made, tmp_path, episodes=50).mean() >= bar
