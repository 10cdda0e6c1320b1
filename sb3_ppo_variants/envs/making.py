"""Functions that create gymnasium's and ALE's vector environments, and wrappers for them."""

import os
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import TransformObservation
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecFrameStack, VecMonitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_ppo_variants.arguments import COUNT, FLAG, FRACTION, RULES, check_arguments, integer, one_of
from sb3_ppo_variants.envs.adapter import GymnasiumVecEnv, Infos, take_rows
from sb3_ppo_variants.errors import ArgumentError, installation, refuse

Arguments: TypeAlias = dict[str, Any]
VECTOR_CLASSES: dict[str, Callable[..., VectorEnv]] = {"sync": SyncVectorEnv, "async": AsyncVectorEnv}
MAKING_RULES = {
    "n_envs": COUNT,
    "seed": RULES["seed"],
    "n_stack": COUNT,
    "vectorization_mode": one_of(*VECTOR_CLASSES),
}

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

# The arguments of AtariVectorEnv that env_kwargs may contain. The others follow from those of make_ale_vec_env.
GAME_ARGUMENTS = (
    *("frameskip", "repeat_action_probability", "full_action_space", "continuous", "continuous_action_threshold"),
    *("max_num_frames_per_episode", "num_threads", "thread_affinity_offset", "use_fire_reset"),
)


def make_gymnasium_vec_env(
    env_id: str | Callable[..., gym.Env],
    n_envs: int = 1,
    seed: int | None = None,
    vectorization_mode: str = "sync",
    vec_env_kwargs: Arguments | None = None,
    **arguments: Any,
) -> VecEnv:
    """Create environments as SB3's ``make_vec_env`` does, but in one of gymnasium's vector environments.

    :param env_id: id of the environment, or a function that creates it
    :param n_envs: number of environments, >= 1
    :param seed: seed of the first environment, incremented for each further one
    :param vectorization_mode: ``"sync"`` steps the environments one after the other in this process, ``"async"`` steps
        each in its own process
    :param vec_env_kwargs: arguments of ``SyncVectorEnv`` or ``AsyncVectorEnv``
    :param arguments: further arguments of ``make_vec_env``, such as ``wrapper_class`` and ``monitor_dir``
    :raises ArgumentError: if a value is not allowed
    :raises gymnasium.error.Error: if there is no such id
    """
    check_arguments({"n_envs": n_envs, "seed": seed, "vectorization_mode": vectorization_mode}, MAKING_RULES)
    # In SAME_STEP mode, a reset needs no extra message to the workers.
    of_vector = {"autoreset_mode": AutoresetMode.SAME_STEP, **(vec_env_kwargs or {})}

    def adapted(env_fns: list[Callable[[], gym.Env]]) -> GymnasiumVecEnv:
        return GymnasiumVecEnv(VECTOR_CLASSES[vectorization_mode](env_fns, **of_vector))

    make: Any = adapted
    return make_vec_env(env_id, n_envs, seed, vec_env_cls=make, **arguments)


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
    :param env_kwargs: arguments of the game: ``frameskip``, ``repeat_action_probability``, ``full_action_space``,
        ``continuous``, ``continuous_action_threshold`` and ``max_num_frames_per_episode``, and of ``AtariVectorEnv``:
        ``num_threads``, ``thread_affinity_offset`` and ``use_fire_reset``
    :param monitor_kwargs: further arguments of ``VecMonitor``
    :param n_stack: number of frames stacked along the last dimension of an observation, >= 1
    :raises ArgumentError: if an argument has a value that is not allowed, the game is unknown, or frames would be
        skipped twice
    """
    check_arguments({"n_envs": n_envs, "seed": seed, "n_stack": n_stack}, MAKING_RULES)
    if (wrapper_kwargs or {}).keys() - WRAPPER_RULES:
        refuse("wrapper_kwargs", wrapper_kwargs, f"only {', '.join(WRAPPER_RULES)}")
    check_arguments(wrapper_kwargs or {}, WRAPPER_RULES)
    wrapper = {**DEFAULTS, **(wrapper_kwargs or {})}
    size = wrapper["screen_size"]
    # The single channel of greyscale frames is last, as SB3's WarpFrame has it.
    env = TransformObservation(
        _atari_vector_env(env_id, n_envs, wrapper, env_kwargs or {}),
        lambda frames: frames.reshape(-1, size, size, 1),
        single_observation_space=spaces.Box(0, 255, (size, size, 1), np.uint8),
    )
    venv: VecEnv = seed_and_monitor(GymnasiumVecEnv(env), seed, monitor_dir, monitor_kwargs)
    if wrapper["terminal_on_life_loss"]:
        venv = VecEpisodicLife(venv)
    if wrapper["clip_reward"]:
        venv = VecClipReward(venv)
    return VecFrameStack(venv, n_stack) if n_stack > 1 else venv


def check_frame_skip(env_id: str, frame_skip: int = 4, env_kwargs: Arguments | None = None) -> None:
    """Check that an Atari game and its wrapper do not both skip frames.

    :param frame_skip: frames per action in the wrapper, such as SB3's ``AtariWrapper``
    :param env_kwargs: arguments of the game
    :raises ArgumentError: if both skip frames (the message says what to use instead), or if there is no such game
    """
    spec = _spec(env_id)
    inside = {**GAME_DEFAULTS, **spec.kwargs, **(env_kwargs or {})}["frameskip"]
    if frame_skip > 1 and inside != 1:
        game = f"env_id={env_id!r}" + (f" with env_kwargs={env_kwargs}" if env_kwargs else "")
        problem = f"{game} skips {inside} frames, and the wrapper skips {frame_skip} again"
        raise ArgumentError(f"{problem}: use {_without_frame_skip(spec)}")


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


def _spec(env_id: str) -> EnvSpec:
    register_games()
    try:
        spec = spec_of(env_id)
    except (gym.error.Error, ImportError) as error:
        raise ArgumentError(f"env_id={env_id!r} is not a registered game: {error}") from error
    if not is_atari(spec):
        raise ArgumentError(f"env_id={env_id!r} is not an Atari game, such as 'BreakoutNoFrameskip-v4'")
    return spec


def _atari_vector_env(env_id: str, n_envs: int, wrapper: Arguments, env_kwargs: Arguments) -> VectorEnv:
    if env_kwargs.keys() - {*GAME_ARGUMENTS}:
        refuse("env_kwargs", env_kwargs, f"only {', '.join(GAME_ARGUMENTS)}; wrapper_kwargs decide about the rest")
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


def seed_and_monitor(venv: VecEnv, seed: int | None, folder: str | None, arguments: Arguments | None) -> VecMonitor:
    """Seed environments and wrap them in a ``VecMonitor``, which writes ``0.monitor.csv`` if there is a folder."""
    venv.seed(seed)
    if seed is not None:
        venv.action_space.seed(seed)
    return VecMonitor(venv, folder and os.path.join(folder, "0"), **(arguments or {}))


class ActionsAsDrawn(gym.Wrapper, RecordConstructorArgs):
    """Passes each action to the environment as the policy sampled it.

    SB3 clips actions to the bounds of ``env.action_space`` before the environment sees them, and requires finite
    bounds. This wrapper sets finite bounds that are too wide to clip anything: the largest values of the space's dtype.
    The environment then decides what to do with an action outside its own bounds. MuJoCo environments limit the torque,
    but compute the control cost from the unclipped action.

    Policies with ``squash_output=True``, and algorithms such as SAC, rescale actions to the bounds, so they cannot be
    used with this wrapper. To sample random actions, call ``env.own_action_space.sample()``.

    :param env: an environment with a ``Box`` of floating-point actions
    :raises ArgumentError: if ``env`` has a different action space
    """

    def __init__(self, env: gym.Env):
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        space = env.action_space
        if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            raise ArgumentError(
                f"ActionsAsDrawn needs a Box of floating-point actions, but the environment has {space}"
            )
        self.own_action_space = space
        widest = np.finfo(space.dtype).max
        self.action_space = spaces.Box(-widest, widest, space.shape, space.dtype.type)


class VecEpisodicLife(VecEnvWrapper):
    """Ends an episode when a life is lost, while the game continues, as SB3's ``EpisodicLifeEnv`` does.

    Wrap it around a ``VecMonitor``, so that its statistics cover whole games.

    :param venv: environments with ``lives`` in the info of every step and reset
    """

    def __init__(self, venv: VecEnv):
        super().__init__(venv)
        self._lives = np.zeros(self.num_envs, np.int64)

    def reset(self) -> VecEnvObs:
        """Reset all games, whether they are over or not.

        :raises ArgumentError: if an info has no ``lives``
        """
        observations = self.venv.reset()
        self._lives = self._lives_in(self.venv.unwrapped.reset_infos)
        return observations

    def _lives_in(self, infos: Infos) -> np.ndarray:
        if not all("lives" in info for info in infos):
            raise ArgumentError(f"venv={self.venv} must have 'lives' in the info of every step and reset")
        return np.array([info["lives"] for info in infos])

    def step_wait(self) -> VecEnvStepReturn:
        """Step all games; dones are also True where a life was lost.

        :raises ArgumentError: if an info has no ``lives``
        """
        observations, rewards, dones, infos = self.venv.step_wait()
        lives = self._lives_in(infos)
        # A game may continue for some frames with 0 lives, as Qbert does.
        lost = (lives > 0) & (lives < self._lives)
        for i in np.flatnonzero(lost).tolist():
            # Losing a life terminates the episode, even in a step in which a limit truncates it.
            infos[i]["TimeLimit.truncated"] = False
            if not dones[i]:
                infos[i]["terminal_observation"] = take_rows(observations, i)
        self._lives = lives
        if dones.any():
            self._lives = np.where(dones, self._lives_in(self.venv.unwrapped.reset_infos), lives)
        return observations, rewards, dones | lost, infos


class VecClipReward(VecEnvWrapper):
    """Clips rewards to {+1, 0, -1} by their sign, as SB3's ``ClipRewardEnv`` does.

    Wrap it around a ``VecMonitor``, so that its statistics are of unclipped rewards.
    """

    def reset(self) -> VecEnvObs:
        """Reset all environments."""
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        """Step all environments and clip the rewards."""
        observations, rewards, dones, infos = self.venv.step_wait()
        return observations, np.sign(rewards), dones, infos
