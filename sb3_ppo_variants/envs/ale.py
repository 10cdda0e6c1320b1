"""Atari games in the vector environment of the Arcade Learning Environment (ALE), which steps them in threads."""

from inspect import signature
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv, VectorObservationWrapper
from gymnasium.vector.utils import batch_space
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack

from sb3_ppo_variants.arguments.rules import COUNT, FLAG, FRACTION, RULES, check_arguments, integer
from sb3_ppo_variants.envs.adapter import GymnasiumVecEnv
from sb3_ppo_variants.envs.atari import VecClipReward, VecEpisodicLife
from sb3_ppo_variants.envs.ids import is_atari, spec_of
from sb3_ppo_variants.envs.monitor import monitored
from sb3_ppo_variants.errors import refuse

# The arguments of SB3's AtariWrapper with its defaults, and the values that they may have.
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
# AtariEnv's, of ids that do not say.
GAME_DEFAULTS = {"frameskip": 4, "repeat_action_probability": 0.25}

# What env_kwargs may have, and what decides over the other arguments of AtariVectorEnv.
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
    """Do what SB3's ``make_atari_env`` and ``VecFrameStack`` do, over ALE's ``AtariVectorEnv``.

    Spaces are the same, so that a model can be trained with the one and evaluated with the other. From the same state
    of the emulator, the same actions give the same rewards, lives, ends of episodes and episode returns. What differs:

    - A game begins with up to ``noop_max`` frames, of which the last one is FIRE in games that have this action, and
      up to all others no-ops. SB3 takes 1 to ``noop_max`` no-ops, then FIRE and the third action for ``frame_skip``
      frames each.
    - After a lost life the game goes on with the agent's own action. SB3 takes a no-op first, and FIRE and the third
      action in games that have FIRE.
    - The emulator makes grey pictures, and scales them, by itself, with pixels that differ a little.
    - The length of an episode in ``info["episode"]`` is in steps of the agent, not in frames.
    - A limit of frames counts them from the agent's first step on.
    - ``reset`` begins new games, also after a lost life.
    - ``action_repeat_probability`` takes the place of the game's own, if it is not 0. SB3 has sticky actions of both.

    :param env_id: id of a game, such as ``"BreakoutNoFrameskip-v4"``, after ``module:`` if importing the module
        registers it
    :param n_envs: number of games, >= 1
    :param seed: seed for the first reset
    :param monitor_dir: folder for the monitor file; ``None`` writes none. There are episode statistics in either case,
        of whole games and of rewards before clipping
    :param wrapper_kwargs: arguments of SB3's ``AtariWrapper``
    :param env_kwargs: arguments of the game: ``frameskip``, ``repeat_action_probability``, ``full_action_space``,
        ``continuous``, ``continuous_action_threshold`` and ``max_num_frames_per_episode``, and of ``AtariVectorEnv``:
        ``num_threads``, ``thread_affinity_offset`` and ``use_fire_reset``
    :param monitor_kwargs: further arguments of ``VecMonitor``
    :param n_stack: number of frames in an observation, >= 1, which are its last dimension
    :raises ArgumentError: if an argument has a value that is not allowed, the game is unknown, or frames would be
        skipped twice
    """
    for name, count in (("n_envs", n_envs), ("n_stack", n_stack)):
        COUNT.check(name, count)
    RULES["seed"].check("seed", seed)
    wrapper = {**DEFAULTS, **(wrapper_kwargs or {})}
    if wrapper.keys() != WRAPPER_RULES.keys():
        refuse("wrapper_kwargs", wrapper_kwargs, f"some of {', '.join(WRAPPER_RULES)}")
    check_arguments(wrapper, WRAPPER_RULES)
    env = _atari_vector_env(env_id, n_envs, wrapper, env_kwargs or {})
    venv: VecEnv = GymnasiumVecEnv(_ChannelsLast(env))
    venv.seed(seed)
    venv = monitored(venv, monitor_dir, 0, monitor_kwargs)
    if wrapper["terminal_on_life_loss"]:
        venv = VecEpisodicLife(venv)
    if wrapper["clip_reward"]:
        venv = VecClipReward(venv)
    return VecFrameStack(venv, n_stack) if n_stack > 1 else venv


def check_frame_skip(env_id: str, frame_skip: int = 4, env_kwargs: dict[str, Any] | None = None) -> None:
    """Check that frames of an Atari game are not skipped by the game and by a wrapper.

    :param env_id: id of the game
    :param frame_skip: frames for each action in the wrapper, such as SB3's ``AtariWrapper``
    :param env_kwargs: arguments of the game
    :raises ArgumentError: if they are, naming the id that does not skip, or if there is no such game
    """
    env_kwargs = env_kwargs or {}
    spec = _spec(env_id)
    inside = {**GAME_DEFAULTS, **spec.kwargs, **env_kwargs}["frameskip"]
    if frame_skip > 1 and inside != 1:
        reason = f", since the wrapper skips {frame_skip} frames and the game {inside} itself"
        if "frameskip" in env_kwargs:
            refuse("env_kwargs", env_kwargs, ONE_FRAME + reason)
        refuse("env_id", env_id, _without_frame_skip(spec) + reason)


def _without_frame_skip(spec: EnvSpec) -> str:
    """What skips no frames in the place of a game that does. Not every game has an id for it."""
    other = f"{spec.name}NoFrameskip-v4"
    return f"'{other}', or {ONE_FRAME}" if other in gym.registry else ONE_FRAME


def _spec(env_id: str) -> EnvSpec:
    try:
        import ale_py
    except ImportError as error:
        raise ImportError("Atari games need ALE: pip install 'sb3_ppo_variants[environments]'") from error
    gym.register_envs(ale_py)
    allowed = "the id of an Atari game, such as 'BreakoutNoFrameskip-v4'"
    try:
        spec = spec_of(env_id)
    except (gym.error.Error, ImportError) as error:
        refuse("env_id", env_id, f"{allowed}. {error}")
    if not is_atari(spec):
        refuse("env_id", env_id, allowed)
    return spec


def _check_env_kwargs(env_kwargs: dict[str, Any]) -> None:
    for name in env_kwargs:
        if name in DECIDED:
            refuse("env_kwargs", env_kwargs, f"without {name!r}, which {DECIDED[name]} decides")
        if name not in GAME:
            refuse("env_kwargs", env_kwargs, f"some of {', '.join(GAME)}")


def _atari_vector_env(env_id: str, n_envs: int, wrapper: dict[str, Any], env_kwargs: dict[str, Any]) -> VectorEnv:
    _check_env_kwargs(env_kwargs)
    check_frame_skip(env_id, wrapper["frame_skip"], env_kwargs)
    from ale_py.vector_env import AtariVectorEnv

    spec = _spec(env_id)
    game = {**GAME_DEFAULTS, **spec.kwargs, **env_kwargs}
    skip_in_game = game.pop("frameskip")
    if not isinstance(skip_in_game, int):
        refuse("env_id", env_id, f"one with a fixed frameskip, such as {_without_frame_skip(spec)}")
    if wrapper["action_repeat_probability"] > 0:
        game["repeat_action_probability"] = wrapper["action_repeat_probability"]
    env = AtariVectorEnv(
        num_envs=n_envs,
        frameskip=skip_in_game * wrapper["frame_skip"],
        maxpool=wrapper["frame_skip"] > 1,
        # It counts the FIRE at the beginning too, and stops one before.
        noop_max=wrapper["noop_max"] + 1,
        img_height=wrapper["screen_size"],
        img_width=wrapper["screen_size"],
        # Lives and rewards are dealt with outside of the monitor; episodic_life would begin a new game.
        episodic_life=False,
        reward_clipping=False,
        grayscale=True,
        stack_num=1,
        # In SAME_STEP it does not tell the info of the last step, with its lives.
        autoreset_mode=AutoresetMode.NEXT_STEP,
        **game,
    )
    env.spec = spec
    return env


class _ChannelsLast(VectorObservationWrapper):
    """Grey pictures with their one channel last, as SB3's ``WarpFrame`` makes them."""

    def __init__(self, env: VectorEnv):
        super().__init__(env)
        _, height, width = env.single_observation_space.shape or ()
        self.single_observation_space = spaces.Box(0, 255, (height, width, 1), np.uint8)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def observations(self, observations: np.ndarray) -> np.ndarray:
        """Move the channel; see gymnasium."""
        return observations.reshape(len(observations), *observations.shape[2:], 1)
