"""The fastest vectorised environments for an id, among those that are installed."""

import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack

from sb3_ppo_variants.arguments import FLAG, RULES, check_arguments, instance
from sb3_ppo_variants.envs.making import (
    MAKING_RULES,
    Arguments,
    check_frame_skip,
    is_atari,
    make_ale_vec_env,
    register_games,
    spec_of,
)
from sb3_ppo_variants.envs.masks import own_space, random_actions
from sb3_ppo_variants.envs.mujoco.batch import make_mujoco_vec_env
from sb3_ppo_variants.envs.mujoco.tasks import TASKS, arguments_of, is_gymnasiums
from sb3_ppo_variants.envs.subproc import SafeSubprocVecEnv, count_cores

WrapperClass = Callable[[gym.Env], gym.Env]
# What a step costs more in two workers than in this process: messages, and waking up with cold caches. With 16
# environments of LunarLander, results/stepping-lunarlander.json has a millisecond for a step either way.
SECONDS_FOR_MESSAGES = 5e-4
# Use workers only if they are expected to step this many times as fast.
WORTH_WORKERS = 1.25
ID = instance("the id of a registered environment", str)
# A single environment is measured for at most this many steps, and about this many seconds.
MOST_STEPS, MOST_SECONDS = 200, 0.5


def make_fast_vec_env(
    env_id: str,
    n_envs: int = 1,
    seed: int | None = None,
    exact: bool = False,
    monitor_dir: str | None = None,
    wrapper_class: WrapperClass | None = None,
    env_kwargs: Arguments | None = None,
    monitor_kwargs: Arguments | None = None,
    verbose: int = 1,
) -> VecEnv:
    """Create environments as SB3's ``make_vec_env`` does, in the way that steps fastest.

    It takes the first of these that is installed and fits: MuJoCo's batches, of two environments or more; ALE's vector
    environment; worker processes, if steps take long enough; and ``DummyVecEnv``. Wrapped environments are
    stepped one by one, so they only use the last two. To choose between these, it measures a single environment for at
    most half a second. Their results are the same.

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
    check_arguments(given, {**MAKING_RULES, "env_id": ID, "exact": FLAG, "verbose": RULES["verbose"]})
    if find_spec("ale_py") is not None:
        register_games()
    spec = spec_of(env_id)
    monitoring: Arguments = {"monitor_dir": monitor_dir, "monitor_kwargs": monitor_kwargs}
    common: Arguments = {"n_envs": n_envs, "seed": seed, "env_kwargs": env_kwargs, **monitoring}
    name, why, make = _choose(spec, exact, wrapper_class, common)
    if verbose:
        print(f"make_fast_vec_env: {name} for {n_envs} x {spec.id}: {why}", flush=True)
    return make()


Option = tuple[str, str, Callable[[], VecEnv]]


def _choose(spec: EnvSpec, exact: bool, wrapper_class: WrapperClass | None, common: Arguments) -> Option:
    """Choose a way to create the environments: its name, the reason, and a function."""
    is_plain = wrapper_class is None
    env_kwargs = common["env_kwargs"] or {}
    # A batch of one costs more than it saves, as `python -m benchmarks stepping --train --n-envs 1` shows.
    if is_plain and common["n_envs"] > 1 and _is_in_batches(spec, env_kwargs):
        return "make_mujoco_vec_env", "MuJoCo's batches, bit for bit", partial(make_mujoco_vec_env, spec.id, **common)
    if is_atari(spec):
        if is_plain and not exact:
            return "make_ale_vec_env", "ALE's vector environment", partial(make_ale_vec_env, spec.id, **common)
        if wrapper_class in (None, AtariWrapper):
            check_frame_skip(spec.id, env_kwargs=env_kwargs)
        if is_plain:
            name, why, make = _single(spec, AtariWrapper, common)
            return f"{name} of make_atari_env", why, lambda: VecFrameStack(make(), 4)
    return _single(spec, wrapper_class, common)


def _is_in_batches(spec: EnvSpec, env_kwargs: Arguments) -> bool:
    """Whether MuJoCo's batches are installed and can simulate an environment."""
    installed = find_spec("mujoco") is not None and find_spec("mujoco.batch") is not None
    if not installed or spec.id not in TASKS or not is_gymnasiums(spec):
        return False
    given = {name for name, value in env_kwargs.items() if (name, value) != ("render_mode", None)}
    return given <= arguments_of(spec)[1].keys()


def _single(spec: EnvSpec, wrapper_class: WrapperClass | None, common: Arguments) -> Option:
    """Choose between worker processes and this process."""
    # A specification, because environments that a script has registered are unknown in other processes.
    make_env = partial(gym.make, spec)
    make = partial(make_vec_env, make_env, wrapper_class=wrapper_class, **common)
    n_envs, n_workers = common["n_envs"], min(common["n_envs"], count_cores())
    if n_workers == 1:
        return "DummyVecEnv", "one environment, or one core", make
    env = make_env(**(common["env_kwargs"] or {}))
    seconds = seconds_per_step(env if wrapper_class is None else wrapper_class(env))
    alone, shared = n_envs * seconds, -(-n_envs // n_workers) * seconds + SECONDS_FOR_MESSAGES
    measured = f"a step takes {1e6 * seconds:.0f} microseconds"
    if alone > WORTH_WORKERS * shared:
        why = f"{measured}, enough for {n_workers} processes"
        return "SafeSubprocVecEnv", why, partial(make, vec_env_cls=SafeSubprocVecEnv)
    return "DummyVecEnv", f"{measured}, too little for processes", partial(make, vec_env_cls=DummyVecEnv)


def seconds_per_step(env: gym.Env) -> float:
    """Measure the median of the seconds that a step of an environment takes, and close it.

    The median hardly depends on what else runs on the machine, and leaves out the resets.
    """
    as_one = DummyVecEnv([lambda: env])  # Random actions keep to its masks.
    env.reset(seed=0)
    space = own_space(as_one)
    space.seed(0)
    seconds: list[float] = []
    end = time.perf_counter() + MOST_SECONDS
    while len(seconds) < MOST_STEPS and time.perf_counter() < end:
        action = random_actions(as_one, space)[0]
        start = time.perf_counter()
        _, _, terminated, truncated, _ = env.step(action)
        seconds.append(time.perf_counter() - start)
        if terminated or truncated:
            env.reset()
    env.close()
    return float(np.median(seconds))
