"""The page says of penalties in Ant and Humanoid what the committed records say."""

from math import comb
from typing import TypeAlias

import gymnasium as gym
import numpy as np
import pytest
from committed import ROOT, better, needs_records, section
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
# The settings that were chosen after runs of the others were known.
LARGER, LARGEST = "ppo_adaptive_kl desired_kl=0.16", "ppo_adaptive_kl desired_kl=0.34"
# Those with a smaller standard deviation at first, by the same settings without it.
SMALLER = {
    CLIP: "ppo_clip policy_kwargs={'log_std_init': -1}",
    STRONG: "ppo_fixed_kl kl_coef=1, policy_kwargs={'log_std_init': -1}",
    WEAK: "ppo_fixed_kl kl_coef=0.125, policy_kwargs={'log_std_init': -1}",
    ADAPTIVE: "ppo_adaptive_kl desired_kl=0.02, policy_kwargs={'log_std_init': -1}",
}
# The names of the settings, and the means and standard deviations of KLip-PPO: paper/figures/final_returns.tex of its
# repository.
Table: TypeAlias = dict[str, tuple[str, tuple[int, int] | None]]
IN_ANT: Table = {
    CLIP: ("clipping, ε = 0.2", (2193, 361)),
    STRONG: ("fixed KL, β = 1", (16, 16)),
    WEAK: ("fixed KL, β = 1/8", None),
    ADAPTIVE: ("adaptive KL, d_targ = 0.02", (159, 86)),
    LARGER: ("adaptive KL, d_targ = 0.16", None),
    SMALLER[CLIP]: ("clipping, ε = 0.2, `log_std_init=-1`", None),
    SMALLER[STRONG]: ("fixed KL, β = 1, `log_std_init=-1`", None),
    SMALLER[WEAK]: ("fixed KL, β = 1/8, `log_std_init=-1`", None),
    SMALLER[ADAPTIVE]: ("adaptive KL, d_targ = 0.02, `log_std_init=-1`", None),
}
IN_HUMANOID: Table = {
    CLIP: ("clipping, ε = 0.2", (660, 70)),
    STRONG: ("fixed KL, β = 1", (342, 31)),
    WEAKEST: ("fixed KL, β = 1/17", None),
    ADAPTIVE: ("adaptive KL, d_targ = 0.02", (553, 22)),
    LARGEST: ("adaptive KL, d_targ = 0.34", None),
}


def load(name: str) -> scores.Comparison:
    """Load the records of a single comparison."""
    found, problems = records.unpack(ROOT / "results" / name)
    assert not problems
    (comparison,) = scores.comparisons(found)
    return comparison


@pytest.fixture(scope="module")
def measured() -> scores.Comparison:
    comparison = load("penalties-ant.jsonl.gz")
    assert {*comparison.labels} == {*IN_ANT} and comparison.envs == ["Ant-v4"]
    return comparison


@pytest.fixture(scope="module")
def in_humanoid() -> scores.Comparison:
    comparison = load("penalties-humanoid.jsonl.gz")
    assert {*comparison.labels} == {*IN_HUMANOID} and comparison.envs == ["Humanoid-v4"]
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
    """Return the scores of a setting in the order of its ten seeds."""
    runs = sorted(comparison.runs(label), key=lambda run: run["seed"])
    assert [run["seed"] for run in runs] == list(range(10))
    return np.array([run["score"] for run in runs], dtype=float)


def check_table(table: Table, comparison: scores.Comparison, page: str) -> None:
    """Check that a page has the scores of KLip-PPO and of these runs."""
    for label, (name, theirs) in table.items():
        found = scores_of(comparison, label)
        cell = "" if theirs is None else f"{theirs[0]} ± {theirs[1]} "
        assert f"| {name} | {cell}| {found.mean():.0f} ± {found.std(ddof=1):.0f} |\n" in page


def test_how_the_penalties_score(measured: scores.Comparison, page: str) -> None:
    check_table(IN_ANT, measured, section("Penalties in Ant"))
    pairs = better(measured.differences)
    assert pairs >= {(CLIP, penalty) for penalty in (STRONG, WEAK, ADAPTIVE, LARGER)}
    assert pairs >= {(SMALLER[CLIP], SMALLER[penalty]) for penalty in (STRONG, WEAK, ADAPTIVE)}
    assert (
        "Among settings that begin with the same standard deviation, clipping is better beyond noise than each penalty."
    ) in page
    which = " ".join((ROOT / "docs" / "which_objective.md").read_text().split())
    assert "fail where clipping learns, and learn less than clipping even if actions are small at first." in which
    assert pairs >= {(STRONG, WEAK), (SMALLER[STRONG], SMALLER[WEAK])}
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
    pairs = better(measured.differences)
    assert pairs >= {(smaller, label) for label, smaller in SMALLER.items()}
    assert f"a standard deviation of {np.exp(-1):.2f}." in page
    clip, strong, weak, adaptive = SMALLER.values()
    ranges = {label: scores_of(measured, label) for label in SMALLER.values()}
    said = {label: f"between {reached.min():.0f} and {reached.max():.0f}" for label, reached in ranges.items()}
    assert (
        f"Clipping then scores {said[clip]}, β = 1 {said[strong]}, β = 1/8 {said[weak]}, and the adaptive penalty "
        f"{said[adaptive]}. Each is better than without it beyond noise."
    ) in page
    last = [round(length(measured.runs(label), 90)) for label in SMALLER.values()]
    assert f"their episodes take {last[0]}, {last[1]}, {last[2]} and {last[3]} steps." in page
    assert measured.are_equivalent(adaptive, CLIP)
    assert "as much as clipping that begins with 1: they are equivalent within 0.1." in page
    assert measured.ranking[0].label == clip and "clipping gains as well, and stays ahead" in page
    assert pairs >= {(label, weak) for label in (clip, strong, adaptive)} and "β = 1/8 still learns least" in page
    kl, after = np.median(measured.logged(weak, "kl")), [deviation(measured.runs(label), 20) for label in (weak, clip)]
    assert f"The median KL of an update is {kl:.1f} with it, and the standard deviation after a fifth" in page
    assert f"is {after[0]:.2f}, against {after[1]:.2f} with clipping." in page


@pytest.mark.parametrize("objective", ["adaptive_kl", "fixed_kl"])
def test_the_advice_for_ant(measured: scores.Comparison, objective: str) -> None:
    advice = " ".join((ROOT / "docs" / "objectives" / f"{objective}.md").read_text().split())
    assert (
        'Clip there, or begin with smaller actions: `policy_kwargs={"log_std_init": -1}`. Both together scored most.'
    ) in advice
    assert measured.ranking[0].label == SMALLER[CLIP]


def p_of_newer_seeds(comparison: scores.Comparison, better_one: str, other: str) -> str:
    """Compare two settings with seeds 5 to 9 alone, as if there were no other pair."""
    alone = {label: comparison.arrays[label][5:] for label in (better_one, other)}
    assert better(statistics.differences(alone)) == {(better_one, other)}
    # So few seeds could not tell two settings apart if all pairs of the page were tested.
    assert statistics.smallest_p(5, 5, 1) * comb(len(comparison.arrays), 2) > statistics.ALPHA
    return f"{statistics.differences(alone)[better_one, other].p:.2g}"


def test_the_seeds_that_are_newer_than_the_choice(measured: scores.Comparison, page: str) -> None:
    """Each setting that was chosen between its seeds is compared with the one that it was chosen for."""
    larger, smaller = (p_of_newer_seeds(measured, *pair) for pair in ((ADAPTIVE, LARGER), (SMALLER[STRONG], STRONG)))
    assert (
        "newer than our choice of them. In these seeds too, tested alone and without a correction, the larger target "
        f"is worse than 0.02, and β = 1 is better with `log_std_init=-1` than without (p = {larger} and {smaller})."
    ) in page
    later = [SMALLER[label] for label in (CLIP, WEAK, ADAPTIVE)]
    processors = {
        (run["seed"] < 5 and run["label"] not in later, run["machine"], run["commit"]) for run in measured.records
    }
    assert len(processors) == 2 and "come from another processor and a later commit" in page


def check_larger_target(target: float, compared: scores.Comparison, page: str) -> str:
    """Check what both pages say of the runs with a larger target, and return the label of these runs."""
    larger = f"ppo_adaptive_kl desired_kl={target}"
    reached = scores_of(compared, larger)
    assert f"With d_targ = {target}, {target / 0.02:.0f} times as large, the adaptive penalty scores" in page
    assert f"{reached.mean():.0f} ± {reached.std(ddof=1):.0f}, which is worse than with 0.02 beyond noise" in page
    assert compared.differences[ADAPTIVE, larger].estimate.value > 0
    assert compared.differences[ADAPTIVE, larger].is_beyond_noise
    assert f"The median KL of an update is {np.median(compared.logged(larger, 'kl')):.2f} then" in page
    return larger


def test_a_larger_target(measured: scores.Comparison, page: str) -> None:
    assert check_larger_target(0.16, measured, page) == LARGER
    runs = measured.runs(LARGER)
    second, last = round(length(runs, 10, 20)), round(length(runs, 90))
    assert f"episodes take {second} steps in the second tenth of training and {last} in the last" in page


def test_how_the_penalties_score_in_humanoid(in_humanoid: scores.Comparison, humanoid: str) -> None:
    check_table(IN_HUMANOID, in_humanoid, section("Penalties in Humanoid"))
    for label, (_, theirs) in IN_HUMANOID.items():
        assert theirs is None or abs(scores_of(in_humanoid, label).mean() - theirs[0]) < theirs[1]
    assert "Where KLip-PPO reports a mean, ours is within a standard deviation of it." in humanoid
    alike = {(STRONG, WEAKEST), (WEAKEST, STRONG)}
    assert {pair for pair, each in in_humanoid.differences.items() if not each.is_beyond_noise} == alike
    assert in_humanoid.are_equivalent(STRONG, WEAKEST)
    assert [each.label for each in in_humanoid.ranking][:3] == [CLIP, ADAPTIVE, LARGEST]
    assert (
        "Clipping is better than each of the penalties beyond noise, and the adaptive penalty with d_targ = 0.02 is "
        "better than each of the other penalties."
    ) in humanoid
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
    shortest = min(length([run], 90) for label in IN_HUMANOID for run in in_humanoid.runs(label))
    assert shortest > length(in_humanoid.random, 0)
    assert "a step on its feet earns 5, so that no agent learns to end its episodes." in humanoid


def test_a_larger_target_in_humanoid(in_humanoid: scores.Comparison, humanoid: str) -> None:
    assert check_larger_target(0.34, in_humanoid, humanoid) == LARGEST
    fifth, end = (
        [f"{deviation(in_humanoid.runs(label), share):.2f}" for label in (LARGEST, ADAPTIVE)] for share in (20, 100)
    )
    assert (
        f"deviation is {fifth[0]} after a fifth of training and {end[0]} at its end, against {fifth[1]} and {end[1]} "
    ) in humanoid
    assert (
        "It is worse in seeds 5 to 9 too, which are newer than our choice of it, tested alone and without a correction "
        f"(p = {p_of_newer_seeds(in_humanoid, ADAPTIVE, LARGEST)})."
    ) in humanoid
    origins = {(run["seed"] < 5, run["machine"], run["commit"]) for run in in_humanoid.records}
    assert len(origins) == 2 and "come from another processor and a later commit" in humanoid


def test_the_answer_of_the_faq(measured: scores.Comparison, in_humanoid: scores.Comparison) -> None:
    alike = {(CLIP, penalty) for penalty in (STRONG, WEAK, ADAPTIVE, LARGER)}
    alike |= {(SMALLER[CLIP], SMALLER[penalty]) for penalty in (STRONG, WEAK, ADAPTIVE)}
    assert alike <= better(measured.differences)
    assert {(CLIP, label) for label in IN_HUMANOID if label != CLIP} <= better(in_humanoid.differences)
    answer = " ".join((ROOT / "docs" / "faq.md").read_text().split())
    assert (
        "(results/index.md#penalties-in-humanoid), with ten seeds, clipping is better beyond noise than each penalty "
        "that begins with the same standard deviation."
    ) in answer
