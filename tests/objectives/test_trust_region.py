"""The range of TRGPPO by hand, against random policies within its trust region, and its gradient."""

from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import CategoricalDistribution

from helpers import ACTION_SPACES, noise_envs, small
from sb3_ppo_variants import ArgumentError, Batch, PPOCustom
from sb3_ppo_variants.kl import divergences_of
from sb3_ppo_variants.objectives import EWMA, SPO, TRGPPO
from sb3_ppo_variants.objectives.trust_region import line_through, range_of_ratio

# The range of TRGPPO. A policy of four actions gives each a probability of 1/4. With w = 0.2, the drawn one gets
# 0.2 + 0.8 / 4 = 0.4 and the others 0.2: r = 1.6 and KL = -log(1.6) / 4 - 3/4 log(0.8). With w = -0.2, it gets 0.1 and
# the others 0.3: r = 0.4 and KL = -log(0.4) / 4 - 3/4 log(1.2). With both dimensions of a policy with two, r is squared
# and the KL doubled.
OF_UPPER, OF_LOWER = -log(1.6) / 4 - 0.75 * log(0.8), -log(0.4) / 4 - 0.75 * log(1.2)
UNIFORM = np.zeros((1, 4))
# A Gaussian, and an action two standard deviations above its mean. With w = 0.2, the mean moves by 0.4 deviations and
# the variance to 0.8 * 1.8 = 1.44: r = exp(2 - 1.6^2 / 2.88) / 1.2, KL = log 1.2 + (1 + 0.4^2) / 2.88 - 1/2. With
# w = -0.2, it moves by -0.4 and to 1.2 * 0.2 = 0.24: r = exp(2 - 2.4^2 / 0.48) / sqrt(0.24), which is the lower end.
GAUSSIAN = (np.array([[1.0]]), np.array([[0.5]]))
RANGES: dict[str, tuple[Any, list[float], float, float, float | None, float | None]] = {
    "categorical, upper": ((UNIFORM,), [2], log(0.25), OF_UPPER, None, 1.6),
    "categorical, lower": ((UNIFORM,), [2], log(0.25), OF_LOWER, 0.4, None),
    "two categories, upper": ((UNIFORM, UNIFORM), [1, 3], log(1 / 16), 2 * OF_UPPER, None, 1.6**2),
    "two categories, lower": ((UNIFORM, UNIFORM), [1, 3], log(1 / 16), 2 * OF_LOWER, 0.4**2, None),
    # p = 1/2 becomes 0.6, or 0.4.
    "Bernoulli": ((np.zeros((1, 2)),), [1, 0], log(0.25), -log(0.6 * 0.4 * 4), (0.4 * 2) ** 2, (0.6 * 2) ** 2),
    "a single coin": ((np.zeros((1, 1)),), [1], log(0.5), -log(0.6 * 0.4 * 4) / 2, 0.4 * 2, 0.6 * 2),
    # Parts of hybrid actions.
    "categories and coins, upper": (
        (UNIFORM, np.zeros((1, 2))), [2, 1, 0], log(1 / 16), OF_UPPER - log(0.96), None, 1.6 * 1.2**2,
    ),
    "coins between categories, lower": (
        (UNIFORM, np.zeros((1, 2)), UNIFORM), [2, 1, 0, 3], log(1 / 64), 2 * OF_LOWER - log(0.96),
        0.4**2 * 0.8**2, None,
    ),
    "Gaussian, upper": (
        GAUSSIAN, [2.0], -2 - log(0.5) - log(2 * np.pi) / 2, log(1.2) + 1.16 / 2.88 - 0.5,
        None, exp(2 - 2.56 / 2.88) / 1.2,
    ),
    "Gaussian, lower": (
        GAUSSIAN, [2.0], -2 - log(0.5) - log(2 * np.pi) / 2, log(0.24) / 2 + 1.16 / 0.48 - 0.5,
        exp(2 - 5.76 / 0.48) / 0.24**0.5, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RANGES)
def test_the_range_by_hand(name: str) -> None:
    """At both ends of the range the slope of r A ends."""
    old, action, old_log_prob, delta, low, high = RANGES[name]
    objective = TRGPPO(clip_range=0.01, delta=delta)
    for end, advantage, outwards in ((low, -1.0, -1e-6), (high, 1.0, 1e-6)):
        for side in () if end is None else (-outwards, outwards):
            assert end is not None
            ratio = th.tensor([end + side], dtype=th.float64, requires_grad=True)
            given: dict[str, Any] = {"actions": th.tensor([action]), "old_log_prob": th.tensor([old_log_prob])}
            of_old = tuple(map(th.from_numpy, old))
            loss = objective.loss(Batch(ratio, th.tensor([advantage]), old_parameters=of_old, **given))
            assert (th.autograd.grad(loss, ratio)[0].item() == 0) == (side == outwards)


def drawn(space: str, n: int = 40) -> tuple[Any, tuple[th.Tensor, ...], th.Tensor, th.Tensor]:
    """Return a distribution of SB3, its parameters, actions and their log-probabilities."""
    model = small(PPOCustom, noise_envs(ACTION_SPACES[space]), objective=SPO(), seed=1)
    with th.no_grad():
        for parameter in model.policy.action_net.parameters():
            parameter.copy_(th.randn_like(parameter))
    distribution = model.policy.get_distribution(th.randn(n, 3))
    actions = distribution.get_actions()
    parameters = divergences_of(distribution).parameters(distribution)
    return distribution, parameters, actions.detach(), distribution.log_prob(actions).detach()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("space", ACTION_SPACES)
def test_no_policy_within_the_trust_region_leaves_the_range(space: str) -> None:
    """Random policies whose KL is just below delta are within the range, and one of many comes near each end."""
    distribution, old, actions, old_log_prob = drawn(space)
    old = tuple(array.detach().double() for array in old)
    delta = 0.05
    line = line_through(tuple(array.numpy() for array in old), actions.numpy(), old_log_prob.numpy())
    low, high = range_of_ratio(line, delta)
    generator = th.Generator().manual_seed(0)
    nearest = np.zeros((2, len(low)))
    divergence = divergences_of(distribution).kl
    for _ in range(300):
        directions = [th.randn(array.shape, generator=generator, dtype=th.float64) for array in old]

        def moved(size: th.Tensor, directions: Any = directions) -> tuple[th.Tensor, ...]:
            if space == "Box":
                (mean, std), (of_mean, of_std) = old, directions
                return mean + size[:, None] * std * of_mean, std * th.exp(size[:, None] * of_std)
            return tuple(array + size[:, None] * of for array, of in zip(old, directions, strict=True))

        least, most = th.zeros(len(low), dtype=th.float64), th.full((len(low),), 3.0, dtype=th.float64)
        for _ in range(12):
            middle = (least + most) / 2
            inside = divergence(old, moved(middle)) < delta
            least, most = th.where(inside, middle, least), th.where(inside, most, middle)
        ratio = np.exp(log_prob_of(space, moved(least), actions) - log_prob_of(space, old, actions))
        assert (ratio >= low * (1 - 1e-9)).all() and (ratio <= high * (1 + 1e-9)).all()
        nearest = np.maximum(nearest, [np.log(ratio) / np.log(low), np.log(ratio) / np.log(high)])
    assert np.median(nearest) > 0.8 and nearest.max() > 0.95


def log_prob_of(space: str, parameters: tuple[th.Tensor, ...], actions: th.Tensor) -> np.ndarray:
    """Return log pi(a|s) with PyTorch's distributions."""
    if space == "Box":
        mean, std = parameters
        return th.distributions.Normal(mean, std).log_prob(actions).sum(dim=1).numpy()
    if space == "MultiBinary":
        return th.distributions.Bernoulli(logits=parameters[0]).log_prob(actions.double()).sum(dim=1).numpy()
    columns = actions.reshape(len(actions), -1).T
    each = [th.distributions.Categorical(logits=p).log_prob(a) for p, a in zip(parameters, columns, strict=True)]
    return th.stack(each).sum(dim=0).numpy()


@pytest.mark.parametrize("fast", [False, True])
def test_the_range_of_squashed_actions_is_not_known(fast: bool) -> None:
    squashed = {"policy_kwargs": {"squash_output": True}, "use_sde": True}
    refused = r"^objective: TRGPPO does not know the distribution of these actions"
    with pytest.raises(ArgumentError, match=refused):
        small(PPOCustom, objective=TRGPPO(), fast=fast, **squashed)
    later = small(PPOCustom, objective=SPO(0.2), fast=fast, **squashed)
    later.objective = TRGPPO()
    with pytest.raises(ArgumentError, match=refused):
        later.learn(32)
    small(PPOCustom, objective=TRGPPO(), fast=fast, use_sde=True).learn(32)


@pytest.mark.parametrize("seed", range(8))
def test_the_range_of_parts_that_do_not_always_count_is_not_known(seed: int) -> None:
    """Where the drawn choice is 1, both parts count, so that the log-probability is the sum of theirs."""
    env = noise_envs(spaces.Dict(choice=spaces.Discrete(2), kick=spaces.Discrete(3)))
    with pytest.raises(ArgumentError, match="hybrid actions of discrete parts that always count"):
        small(PPOCustom, env, objective=TRGPPO(), seed=seed, policy_kwargs={"only_if": {"kick": ("choice", 1)}})
    small(PPOCustom, env, objective=TRGPPO(), seed=seed)


@pytest.mark.parametrize("fast", [False, True])
def test_hybrid_actions_of_all_discrete_parts(fast: bool) -> None:
    parts = {"choice": spaces.Discrete(3), "coins": spaces.MultiBinary(3), "choices": spaces.MultiDiscrete([2, 4])}
    for order in (parts, dict(reversed(parts.items()))):
        env = noise_envs(spaces.Tuple([*order.values()]))
        logged = small(PPOCustom, env, objective=TRGPPO(delta=1e-6), fast=fast, learning_rate=0.01).learn(32).logger
        assert logged.name_to_value["train/kl"] > 0


class OfDiscreteActions(SPO):
    """Is not defined for other actions."""

    def check_distribution(self, distribution: Any) -> None:
        if not isinstance(distribution, CategoricalDistribution):
            raise ArgumentError(f"it has no {type(distribution).__name__}")


@pytest.mark.parametrize("wrap", [lambda objective: objective, EWMA])
def test_an_objective_refuses_a_distribution_before_the_first_step(wrap: Any) -> None:
    objective = wrap(OfDiscreteActions(0.2))
    with pytest.raises(ArgumentError, match="it has no DiagGaussian"):
        small(PPOCustom, objective=objective)
    assert small(PPOCustom, noise_envs(spaces.Discrete(3)), objective=objective).learn(16).num_timesteps > 0
