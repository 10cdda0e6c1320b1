"""Functions that create vectorised environments for an id: the fastest, gymnasium's, and ALE's."""

import os
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import TransformObservation
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecMonitor

from sb3_ppo_variants.arguments import COUNT, FLAG, FRACTION, RULES, check_arguments, instance, integer
from sb3_ppo_variants.envs.adapter import GymnasiumVecEnv, VecClipReward, VecEpisodicLife
from sb3_ppo_variants.envs.masks import own_space, random_actions
from sb3_ppo_variants.envs.mujoco.batch import make_mujoco_vec_env
from sb3_ppo_variants.envs.mujoco.tasks import has_batches
from sb3_ppo_variants.envs.subproc import SafeSubprocVecEnv, count_cores
from sb3_ppo_variants.errors import ArgumentError, installation, refuse

Arguments: TypeAlias = dict[str, Any]
MAKING_RULES = {
    "env_id": instance("the id of a registered environment", str),
    "n_envs": COUNT,
    "seed": RULES["seed"],
    "n_stack": COUNT,
    "exact": FLAG,
    "verbose": RULES["verbose"],
}
# What a step costs more in two workers than in this process: messages, and waking up with cold caches. With 16
# environments of LunarLander, results/stepping-lunarlander.json has a millisecond for a step either way.
SECONDS_FOR_MESSAGES = 5e-4
# Use workers only if they are expected to step this many times as fast.
WORTH_WORKERS = 1.25
# A single environment is measured for at most this many steps, and about this many seconds.
MOST_STEPS, MOST_SECONDS = 200, 0.5

# The arguments of SB3's AtariWrapper: their defaults, and the rules for their values.
DEFAULTS = {name: argument.default for name, argument in signature(AtariWrapper).parameters.items() if name != "env"}
WRAPPER_RULES = {
    "noop_max": integer(0),
    "frame_skip": COUNT,
    "screen_size": COUNT,
    "terminal_on_life_loss": FLAG,
    "clip_reward": FLAG,
    "action_repeat_probability": FRACTION,
}
# Defaults of AtariEnv, for ids that do not set these arguments.
GAME_DEFAULTS = {"frameskip": 4, "repeat_action_probability": 0.25}


def make_fast_vec_env(
    env_id: str,
    n_envs: int = 1,
    seed: int | None = None,
    exact: bool = False,
    monitor_dir: str | None = None,
    wrapper_class: Callable[[gym.Env], gym.Env] | None = None,
    env_kwargs: Arguments | None = None,
    monitor_kwargs: Arguments | None = None,
    verbose: int = 1,
) -> VecEnv:
    """Create environments as SB3's ``make_vec_env`` does, in the way that steps fastest.

    It takes the first of these that is installed and fits: MuJoCo's batches, of two environments or more; ALE's vector
    environment; worker processes, if steps take long enough; and ``DummyVecEnv``. Wrapped environments only use the
    last two, whose results are the same. To choose between these, it measures one for at most half a second.

    Atari games come as from SB3's ``make_atari_env`` with four stacked frames, unless there is a ``wrapper_class``.
    Environments have no ``render_mode`` unless ``env_kwargs`` contains one: ``make_vec_env`` asks for pictures, for
    which some environments compute more in every step.

    :param env_id: id of a registered environment, prefixed with ``module:`` if importing that module registers it
    :param n_envs: number of environments, >= 1
    :param seed: seed of the first environment, incremented for each further one
    :param exact: use only what gives the same as ``gym.make`` in a ``DummyVecEnv``, bit for bit. This leaves out ALE's
        vector environment
    :param monitor_dir: folder for monitor files; ``None`` writes none. In either case, infos contain episode statistics
    :param wrapper_class: wrapper around each environment
    :param env_kwargs: arguments of ``gym.make``
    :param monitor_kwargs: arguments of ``Monitor``, or of ``VecMonitor`` with ALE's vector environment
    :param verbose: 0 prints nothing, 1 prints what was chosen and why
    :raises ArgumentError: if an argument has a value that is not allowed, or an Atari game would skip frames twice
    :raises gymnasium.error.Error: if there is no such id
    """
    given = {"env_id": env_id, "n_envs": n_envs, "seed": seed, "exact": exact, "verbose": verbose}
    check_arguments(given, MAKING_RULES)
    if find_spec("ale_py") is not None:
        register_games()
    spec = spec_of(env_id)
    common: Arguments = {"n_envs": n_envs, "seed": seed, "monitor_dir": monitor_dir, "monitor_kwargs": monitor_kwargs}
    is_plain, own_kwargs = wrapper_class is None, env_kwargs or {}
    make: Callable[..., VecEnv]
    # A batch of one costs more than it saves, as `python -m benchmarks stepping --train --n-envs 1` shows.
    if is_plain and n_envs > 1 and has_batches(spec, own_kwargs):
        name, why, make = "make_mujoco_vec_env", "MuJoCo's batches, bit for bit", partial(make_mujoco_vec_env, spec.id)
    elif is_plain and not exact and is_atari(spec):
        name, why, make = "make_ale_vec_env", "ALE's vector environment", partial(make_ale_vec_env, spec.id)
    else:
        name, why, make = _one_by_one(spec, n_envs, wrapper_class, own_kwargs)
    if verbose:
        print(f"make_fast_vec_env: {name} for {n_envs} x {spec.id}: {why}", flush=True)
    return make(env_kwargs=env_kwargs, **common)


def _one_by_one(
    spec: EnvSpec, n_envs: int, wrapper_class: Callable[[gym.Env], gym.Env] | None, env_kwargs: Arguments
) -> tuple[str, str, Callable[..., VecEnv]]:
    """Choose between worker processes and this process: the name, the reason, and a function that makes them."""
    stacked = is_atari(spec) and wrapper_class is None
    if is_atari(spec) and wrapper_class in (None, AtariWrapper):
        check_frame_skip(spec.id, env_kwargs=env_kwargs)
        wrapper_class = AtariWrapper
    # A specification, because environments that a script has registered are unknown in other processes.
    make_env = partial(gym.make, spec)
    n_workers = min(n_envs, count_cores())
    pays, why = False, "one environment, or one core"
    if n_workers > 1:
        env = make_env(**env_kwargs)
        seconds = seconds_per_step(env if wrapper_class is None else wrapper_class(env))
        alone, shared = n_envs * seconds, -(-n_envs // n_workers) * seconds + SECONDS_FOR_MESSAGES
        pays = alone > WORTH_WORKERS * shared
        enough = f"enough for {n_workers} processes" if pays else "too little for processes"
        why = f"a step takes {1e6 * seconds:.0f} microseconds, {enough}"
    name, cls = ("SafeSubprocVecEnv", SafeSubprocVecEnv) if pays else ("DummyVecEnv", DummyVecEnv)
    make = partial(make_vec_env, make_env, wrapper_class=wrapper_class, vec_env_cls=cls)
    if stacked:
        return f"{name} of make_atari_env", why, lambda **arguments: VecFrameStack(make(**arguments), 4)
    return name, why, make


def seconds_per_step(env: gym.Env) -> float:
    """Measure the median of the seconds that a step of an environment takes, and close it.

    The median hardly depends on what else runs on the machine, and leaves out the resets.
    """
    as_one = DummyVecEnv([lambda: env])
    as_one.seed(0)
    as_one.reset()
    space = own_space(as_one)
    space.seed(0)
    seconds: list[float] = []
    end = time.perf_counter() + MOST_SECONDS
    while len(seconds) < MOST_STEPS and time.perf_counter() < end:
        actions = random_actions(as_one, space)
        start = time.perf_counter()
        as_one.step(actions)
        seconds.append(time.perf_counter() - start)
    as_one.close()
    return float(np.median(seconds))


def make_ale_vec_env(
    env_id: str,
    n_envs: int = 1,
    seed: int | None = None,
    monitor_dir: str | None = None,
    wrapper_kwargs: Arguments | None = None,
    env_kwargs: Arguments | None = None,
    monitor_kwargs: Arguments | None = None,
    n_stack: int = 4,
) -> VecEnv:
    """Create Atari games as SB3's ``make_atari_env`` and ``VecFrameStack`` do, but with ALE's ``AtariVectorEnv``.

    The spaces are the same, so you can train a model with one and evaluate it with the other. Given the same emulator
    state, the same actions lead to the same rewards, lives, episode ends and episode returns. The documentation lists
    the differences, such as what happens at the beginning of a game and after a lost life.

    :param env_id: id of a game, such as ``"BreakoutNoFrameskip-v4"``; prefix it with ``module:`` if importing that
        module registers it
    :param n_envs: number of games, >= 1
    :param seed: seed for the first reset
    :param monitor_dir: folder for the monitor file; ``None`` writes no file. In either case, infos contain episode
        statistics, which cover whole games and rewards before clipping
    :param wrapper_kwargs: arguments of SB3's ``AtariWrapper``
    :param env_kwargs: arguments of ``AtariVectorEnv`` that do not follow from the others, such as ``frameskip``,
        ``repeat_action_probability``, ``max_num_frames_per_episode`` and ``num_threads``
    :param monitor_kwargs: further arguments of ``VecMonitor``
    :param n_stack: number of frames stacked along the last dimension of an observation, >= 1
    :raises ArgumentError: if an argument has a value that is not allowed, the game is unknown, or frames would be
        skipped twice
    """
    check_arguments({"n_envs": n_envs, "seed": seed, "n_stack": n_stack}, MAKING_RULES)
    wrapper = {**DEFAULTS, **(wrapper_kwargs or {})}
    if wrapper.keys() - WRAPPER_RULES:
        refuse("wrapper_kwargs", wrapper_kwargs, f"only {', '.join(WRAPPER_RULES)}")
    check_arguments(wrapper, WRAPPER_RULES)
    spec, game = check_frame_skip(env_id, wrapper["frame_skip"], env_kwargs)
    from ale_py.vector_env import AtariVectorEnv

    if not isinstance(game["frameskip"], int):
        raise ArgumentError(f"env_id={env_id!r} has no fixed frameskip: use {_without_frame_skip(spec)}")
    game["frameskip"] *= wrapper["frame_skip"]
    if wrapper["action_repeat_probability"] > 0:
        game["repeat_action_probability"] = wrapper["action_repeat_probability"]
    size = wrapper["screen_size"]
    games = AtariVectorEnv(
        num_envs=n_envs,
        maxpool=wrapper["frame_skip"] > 1,
        # AtariVectorEnv takes fewer than noop_max no-ops, and counts the FIRE at the start as one of them.
        noop_max=wrapper["noop_max"] + 1,
        img_height=size,
        img_width=size,
        # Wrappers outside the monitor handle lives and rewards; episodic_life would begin a new game.
        episodic_life=False,
        reward_clipping=False,
        grayscale=True,
        stack_num=1,
        # SAME_STEP would lose the info of the last step, including its lives.
        autoreset_mode=AutoresetMode.NEXT_STEP,
        **game,
    )
    games.spec = spec
    # The single channel of greyscale frames is last, as SB3's WarpFrame has it.
    pictures = {"single_observation_space": spaces.Box(0, 255, (size, size, 1), np.uint8)}
    env = GymnasiumVecEnv(TransformObservation(games, lambda frames: frames.reshape(-1, size, size, 1), **pictures))
    env.seed(seed)
    if seed is not None:
        env.action_space.seed(seed)
    venv: VecEnv = VecMonitor(env, monitor_dir and os.path.join(monitor_dir, "0"), **(monitor_kwargs or {}))
    if wrapper["terminal_on_life_loss"]:
        venv = VecEpisodicLife(venv)
    if wrapper["clip_reward"]:
        venv = VecClipReward(venv)
    return VecFrameStack(venv, n_stack) if n_stack > 1 else venv


def check_frame_skip(
    env_id: str, frame_skip: int = 4, env_kwargs: Arguments | None = None
) -> tuple[EnvSpec, Arguments]:
    """Check that an Atari game and its wrapper do not both skip frames.

    :param frame_skip: frames per action in the wrapper, such as SB3's ``AtariWrapper``
    :param env_kwargs: arguments of the game
    :return: the specification of the game, and all its arguments
    :raises ArgumentError: if both skip frames (the message says what to use instead), or if there is no such game
    """
    register_games()
    try:
        spec = spec_of(env_id)
    except (gym.error.Error, ImportError) as error:
        raise ArgumentError(f"env_id={env_id!r} is not a registered game: {error}") from error
    if not is_atari(spec):
        raise ArgumentError(f"env_id={env_id!r} is not an Atari game, such as 'BreakoutNoFrameskip-v4'")
    arguments = {**GAME_DEFAULTS, **spec.kwargs, **(env_kwargs or {})}
    if frame_skip > 1 and (inside := arguments["frameskip"]) != 1:
        game = f"env_id={env_id!r}" + (f" with env_kwargs={env_kwargs}" if env_kwargs else "")
        problem = f"{game} skips {inside} frames, and the wrapper skips {frame_skip} again"
        raise ArgumentError(f"{problem}: use {_without_frame_skip(spec)}")
    return spec, arguments


def _without_frame_skip(spec: EnvSpec) -> str:
    """Say how to create the game without frame skipping, for a message. Not every game has an id for that."""
    other = f"{spec.name}NoFrameskip-v4"
    return (f"'{other}', or " if other in gym.registry else "") + "env_kwargs={'frameskip': 1}"


def register_games() -> None:
    """:raises ImportError: if the Arcade Learning Environment is not installed"""
    try:
        import ale_py
    except ImportError as error:
        raise ImportError(f"Atari games need ALE: {installation('environments')}") from error
    gym.register_envs(ale_py)


def spec_of(env_id: str) -> EnvSpec:
    """Find the specification that ``gym.make`` uses for an id, which is that of the latest version if it names none.

    :param env_id: the id, prefixed with ``module:`` if importing that module registers it
    :raises gymnasium.error.Error: if there is no such id
    :raises ImportError: if there is no such module
    """
    module, _, name = env_id.rpartition(":")
    if module:
        import_module(module)
    versions = [spec for spec in gym.registry.values() if spec.id == f"{name}-v{spec.version}"]
    return max(versions, key=lambda spec: spec.version or 0) if versions else gym.spec(name)


def is_atari(spec: EnvSpec) -> bool:
    """Check whether a specification is that of an Atari game of the Arcade Learning Environment."""
    return str(spec.entry_point).startswith("ale_py")
