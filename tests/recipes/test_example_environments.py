"""The environments for masked and recurrent policies."""

import math
from itertools import permutations
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from examples.environments import LowOrHigh, MoveOrKick, Scheduling

VELOCITIES = {"CartPoleNoVel-v1": [1, 3], "PendulumNoVel-v1": [2], "LunarLanderNoVel-v3": [2, 3, 5]}


def cost(durations: Any, weights: Any, due: Any, order: Any) -> float:
    ends = np.cumsum([durations[job] for job in order])
    late = [max(end - due[job], 0) * weights[job] for end, job in zip(ends, order, strict=True)]
    return float(sum(late) / (sum(weights) * sum(durations)))


def test_rewards_are_the_weighted_tardiness_of_the_order() -> None:
    env = Scheduling(n_jobs=4)
    for order in permutations(range(4)):
        observation, _ = env.reset(seed=2)
        # Observations contain durations / 10, weights / 5, and the time left as a share of the total duration.
        durations, weights = observation[:, 0] * 10, observation[:, 1] * 5
        due = observation[:, 2] * durations.sum()
        steps = [env.step(np.int64(job)) for job in order]
        assert -sum(step[1] for step in steps) == pytest.approx(cost(durations, weights, due, order), abs=1e-6)
        assert [step[2] for step in steps] == [False, False, False, True]


def test_jobs_that_are_done_are_masked() -> None:
    env = Scheduling(n_jobs=3)
    env.reset(seed=0)
    env.step(np.int64(1))
    assert env.action_masks().tolist() == [True, False, True]
    with pytest.raises(ValueError, match="job 1 is already done"):
        env.step(np.int64(1))


@pytest.mark.filterwarnings("ignore")
def test_gymnasium_takes_it() -> None:
    env = Scheduling(n_jobs=3)
    env.action_space.sample = lambda *_: int(np.argmax(env.action_masks()))  # type: ignore[assignment, method-assign]
    check_env(env, skip_render_check=True)


def test_the_sign_says_which_allowed_action_is_right() -> None:
    env, seen = LowOrHigh(n_actions=5, n_steps=4), set()
    for seed in range(10):
        first, _ = env.reset(seed=seed)
        seen.add(first.item())
        for step in range(4):
            mask = env.action_masks().tolist()
            assert sum(mask) >= 2
            lowest, highest = mask.index(True), 4 - mask[::-1].index(True)
            right = seed % 2 == 0
            low = (first.item() < 0) == right
            observation, reward, ended, *_ = env.step(np.int64(lowest if low else highest))
            assert (observation.item(), reward, ended) == (0, 0.25 * right, step == 3)
    assert seen == {-1.0, 1.0}


@pytest.mark.filterwarnings("ignore")
def test_gymnasium_takes_low_or_high() -> None:
    check_env(LowOrHigh(), skip_render_check=True)
    assert gym.make("examples.environments:LowOrHigh-v0", n_steps=3).unwrapped.action_space == gym.spaces.Discrete(4)


@pytest.mark.parametrize("env_id", VELOCITIES)
def test_velocities_are_hidden_and_nothing_else(env_id: str) -> None:
    env = gym.make(f"examples.environments:{env_id}")
    whole = gym.make(env_id.replace("NoVel", ""))
    env.reset(seed=3), whole.reset(seed=3)
    for _ in range(5):
        action = env.action_space.sample()
        seen, reward, *ends, _ = env.step(action)
        expected, expected_reward, *expected_ends, _ = whole.step(action)
        assert np.all(expected[VELOCITIES[env_id]] != 0)
        expected[VELOCITIES[env_id]] = 0
        np.testing.assert_array_equal(seen, expected)
        assert (reward, ends) == (expected_reward, expected_ends)


def move_or_kick(env: MoveOrKick, choice: int, vector: Any) -> Any:
    given = np.array(vector, np.float32)
    vectors = {"move": 0 * given, "kick": 0 * given, ("move", "kick")[choice]: given}
    return env.step({"choice": np.int64(choice), **vectors})


@pytest.mark.parametrize("n_dimensions", [1, 2, 3])
def test_a_move_to_the_ball_and_a_kick_into_the_goal_are_best(n_dimensions: int) -> None:
    env = MoveOrKick(n_dimensions=n_dimensions)
    for seed in range(20):
        to_ball, to_goal = np.split(env.reset(seed=seed)[0], 2)
        distance = math.hypot(*to_ball)
        assert 0.3 <= distance <= 1 >= math.hypot(*to_goal)
        missed, reward, ended, *_ = move_or_kick(env, 1, to_goal)
        assert missed.tolist() == [*to_ball, *to_goal] and (reward, ended) == (-0.1, False)
        moved, reward, ended, *_ = move_or_kick(env, 0, to_ball)
        np.testing.assert_allclose(moved, [*np.zeros(n_dimensions), *to_goal], atol=1e-6)
        assert reward == pytest.approx(distance - 0.1, abs=1e-6) and not ended
        kick = np.full(n_dimensions, 0.5)
        _, reward, ended, cut_off, _ = move_or_kick(env, 1, kick)
        assert reward == pytest.approx(0.9 - math.dist(to_goal, kick)) and ended and not cut_off


def test_a_player_who_never_kicks_is_cut_off() -> None:
    env = MoveOrKick(n_steps=3)
    env.reset(seed=0)
    ends = [(False, False), (False, False), (False, True)]
    assert [move_or_kick(env, 0, [0, 0])[2:4] for _ in range(3)] == ends
    check_env(env, skip_render_check=True)
