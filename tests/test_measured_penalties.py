"""The page says of penalties in Ant what the committed records say."""

import re

import gymnasium as gym
import numpy as np
import pytest
from committed import ROOT, needs_records, section
from scipy.stats import norm

from sb3_ppo_variants.compare import records, scores, statistics
from sb3_ppo_variants.compare.records import Record

pytestmark = needs_records
CLIP, STRONG, WEAK, ADAPTIVE = (
    "ppo_clip",
    "ppo_fixed_kl kl_coef=1",
    "ppo_fixed_kl kl_coef=0.125",
    "ppo_adaptive_kl desired_kl=0.02",
)


@pytest.fixture(scope="module")
def measured() -> scores.Comparison:
    found, problems = records.unpack(ROOT / "results" / "penalties-ant.jsonl.gz")
    assert not problems
    (comparison,) = scores.comparisons(found)
    assert {*comparison.labels} == {CLIP, STRONG, WEAK, ADAPTIVE} and comparison.envs == ["Ant-v4"]
    return comparison


@pytest.fixture(scope="module")
def page() -> str:
    return " ".join(section("Penalties in Ant").split())


def length(runs: list[Record], first: int, last: int = 100) -> float:
    """Return the mean length of the episodes of runs that end between these hundredths of their steps."""
    ended = [[0, *run["ended"]] for run in runs]
    steps = sum(run["steps"] for run in runs) * (last - first) / 100
    return steps / sum(counts[last] - counts[first] for counts in ended)


def deviation(runs: list[Record], share: int) -> float:
    """Return the standard deviation of the policies after so many hundredths of the steps."""
    found = [run["training"]["std"][share - 1] for run in runs]
    return float(np.mean([each for each in found if each is not None]))


def scores_of(comparison: scores.Comparison, label: str) -> np.ndarray:
    found = np.array([run["score"] for run in comparison.runs(label)], dtype=float)
    assert found.shape == (5,)
    return found


def test_how_the_penalties_score(measured: scores.Comparison, page: str) -> None:
    names = {CLIP: "clipping, ε = 0.2", STRONG: "fixed KL, β = 1", WEAK: "fixed KL, β = 1/8"}
    names[ADAPTIVE] = "adaptive KL, d_targ = 0.02"
    table = section("Penalties in Ant")
    for label, name in names.items():
        found = scores_of(measured, label)
        assert re.search(rf"^\| {name} \| .*\| {found.mean():.0f} ± {found.std(ddof=1):.0f} \|$", table, re.MULTILINE)
    differences = statistics.differences(measured.arrays)
    assert all(each.is_beyond_noise for each in differences.values())
    ranked = sorted(names, key=lambda label: -scores_of(measured, label).mean())
    assert ranked == [CLIP, ADAPTIVE, STRONG, WEAK]
    assert "Clipping is better than each of the three penalties beyond noise" in page
    assert "with β = 1/8, agents score even less than with β = 1, beyond noise" in page


def test_how_far_updates_move_the_policy(measured: scores.Comparison, page: str) -> None:
    medians = {label: float(np.median(measured.logged(label, "kl"))) for label in measured.labels}
    assert f"the median KL of an update is {medians[CLIP]:.3f} with clipping and {medians[ADAPTIVE]:.3f} with" in page
    assert f"It is {medians[STRONG]:.2f} with β = 1 and {medians[WEAK]:.1f} with β = 1/8" in page


def test_penalised_agents_end_their_episodes(measured: scores.Comparison, page: str) -> None:
    last = {label: round(length(measured.runs(label), 90)) for label in measured.labels}
    assert f"episodes take {last[STRONG]} steps with β = 1, {last[WEAK]} with β = 1/8, {last[ADAPTIVE]} with" in page
    assert f"and {last[CLIP]} with clipping. Those of the random policy take {length(measured.random, 0):.0f}." in page
    after = {label: deviation(measured.runs(label), 20) for label in measured.labels}
    assert f"After a fifth of training, it is {after[CLIP]:.2f} with clipping, {after[STRONG]:.2f} with β = 1," in page
    assert f"{after[ADAPTIVE]:.2f} with the adaptive penalty and {after[WEAK]:.2f} with β = 1/8" in page
    second = {label: round(length(measured.runs(label), 10, 20)) for label in measured.labels}
    assert f"episodes take {second[STRONG]}, {second[ADAPTIVE]} and {second[WEAK]} steps with these" in page
    assert f"and {second[CLIP]} with clipping." in page


def test_what_a_step_earns_and_costs() -> None:
    """The mean square of a Gaussian action that is clipped to [-1, 1], from the incomplete moments of the Gaussian."""
    env = gym.make("Ant-v4")
    env.reset(seed=0)
    action = np.full(8, 0.5, dtype=np.float32)
    info = env.step(action)[-1]
    assert (info["reward_survive"], info["reward_ctrl"]) == (1, pytest.approx(-0.5 * (action**2).sum()))

    def cost(std: float) -> float:
        bound = 1 / std
        inside = norm.cdf(bound) - norm.cdf(-bound) - 2 * bound * norm.pdf(bound)
        return float(0.5 * 8 * (std**2 * inside + 2 * norm.sf(bound)))

    assert cost(1) == pytest.approx(2, abs=0.1) and cost(0.5) < 1 < cost(0.55)


def test_a_smaller_deviation_at_first(measured: scores.Comparison, page: str) -> None:
    found, _ = records.unpack(ROOT / "results" / "penalties-ant-deviation.jsonl.gz")
    (compared,) = scores.comparisons(found)
    small = "ppo_fixed_kl kl_coef=1, policy_kwargs={'log_std_init': -1}"
    assert {*compared.labels} == {STRONG, small}
    assert {*scores_of(compared, STRONG)} == {*scores_of(measured, STRONG)}
    reached = scores_of(compared, small)
    assert f"scores {reached.mean():.0f} ± {reached.std(ddof=1):.0f}, between {reached.min():.0f}" in page
    assert f"and {reached.max():.0f}, with episodes of {length(compared.runs(small), 90):.0f} steps" in page
    assert statistics.differences(compared.arrays)[small, STRONG].is_beyond_noise and "beyond noise" in page
