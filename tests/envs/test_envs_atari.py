"""Atari games in ALE's vector environment behave as those of SB3's make_atari_env."""

from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv, VectorWrapper
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecMonitor

from sb3_ppo_variants import ArgumentError
from sb3_ppo_variants.envs import GymnasiumVecEnv, VecClipReward, VecEpisodicLife, check_frame_skip, make_ale_vec_env

gym.register_envs(ale_py)
BREAKOUT = "BreakoutNoFrameskip-v4"


def step(venv: VecEnv, action: int) -> tuple[Any, float, bool, dict[str, Any]]:
    observations, rewards, dones, infos = venv.step(np.array([action]))
    return np.asarray(observations)[0], rewards[0], dones[0], infos[0]


OTHERS = [("SpaceInvaders", 0), ("Pong", 32), ("Qbert", 32)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "pixels"),
    # A game with lives and a FIRE button that starts it, and one with neither.
    [("Breakout", 0), ("Freeway", 32), *(pytest.param(*of, marks=pytest.mark.slow) for of in OTHERS)],
)
def test_the_same_actions_do_the_same(game: str, pixels: int) -> None:
    """SB3's FireResetEnv and EpisodicLifeEnv take actions at resets; for ours, the test takes them."""
    env_id, wrapper_kwargs = f"{game}NoFrameskip-v4", {"noop_max": 0}
    theirs: VecEnv = VecFrameStack(make_atari_env(env_id, wrapper_kwargs=wrapper_kwargs), 4)
    ours = make_ale_vec_env(env_id, wrapper_kwargs=wrapper_kwargs, env_kwargs={"use_fire_reset": False})
    assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space
    at_reset = [1, 2] if "FIRE" in theirs.env_method("get_action_meanings")[0] else []
    theirs.reset(), ours.reset()
    for action in at_reset:
        step(ours, action)
    n_ends = 0
    for action in np.random.default_rng(0).integers(ours.action_space.n, size=700):  # type: ignore[attr-defined]
        seen, reward, done, info = step(theirs, action)
        our_seen, our_reward, our_done, our_info = step(ours, action)
        assert (our_reward, our_done, our_info["lives"]) == (reward, done, info["lives"])
        assert our_reward in (-1, 0, 1)
        assert ("episode" in our_info) == ("episode" in info)
        if "episode" in info:
            assert our_info["episode"]["r"] == info["episode"]["r"]
            assert our_info["episode_frame_number"] == info["episode"]["l"]
        if done:
            n_ends += 1
            for extra in at_reset if "episode" in info else [0, *at_reset]:
                our_seen, *_ = step(ours, extra)
        # Compare only the newest frame: after an episode ends, SB3's stack has no others, but ours has the extra steps.
        assert np.abs(our_seen[..., -1].astype(int) - seen[..., -1]).max() <= pixels
    assert n_ends > 0 or game in ("Pong", "Freeway")


@pytest.mark.parametrize("clip_reward", [True, False])
def test_the_monitor_knows_the_game(clip_reward: bool) -> None:
    """The monitor's return is the sum of unclipped rewards over all lives."""
    wrapper_kwargs = {"clip_reward": clip_reward, "terminal_on_life_loss": clip_reward}
    venv = make_ale_vec_env("QbertNoFrameskip-v4", seed=0, wrapper_kwargs=wrapper_kwargs, n_stack=1)
    assert venv.observation_space.shape == (84, 84, 1)
    venv.reset()
    rewards, dones = [], []
    for action in np.random.default_rng(0).integers(6, size=500):
        _, reward, done, info = step(venv, action)
        rewards.append(reward)
        dones.append(done)
        if "episode" in info:
            break
    assert info["episode"]["l"] == len(rewards)
    # The smallest reward in Qbert is 25.
    assert set(rewards) == ({0, 1} if clip_reward else {0, 25})
    assert info["episode"]["r"] == 25 * np.count_nonzero(rewards) > 0
    # Three lives may be lost before the last.
    assert sum(dones) == (4 if clip_reward else 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("env_id", "wrapper_kwargs", "sticky"),
    [
        ("BreakoutNoFrameskip-v4", {}, False),
        ("BreakoutNoFrameskip-v4", {"action_repeat_probability": 0.9}, True),
        ("BreakoutNoFrameskip-v0", {}, True),
        ("ALE/Breakout-v5", {"frame_skip": 1}, True),
    ],
)
def test_sticky_actions_are_asked_for(env_id: str, wrapper_kwargs: dict[str, Any], sticky: bool) -> None:
    """Without sticky actions, games in the same state remain identical under the same actions."""
    venv = make_ale_vec_env(env_id, 4, seed=0, wrapper_kwargs={"noop_max": 0, **wrapper_kwargs})
    venv.reset()
    for action in np.random.default_rng(0).integers(4, size=40):
        observations: Any = venv.step(np.full(4, action))[0]
    assert (observations == observations[:1]).all() != sticky


class Lives(gym.Env):
    """Plays games with the given number of lives at their reset and at each step."""

    observation_space = gym.spaces.Discrete(9)
    action_space = gym.spaces.Discrete(2)
    games = ((3, 3, 2, 0, 0, 0), (2, 1, 0))

    def __init__(self) -> None:
        self.game = -1

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[int, dict]:
        self.game, self.frame = self.game + 1, 0
        return 0, {"lives": self.games[self.game % 2][0]}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        self.frame += 1
        lives = self.games[self.game % 2]
        return self.frame, 7.0, self.frame == len(lives) - 1, False, {"lives": lives[self.frame]}


def test_lives_by_hand() -> None:
    """Game 1 loses a life (3 to 2) and continues for two steps with 0 lives; game 2 loses one in its first step."""
    venv = VecEpisodicLife(GymnasiumVecEnv(VectorWrapper(SyncVectorEnv([Lives]))))
    venv.reset()
    seen = [step(venv, 0) for _ in range(9)]
    assert [done for _, _, done, _ in seen] == [False, True, False, False, True, True, True, False, True]
    last = [info["terminal_observation"] for *_, info in seen if "terminal_observation" in info]
    assert last == [2, 5, 1, 2, 2]
    assert [int(observation) for observation, *_ in seen] == [1, 2, 3, 4, 0, 1, 0, 1, 2]


def test_envpool_s_games_with_the_same_wrappers() -> None:
    envpool = pytest.importorskip("envpool")
    inner = GymnasiumVecEnv(envpool.make("Breakout-v5", "gymnasium", num_envs=2, seed=0))
    venv = VecClipReward(VecEpisodicLife(VecMonitor(inner)))
    venv.reset()
    n_ends, n_games, lengths = np.zeros(2), 0, np.zeros(2)
    for actions in np.random.default_rng(0).integers(4, size=(400, 2)):
        _, _, dones, infos = venv.step(actions)
        n_ends += dones
        lengths += 1
        for i, info in enumerate(infos):
            assert ("terminal_observation" in info) == dones[i]
            if "episode" in info:
                # Five lives, without extra steps between them.
                assert n_ends[i] == 5 and info["episode"]["l"] == lengths[i] == info["elapsed_step"]
                n_games, n_ends[i], lengths[i] = n_games + 1, 0, 0
    assert n_games >= 2
    venv.close()


def test_environments_without_lives() -> None:
    venv = VecEpisodicLife(GymnasiumVecEnv(gym.make_vec("CartPole-v1", 2)))
    with pytest.raises(ArgumentError, match=r"venv=.* must have 'lives' in the info of every step and reset"):
        venv.reset()


def test_frame_skip() -> None:
    check_frame_skip(BREAKOUT)
    check_frame_skip("ALE/Breakout-v5", env_kwargs={"frameskip": 1})
    check_frame_skip("ALE/Breakout-v5", frame_skip=1)
    with pytest.raises(ArgumentError, match="'MsPacmanNoFrameskip-v4'"):
        check_frame_skip("ALE/MsPacman-v5")
