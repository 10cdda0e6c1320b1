"""The adaptation of beta, on sequences worked out by hand and in a real run."""

from copy import deepcopy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy

from helpers import BOX, LogRecorder, noise_envs, save
from sb3_ppo_variants import PPOAdaptiveKL
from sb3_ppo_variants.objectives.surrogates import adapt_kl_coef


def test_rule_by_hand() -> None:
    # d_targ = 0.03: beta is halved below 0.02 and doubled above 0.045.
    divergences = [0.019, 0.021, 0.044, 0.046, 0.5, 0.0, 0.03]
    betas = [1.0]
    for kl in divergences:
        betas.append(adapt_kl_coef(betas[-1], kl, desired_kl=0.03))
    assert betas == [1.0, 0.5, 0.5, 0.5, 1.0, 2.0, 1.0, 1.0]


@pytest.mark.parametrize(("kl", "bound"), [(0.0, 1e-6), (1.0, 1e6)])
def test_beta_stays_within_its_bounds(kl: float, bound: float) -> None:
    beta = 1.0
    for _ in range(2000):
        beta = adapt_kl_coef(beta, kl, desired_kl=0.01)
    assert beta == bound


class PolicyKeeper(LogRecorder):
    """Records the policy and the observations of every rollout, too."""

    def __init__(self) -> None:
        super().__init__()
        self.policies: list[Any] = []
        self.observations: list[np.ndarray] = []

    def _on_rollout_end(self) -> None:
        self.policies.append(deepcopy(self.model.policy))
        self.observations.append(self.locals["rollout_buffer"].observations.reshape(-1, 3).copy())

    def _on_training_end(self) -> None:
        super()._on_training_end()
        self.policies.append(deepcopy(self.model.policy))


def gaussian_kl(old: ActorCriticPolicy, new: ActorCriticPolicy, observations: np.ndarray) -> float:
    """Compute KL(old || new) in NumPy from the means and log standard deviations."""

    def mean_and_std(policy: ActorCriticPolicy) -> tuple[np.ndarray, np.ndarray]:
        with th.no_grad():
            mean = policy.action_net(policy.mlp_extractor.forward_actor(th.as_tensor(observations)))
        return mean.double().numpy(), policy.log_std.exp().detach().double().numpy()

    (m0, s0), (m1, s1) = mean_and_std(old), mean_and_std(new)
    return float((np.log(s1 / s0) + (s0**2 + (m0 - m1) ** 2) / (2 * s1**2) - 0.5).sum(axis=1).mean())


def test_a_real_run_obeys_the_rule() -> None:
    keeper = PolicyKeeper()
    model = PPOAdaptiveKL(
        "MlpPolicy",
        noise_envs(BOX),
        learning_rate=1e-3,
        n_steps=64,
        batch_size=32,
        seed=2,
        desired_kl=0.01,
        kl_coef=0.1,
        device="cpu",
    ).learn(64 * 2 * 30, callback=keeper)

    betas = [log["train/kl_coef"] for log in keeper.updates] + [model.kl_coef]
    divergences = [log["train/kl"] for log in keeper.updates]
    assert len(divergences) == 30
    assert betas[0] == 0.1
    for i, kl in enumerate(divergences):
        old, new = keeper.policies[i], keeper.policies[i + 1]
        assert kl == pytest.approx(gaussian_kl(old, new, keeper.observations[i]), rel=1e-3, abs=1e-7)
        factor = 0.5 if kl < 0.01 / 1.5 else 2.0 if kl > 0.01 * 1.5 else 1.0
        assert betas[i + 1] == betas[i] * factor
    # All three cases of the rule have occurred.
    assert {after / before for before, after in pairwise(betas)} == {0.5, 1.0, 2.0}


def adapted(kl_coef: float) -> Any:
    """Return a model whose beta has been halved once, because its policy hardly moves."""
    settings: dict[str, Any] = {"learning_rate": 1e-9, "n_steps": 16, "batch_size": 16, "n_epochs": 1, "device": "cpu"}
    model = PPOAdaptiveKL("MlpPolicy", noise_envs(BOX), kl_coef=kl_coef, **settings).learn(32)
    assert model.kl_coef == kl_coef / 2
    return model


def test_the_adaptation_begins_anew_when_kl_coef_is_set() -> None:
    model = adapted(4.0)
    model.kl_coef = 50.0
    assert model.kl_coef == 50.0
    model.learn(32)
    assert model.kl_coef == 25.0


@pytest.mark.parametrize("how", [{"kl_coef": 50.0}, {"custom_objects": {"kl_coef": 50.0}}], ids=["argument", "object"])
@pytest.mark.parametrize("weights_only", [False, True])
def test_the_adaptation_begins_anew_when_a_file_is_loaded_with_another_kl_coef(how: Any, weights_only: bool) -> None:
    file = save(adapted(4.0))
    assert PPOAdaptiveKL.load(file, weights_only=weights_only).kl_coef == 2.0
    model = PPOAdaptiveKL.load(file, env=noise_envs(BOX), weights_only=weights_only, **how)
    assert model.kl_coef == 50.0
    assert model.learn(32).kl_coef == 25.0
