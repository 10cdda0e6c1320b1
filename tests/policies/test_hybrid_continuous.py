"""How the continuous parts of Dict and Tuple actions are drawn: distributions against PyTorch's, and training."""

from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch.distributions import Beta, Categorical, Independent, Normal, kl_divergence

from helpers import FORCE, KICK, NoiseEnv, collect, noise_envs, save, small
from sb3_ppo_variants import ArgumentError, PPOAdaptiveKL, PPOClip, PPOFixedKL
from sb3_ppo_variants.distributions import Gaussian
from sb3_ppo_variants.kl import divergences_of

NAMES: dict[str, dict[str, Any]] = {
    "beta": {"distribution": "beta"},
    "squashed": {"distribution": "squashed_gaussian"},
    "state": {"std": "state"},
    "dict": {"distribution": {"force": Gaussian(std="state")}},
}
OBSERVATIONS = th.randn(6, 3, generator=th.Generator().manual_seed(1))


class Checked(NoiseEnv):
    """Refuses actions that are not in the space."""

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return super().step(action)


def envs() -> VecEnv:
    return DummyVecEnv([lambda: Monitor(Checked(KICK))] * 2)


def of_parts(policy: Any, name: str) -> tuple[Any, Any]:
    """Return PyTorch's distributions of the choice, and of what is drawn for the force: in [0, 1] with the Beta."""
    latent, _ = policy.mlp_extractor(policy.extract_features(OBSERVATIONS))
    outputs = policy.action_net(latent)
    if name == "squashed":
        force: Any = Normal(outputs[:, 3:], policy.log_std.exp())
    else:
        first, second = outputs[:, 3:].chunk(2, dim=1)
        force = Normal(first, second.exp())
        if name == "beta":  # Both parameters are 1 + softplus of an output.
            force = Beta(1 + th.nn.functional.softplus(first), 1 + th.nn.functional.softplus(second))
    return Categorical(logits=outputs[:, :3]), Independent(force, 1)


@pytest.mark.parametrize("name", NAMES)
def test_log_probabilities_are_those_of_the_parts(name: str) -> None:
    policy = small(env=envs(), policy_kwargs=NAMES[name]).policy
    choice, force = of_parts(policy, name)
    th.manual_seed(0)
    rows = policy.get_distribution(OBSERVATIONS).sample()
    drawn = rows[:, 1:]
    expected = choice.log_prob(rows[:, 0])
    if name == "beta":  # Actions are in [-1, 1], where densities are half as high.
        assert (drawn.abs() <= 1).all()
        expected = expected + force.log_prob((drawn + 1) / 2) - 2 * log(2)
    elif name == "squashed":  # The density of a = tanh(x) is that of x over 1 - a^2.
        assert (drawn.abs() <= 1).all()
        expected = expected + force.log_prob(th.atanh(drawn)) - th.log(1 - drawn.square()).sum(dim=1)
    else:
        expected = expected + force.log_prob(drawn)
    log_prob = policy.get_distribution(OBSERVATIONS).log_prob(rows)
    assert th.allclose(log_prob, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_divergences_are_sums_of_those_of_the_parts(name: str) -> None:
    old, new = (small(env=envs(), seed=seed, policy_kwargs=NAMES[name]).policy for seed in (0, 1))
    (choice, force), (new_choice, new_force) = of_parts(old, name), of_parts(new, name)
    expected = kl_divergence(choice, new_choice) + kl_divergence(force, new_force)
    divergences = divergences_of(old.get_distribution(OBSERVATIONS))
    rows = [divergences.parameters(policy.get_distribution(OBSERVATIONS)) for policy in (old, new)]
    assert th.allclose(divergences.kl(*rows), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("policy", ["MlpPolicy", "MlpLstmPolicy"])
@pytest.mark.parametrize("cls", [PPOClip, PPOAdaptiveKL, PPOFixedKL])
@pytest.mark.parametrize("name", NAMES)
def test_environments_get_actions_within_bounds(name: str, cls: Any, policy: str, tmp_path: Path) -> None:
    wide = {} if name == "beta" else {"log_std_init": 2.0}
    model = small(cls, envs(), policy=policy, policy_kwargs=NAMES[name] | wide).learn(64)
    assert model.logger.name_to_value["train/kl"] > 0
    loaded = cls.load(save(model), env=model.get_env())
    seen = np.zeros(3, np.float32)
    first, second = (each.predict(seen, deterministic=True)[0] for each in (model, loaded))
    assert KICK.contains(first) and np.array_equal(first["force"], second["force"])


@pytest.mark.parametrize("name", ["beta", "squashed"])
def test_bounded_parts_are_scaled_to_their_own_bounds(name: str) -> None:
    model = collect(small(env=envs(), policy_kwargs=NAMES[name]))
    rows = model.rollout_buffer.actions[0]
    (action, _) = model.policy.layout.for_envs(rows)
    # From [-1, 1] to [0, 1] and [-2, 3].
    assert action["force"] == pytest.approx(FORCE.low + (rows[0, 1:] + 1) / 2 * (FORCE.high - FORCE.low), abs=1e-6)


COINS = spaces.Dict({"coins": spaces.MultiBinary(2)})
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (COINS, {"distribution": "beta"}, r"\['distribution'\] needs a Box among the parts of the actions"),
    (COINS, {"std": "state"}, r"\['std'\] needs a Box among the parts of the actions"),
    (KICK, {"distribution": {"choice": "beta"}}, r"\['distribution'\]\['choice'\]: this part is no Box"),
    (KICK, {"distribution": {"kick": "beta"}}, "names 'kick', but the parts of the actions are 'choice', 'force'"),
    (KICK, {"distribution": {}, "std": "state"}, "std='state' has no effect beside a dict of distributions"),
    (KICK, {"distribution": "cauchy"}, "'cauchy' is not allowed"),
]


@pytest.mark.parametrize(("space", "arguments", "message"), REFUSED)
def test_what_does_not_fit_is_refused(space: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        small(env=noise_envs(space), policy_kwargs=arguments)
