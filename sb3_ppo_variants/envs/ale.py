"""Atari games in the vector environment of the Arcade Learning Environment (ALE), which steps them in threads.

Given the same emulator state, the same actions lead to the same rewards, lives, episode ends and episode returns as
with SB3's ``make_atari_env``. The differences are:

- A game begins with up to ``noop_max`` no-ops; in games with a FIRE action, FIRE replaces the last of them. SB3 takes
  1 to ``noop_max`` no-ops, then FIRE and the third action for ``frame_skip`` frames each.
- After losing a life, the agent acts immediately. SB3 takes a no-op first, then FIRE and the third action in games
  that have FIRE.
- The emulator itself converts frames to greyscale and resizes them, so some pixels differ slightly.
- The episode length in ``info["episode"]`` counts agent steps, not frames.
- A limit on the number of frames counts from the agent's first step.
- ``reset`` begins a new game even after a lost life.
- A nonzero ``action_repeat_probability`` replaces the game's own. SB3 applies both.
"""

from inspect import signature
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers.vector import TransformObservation
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack

from sb3_ppo_variants.arguments.rules import COUNT, FLAG, FRACTION, check_arguments, integer
from sb3_ppo_variants.envs.adapter import GymnasiumVecEnv
from sb3_ppo_variants.envs.atari import VecClipReward, VecEpisodicLife
from sb3_ppo_variants.envs.making import ARGUMENTS, check_not_given, is_atari, seed_and_monitor, spec_of
from sb3_ppo_variants.errors import ArgumentError, installation

# The arguments of SB3's AtariWrapper: their defaults, and the rules for their values.
DEFAULTS = {name: argument.default for name, argument in signature(AtariWrapper).parameters.items() if name != "env"}
WRAPPER_RULES = {
    "noop_max": integer("an integer >= 0", lambda value: value >= 0),
    "frame_skip": COUNT,
    "screen_size": COUNT,
    "terminal_on_life_loss": FLAG,
    "clip_reward": FLAG,
    "action_repeat_probability": FRACTION,
}
ONE_FRAME = "env_kwargs={'frameskip': 1}"
# Defaults of AtariEnv, for ids that do not set these arguments.
GAME_DEFAULTS = {"frameskip": 4, "repeat_action_probability": 0.25}

# The arguments of AtariVectorEnv: those that env_kwargs may contain, and what to use instead of the others.
GAME = (
    "frameskip",
    "repeat_action_probability",
    "full_action_space",
    "continuous",
    "continuous_action_threshold",
    "max_num_frames_per_episode",
    "num_threads",
    "thread_affinity_offset",
    "use_fire_reset",
)
DECIDED = {
    "game": "env_id",
    "num_envs": "n_envs",
    "batch_size": "n_envs",
    "stack_num": "n_stack",
    "noop_max": "wrapper_kwargs['noop_max']",
    "maxpool": "wrapper_kwargs['frame_skip']",
    "img_height": "wrapper_kwargs['screen_size']",
    "img_width": "wrapper_kwargs['screen_size']",
    "episodic_life": "wrapper_kwargs['terminal_on_life_loss']",
    "life_loss_info": "wrapper_kwargs['terminal_on_life_loss']",
    "reward_clipping": "wrapper_kwargs['clip_reward']",
}


def make_ale_vec_env(
    env_id: str,
    n_envs: int = 1,
    seed: int | None = None,
    monitor_dir: str | None = None,
    wrapper_kwargs: dict[str, Any] | None = None,
    env_kwargs: dict[str, Any] | None = None,
    monitor_kwargs: dict[str, Any] | None = None,
    n_stack: int = 4,
) -> VecEnv:
    """Create Atari games as SB3's ``make_atari_env`` and ``VecFrameStack`` do, but with ALE's ``AtariVectorEnv``.

    The spaces are the same, so you can train a model with one and evaluate it with the other. The documentation lists
    the differences.

    :param env_id: id of a game, such as ``"BreakoutNoFrameskip-v4"``; prefix it with ``module:`` if importing that
        module registers it
    :param n_envs: number of games, >= 1
    :param seed: seed for the first reset
    :param monitor_dir: folder for the monitor file; ``None`` writes no file. In either case, infos contain episode
        statistics, which cover whole games and rewards before clipping
    :param wrapper_kwargs: arguments of SB3's ``AtariWrapper``
    :param env_kwargs: arguments of the game: ``frameskip``, ``repeat_action_probability``, ``full_action_space``,
        ``continuous``, ``continuous_action_threshold`` and ``max_num_frames_per_episode``, and of ``AtariVectorEnv``:
        ``num_threads``, ``thread_affinity_offset`` and ``use_fire_reset``
    :param monitor_kwargs: further arguments of ``VecMonitor``
    :param n_stack: number of frames stacked along the last dimension of an observation, >= 1
    :raises ArgumentError: if an argument has a value that is not allowed, the game is unknown, or frames would be
        skipped twice
    """
    check_arguments({"n_envs": n_envs, "seed": seed, "n_stack": n_stack}, ARGUMENTS)
    wrapper = _wrapper_arguments(wrapper_kwargs or {})
    env = _channels_last(_atari_vector_env(env_id, n_envs, wrapper, env_kwargs or {}), wrapper["screen_size"])
    venv: VecEnv = seed_and_monitor(GymnasiumVecEnv(env), seed, monitor_dir, monitor_kwargs)
    if wrapper["terminal_on_life_loss"]:
        venv = VecEpisodicLife(venv)
    if wrapper["clip_reward"]:
        venv = VecClipReward(venv)
    return VecFrameStack(venv, n_stack) if n_stack > 1 else venv


def _wrapper_arguments(wrapper_kwargs: dict[str, Any]) -> dict[str, Any]:
    if wrapper_kwargs.keys() - WRAPPER_RULES:
        raise ArgumentError(f"wrapper_kwargs={wrapper_kwargs} may contain only {', '.join(WRAPPER_RULES)}")
    check_arguments(wrapper_kwargs, WRAPPER_RULES)
    return {**DEFAULTS, **wrapper_kwargs}


def check_frame_skip(env_id: str, frame_skip: int = 4, env_kwargs: dict[str, Any] | None = None) -> None:
    """Check that an Atari game and its wrapper do not both skip frames.

    :param env_id: id of the game
    :param frame_skip: frames per action in the wrapper, such as SB3's ``AtariWrapper``
    :param env_kwargs: arguments of the game
    :raises ArgumentError: if both skip frames (the message says what to use instead), or if there is no such game
    """
    env_kwargs = env_kwargs or {}
    spec = _spec(env_id)
    inside = {**GAME_DEFAULTS, **spec.kwargs, **env_kwargs}["frameskip"]
    if frame_skip > 1 and inside != 1:
        instead = ONE_FRAME if "frameskip" in env_kwargs else _without_frame_skip(spec)
        game = f"env_id={env_id!r} with env_kwargs={env_kwargs}" if env_kwargs else f"env_id={env_id!r}"
        raise ArgumentError(f"{game} skips {inside} frames, and the wrapper skips {frame_skip} again: use {instead}")


def _without_frame_skip(spec: EnvSpec) -> str:
    """Return how to create the game without frame skipping, for a message. Not every game has an id for that."""
    other = f"{spec.name}NoFrameskip-v4"
    return f"'{other}', or {ONE_FRAME}" if other in gym.registry else ONE_FRAME


def _spec(env_id: str) -> EnvSpec:
    try:
        import ale_py
    except ImportError as error:
        raise ImportError(f"Atari games need ALE: {installation('environments')}") from error
    gym.register_envs(ale_py)
    try:
        spec = spec_of(env_id)
    except (gym.error.Error, ImportError) as error:
        raise ArgumentError(f"env_id={env_id!r} is not a registered game: {error}") from error
    if not is_atari(spec):
        raise ArgumentError(f"env_id={env_id!r} is not an Atari game, such as 'BreakoutNoFrameskip-v4'")
    return spec


def _atari_vector_env(env_id: str, n_envs: int, wrapper: dict[str, Any], env_kwargs: dict[str, Any]) -> VectorEnv:
    check_not_given(env_kwargs, DECIDED)
    if env_kwargs.keys() - GAME:
        raise ArgumentError(f"env_kwargs={env_kwargs} may contain only {', '.join(GAME)}")
    check_frame_skip(env_id, wrapper["frame_skip"], env_kwargs)
    from ale_py.vector_env import AtariVectorEnv

    spec = _spec(env_id)
    game = {**GAME_DEFAULTS, **spec.kwargs, **env_kwargs}
    skip_in_game = game.pop("frameskip")
    if not isinstance(skip_in_game, int):
        raise ArgumentError(f"env_id={env_id!r} has no fixed frameskip: use {_without_frame_skip(spec)}")
    if wrapper["action_repeat_probability"] > 0:
        game["repeat_action_probability"] = wrapper["action_repeat_probability"]
    env = AtariVectorEnv(
        num_envs=n_envs,
        frameskip=skip_in_game * wrapper["frame_skip"],
        maxpool=wrapper["frame_skip"] > 1,
        # AtariVectorEnv takes fewer than noop_max no-ops, and counts the FIRE at the start as one of them.
        noop_max=wrapper["noop_max"] + 1,
        img_height=wrapper["screen_size"],
        img_width=wrapper["screen_size"],
        # Wrappers outside the monitor handle lives and rewards; episodic_life would begin a new game.
        episodic_life=False,
        reward_clipping=False,
        grayscale=True,
        stack_num=1,
        # SAME_STEP would lose the info of the last step, including its lives.
        autoreset_mode=AutoresetMode.NEXT_STEP,
        **game,
    )
    env.spec = spec
    return env


def _channels_last(env: VectorEnv, size: int) -> VectorEnv:
    """Put the single channel of greyscale frames last, as SB3's ``WarpFrame`` does."""
    space = spaces.Box(0, 255, (size, size, 1), np.uint8)
    return TransformObservation(env, lambda frames: frames.reshape(-1, size, size, 1), single_observation_space=space)
