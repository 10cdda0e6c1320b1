"""The page says of penalties in Ant and Humanoid what the committed records say."""

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
WEAKEST = "ppo_fixed_kl kl_coef=0.0588"


def load(name: str) -> scores.Comparison:
    """Load the records of a single comparison."""
    found, problems = records.unpack(ROOT / "results" / name)
    assert not problems
    (comparison,) = scores.comparisons(found)
    return comparison


@pytest.fixture(scope="module")
def measured() -> scores.Comparison:
    comparison = load("penalties-ant.jsonl.gz")
    assert {*comparison.labels} == {CLIP, STRONG, WEAK, ADAPTIVE} and comparison.envs == ["Ant-v4"]
    return comparison


@pytest.fixture(scope="module")
def in_humanoid() -> scores.Comparison:
    comparison = load("penalties-humanoid.jsonl.gz")
    assert {*comparison.labels} == {CLIP, STRONG, WEAKEST, ADAPTIVE} and comparison.envs == ["Humanoid-v4"]
    return comparison


@pytest.fixture(scope="module")
def humanoid() -> str:
    return " ".join(section("Penalties in Humanoid").split())


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
    compared = load("penalties-ant-deviation.jsonl.gz")
    small = "ppo_fixed_kl kl_coef=1, policy_kwargs={'log_std_init': -1}"
    assert {*compared.labels} == {STRONG, small}
    assert {*scores_of(compared, STRONG)} == {*scores_of(measured, STRONG)}
    reached = scores_of(compared, small)
    assert f"scores {reached.mean():.0f} ± {reached.std(ddof=1):.0f}, between {reached.min():.0f}" in page
    assert f"and {reached.max():.0f}, with episodes of {length(compared.runs(small), 90):.0f} steps" in page
    assert statistics.differences(compared.arrays)[small, STRONG].is_beyond_noise and "beyond noise" in page


def with_target(target: float, measured: scores.Comparison, file: str, page: str) -> tuple[scores.Comparison, str]:
    """Load the runs with a larger target, check what both pages say of it, and return the label of these runs."""
    larger, compared = f"ppo_adaptive_kl desired_kl={target}", load(file)
    assert {*compared.labels} == {CLIP, ADAPTIVE, larger}
    assert {*scores_of(compared, ADAPTIVE)} == {*scores_of(measured, ADAPTIVE)}
    reached = scores_of(compared, larger)
    assert f"With d_targ = {target}, {target / 0.02:.0f} times as large, the adaptive penalty scores" in page
    assert f"{reached.mean():.0f} ± {reached.std(ddof=1):.0f}, which is worse than with 0.02 beyond noise" in page
    assert compared.differences[ADAPTIVE, larger].estimate.value > 0
    assert compared.differences[ADAPTIVE, larger].is_beyond_noise
    assert f"The median KL of an update is {np.median(compared.logged(larger, 'kl')):.2f} then" in page
    return compared, larger


def test_a_larger_target(measured: scores.Comparison, page: str) -> None:
    compared, larger = with_target(0.16, measured, "penalties-ant-target.jsonl.gz", page)
    runs = compared.runs(larger)
    second, last = round(length(runs, 10, 20)), round(length(runs, 90))
    assert f"episodes take {second} steps in the second tenth of training and {last} in the last" in page


def test_how_the_penalties_score_in_humanoid(in_humanoid: scores.Comparison, humanoid: str) -> None:
    # Means and standard deviations of KLip-PPO: paper/figures/final_returns.tex of its repository.
    published = {CLIP: (660, 70), STRONG: (342, 31), ADAPTIVE: (553, 22), WEAKEST: None}
    names = {CLIP: "clipping, ε = 0.2", STRONG: "fixed KL, β = 1", WEAKEST: "fixed KL, β = 1/17"}
    names[ADAPTIVE] = "adaptive KL, d_targ = 0.02"
    table = section("Penalties in Humanoid")
    for label, theirs in published.items():
        found = scores_of(in_humanoid, label)
        cell = "" if theirs is None else f"{theirs[0]} ± {theirs[1]} "
        assert f"| {names[label]} | {cell}| {found.mean():.0f} ± {found.std(ddof=1):.0f} |" in table
        assert theirs is None or abs(found.mean() - theirs[0]) < theirs[1]
    alike = {(STRONG, WEAKEST), (WEAKEST, STRONG)}
    assert {pair for pair, each in in_humanoid.differences.items() if not each.is_beyond_noise} == alike
    assert in_humanoid.are_equivalent(STRONG, WEAKEST)
    assert [each.label for each in in_humanoid.ranking][:2] == [CLIP, ADAPTIVE]
    assert (
        "Clipping is better than each of the three penalties beyond noise, and the adaptive penalty is better than"
        in humanoid
    )
    assert "β = 1 and β = 1/17 are equivalent within 0.1" in humanoid


def test_how_far_updates_move_the_policy_in_humanoid(in_humanoid: scores.Comparison, humanoid: str) -> None:
    medians = {label: float(np.median(in_humanoid.logged(label, "kl"))) for label in in_humanoid.labels}
    assert f"The median KL of an update is {medians[CLIP]:.3f} with clipping." in humanoid
    assert f"It is {medians[STRONG]:.1f} with β = 1 and {medians[WEAKEST]:.1f} with β = 1/17" in humanoid
    assert f"keeps the KL at {medians[ADAPTIVE]:.3f}" in humanoid
    after = {label: deviation(in_humanoid.runs(label), 20) for label in in_humanoid.labels}
    assert f"deviation is {after[STRONG]:.2f} and {after[WEAKEST]:.2f}, against {after[CLIP]:.2f} with" in humanoid


def test_episodes_in_humanoid(in_humanoid: scores.Comparison, humanoid: str) -> None:
    second = {label: round(length(in_humanoid.runs(label), 10, 20)) for label in in_humanoid.labels}
    last = {label: round(length(in_humanoid.runs(label), 90)) for label in in_humanoid.labels}
    assert (
        f"take {second[STRONG]} and {second[WEAKEST]} steps in the second tenth of training, and {last[STRONG]} and "
        f"{last[WEAKEST]} in the last. With clipping, they take {second[CLIP]} and {last[CLIP]}."
    ) in humanoid
    assert f"its episodes take {second[ADAPTIVE]} and {last[ADAPTIVE]} steps" in humanoid
    assert f"Those of the random policy take {length(in_humanoid.random, 0):.0f}." in humanoid
    env = gym.make("Humanoid-v4")
    env.reset(seed=0)
    info = env.step(np.zeros(17, dtype=np.float32))[-1]
    assert info["reward_alive"] == 5 and env.action_space.shape == (17,)


def test_a_larger_target_in_humanoid(in_humanoid: scores.Comparison, humanoid: str) -> None:
    compared, larger = with_target(0.34, in_humanoid, "penalties-humanoid-target.jsonl.gz", humanoid)
    fifth, end = (
        [f"{deviation(compared.runs(label), share):.2f}" for label in (larger, ADAPTIVE)] for share in (20, 100)
    )
    assert (
        f"deviation is {fifth[0]} after a fifth of training and {end[0]} at its end, against {fifth[1]} and {end[1]} "
    ) in humanoid
