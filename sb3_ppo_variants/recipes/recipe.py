"""An algorithm, an environment and the hyperparameters that suit them."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import gymnasium as gym
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecNormalize

from sb3_ppo_variants.arguments.rules import COUNT
from sb3_ppo_variants.base import PPOBase
from sb3_ppo_variants.envs import check_frame_skip
from sb3_ppo_variants.envs.ids import is_atari, spec_of
from sb3_ppo_variants.errors import refuse
from sb3_ppo_variants.recipes.environments import Hyperparameters
from sb3_ppo_variants.variants import PPOAdaptiveKL, PPOClip, PPOFixedKL, PPOUnclipped

ALGORITHMS: dict[str, type[PPOBase]] = {
    "ppo_clip": PPOClip,
    "ppo_adaptive_kl": PPOAdaptiveKL,
    "ppo_fixed_kl": PPOFixedKL,
    "ppo_unclipped": PPOUnclipped,
}
# The hyperparameters that are no arguments of the algorithm, besides ``n_timesteps``.
ENVIRONMENT_KEYS = ("n_envs", "normalize", "env_wrapper", "frame_stack", "env_kwargs")

Wrapper = str | type[gym.Wrapper]


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters for an environment, sorted by what they are for.

    :param env_id: id of the environment
    :param algorithm: class of the algorithm
    :param arguments: the algorithm's arguments but ``env``, with schedules made
    :param n_timesteps: environment steps to train for
    :param n_envs: environments side by side
    :param normalize: arguments of ``VecNormalize``, ``None`` for no normalisation
    :param frame_stack: frames in an observation
    :param env_wrapper: wrappers of each environment, with the class or its import path, or that and its arguments in a
        dict
    :param env_kwargs: arguments of the environment
    """

    env_id: str
    algorithm: type[BaseAlgorithm]
    arguments: Hyperparameters
    n_timesteps: int
    n_envs: int = 1
    normalize: dict[str, Any] | None = None
    frame_stack: int = 1
    env_wrapper: tuple[Wrapper | dict[Wrapper, dict[str, Any]], ...] = ()
    env_kwargs: Hyperparameters | None = None

    def make_env(
        self, n_envs: int | None = None, seed: int | None = None, monitor_dir: str | None = None, training: bool = True
    ) -> VecEnv:
        """The environment that the recipe asks for.

        :param n_envs: environments side by side, >= 1; ``None`` for the recipe's number
        :param seed: seed of the first of them
        :param monitor_dir: folder for the returns of episodes; ``None`` writes none
        :param training: whether normalisation goes on learning, and scales rewards; without, for an evaluation, load
            the statistics of the training by ``VecNormalize.load`` or ``sync_envs_normalization``
        :raises ArgumentError: (a ``ValueError``) for a number of environments or frames that is not allowed, or if both
            an Atari game and its wrapper would skip frames
        """
        n_envs = self.n_envs if n_envs is None else n_envs
        COUNT.check("n_envs", n_envs)
        COUNT.check("frame_stack", self.frame_stack)
        check_skipped_frames(self.env_id, self.env_wrapper, self.env_kwargs)
        env = make_vec_env(
            self.env_id,
            n_envs=n_envs,
            seed=seed,
            monitor_dir=monitor_dir,
            wrapper_class=self._wrap,
            env_kwargs=self.env_kwargs,
            vec_env_cls=DummyVecEnv,
        )
        if self.normalize is not None:
            gamma = self.arguments.get("gamma", 0.99)
            env = VecNormalize(env, **{"gamma": gamma, **self.normalize, "training": training})
            env.norm_reward &= training
        return VecFrameStack(env, self.frame_stack) if self.frame_stack > 1 else env

    @property
    def is_atari(self) -> bool:
        """Whether the environment is an Atari game."""
        return is_atari(spec_of(self.env_id))

    def _wrap(self, env: gym.Env) -> gym.Env:
        for wrapper, arguments in _wrappers(self.env_wrapper):
            env = wrapper(env, **arguments)
        return env


def recipe(algorithm: str, env_id: str, entry: str | None = None, **changes: Any) -> Recipe:
    """The recipe for an algorithm and an environment.

    :param algorithm: a key of ``ALGORITHMS``
    :param env_id: id of a registered environment
    :param entry: the hyperparameters to take: an environment's id, ``"atari"``, ``"mujoco"`` (the paper's Table 3) or
        ``"default"``; ``None`` takes those of the environment, or else of Atari for its games, or else the default
    :param changes: hyperparameters to add or change, in the format of the RL Zoo
    :raises ArgumentError: (a ``ValueError``) for an algorithm, environment or entry that is not known, or a change that
        cannot be read
    """
    if algorithm not in ALGORITHMS:
        refuse("algorithm", algorithm, ", ".join(ALGORITHMS))
    return parse(ALGORITHMS[algorithm], env_id, {**select(entries_of(algorithm), env_id, entry), **changes})


def entries_of(algorithm: str) -> dict[str, Hyperparameters]:
    """The hyperparameters of every environment for an algorithm, a key of ``ALGORITHMS``."""
    return import_module(f"sb3_ppo_variants.recipes.{algorithm}").hyperparams


def select(entries: dict[str, Hyperparameters], env_id: str, entry: str | None = None) -> Hyperparameters:
    """The hyperparameters that suit an environment.

    :param entries: hyperparameters in the format of the RL Zoo
    :param env_id: id of a registered environment
    :param entry: the key to take; ``None`` takes the environment's id, or else that without ``module:``, or else
        ``"atari"`` for Atari's games, or else ``"default"``
    :raises ArgumentError: (a ``ValueError``) for an environment that is not registered or an entry that is not there
    """
    check_registered(env_id)
    if entry is None:
        suited = (env_id, _name(env_id), "atari" if is_atari(spec_of(env_id)) else "default")
        entry = next((name for name in suited if name in entries), suited[-1])
    if entry not in entries:
        refuse(f"entry for {env_id}", entry, ", ".join(entries))
    return deepcopy(entries[entry])


def check_registered(env_id: str) -> None:
    """Check that there is such an environment, after importing what registers it.

    :param env_id: id of an environment, after ``module:`` if importing the module registers it
    :raises ArgumentError: (a ``ValueError``) if there is none
    """
    module, _, name = env_id.rpartition(":")
    if name not in gym.registry:
        try:
            # Which registers Atari's games.
            import_module(module or "ale_py")
        except Exception as error:  # Of the module's own code, whatever it is.
            if module:
                refuse("env_id", env_id, f"the id of an environment of a module that can be imported ({error!r})")
    if name not in gym.registry:
        refuse("env_id", env_id, "the id of a registered environment; Atari's need ale_py")


def check_skipped_frames(env_id: str, env_wrapper: Any, env_kwargs: Hyperparameters | None = None) -> None:
    """Check that frames of an Atari game are not skipped by the game and by a wrapper.

    :param env_id: id of the environment
    :param env_wrapper: its wrappers, in the format of the RL Zoo
    :param env_kwargs: its arguments
    :raises ArgumentError: (a ``ValueError``) if they are
    """
    for wrapper, arguments in _wrappers(env_wrapper):
        if wrapper is AtariWrapper and is_atari(spec_of(env_id)):
            check_frame_skip(env_id, arguments.get("frame_skip", 4), env_kwargs)


def _name(env_id: str) -> str:
    """The id of an environment without the module that registers it."""
    return env_id.rpartition(":")[2]


def _listed(env_wrapper: Any) -> list[Wrapper | dict[Wrapper, dict[str, Any]]]:
    """The wrappers of an entry, which may have one, many or ``None``."""
    if isinstance(env_wrapper, (list, tuple)):
        return list(env_wrapper)
    return [] if env_wrapper is None else [env_wrapper]


def _wrappers(env_wrapper: Any) -> Iterator[tuple[Callable[..., gym.Env], dict[str, Any]]]:
    """The class of each wrapper, and its arguments."""
    for listed in _listed(env_wrapper):
        for wrapper, arguments in (listed if isinstance(listed, dict) else {listed: {}}).items():
            yield _imported(wrapper) if isinstance(wrapper, str) else wrapper, arguments


def _imported(path: str) -> Callable[..., gym.Env]:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def parse(algorithm: type[BaseAlgorithm], env_id: str, hyperparameters: Hyperparameters) -> Recipe:
    """A recipe from hyperparameters in the format of the RL Zoo.

    :param algorithm: class of the algorithm
    :param env_id: id of the environment
    :param hyperparameters: an entry of a file of the RL Zoo, with its strings of Python evaluated
    :raises ArgumentError: (a ``ValueError``) for ``n_timesteps``, a ``normalize`` or a schedule that cannot be read
    """
    arguments = {name: schedule(name, value) for name, value in deepcopy(hyperparameters).items()}
    return Recipe(
        env_id=env_id,
        algorithm=algorithm,
        n_timesteps=_steps(arguments.pop("n_timesteps", None)),
        n_envs=arguments.pop("n_envs", 1),
        normalize=_normalization(arguments.pop("normalize", None)),
        frame_stack=arguments.pop("frame_stack", 1),
        env_wrapper=tuple(_listed(arguments.pop("env_wrapper", None))),
        env_kwargs=arguments.pop("env_kwargs", None),
        arguments=arguments,
    )


def _steps(n_timesteps: Any) -> int:
    # The zoo's files write 1e6.
    if isinstance(n_timesteps, float) and n_timesteps.is_integer():
        n_timesteps = int(n_timesteps)
    COUNT.check("n_timesteps", n_timesteps)
    return int(n_timesteps)


def _normalization(normalize: Any) -> dict[str, Any] | None:
    """The arguments of ``VecNormalize``, ``None`` for no normalisation."""
    if isinstance(normalize, dict):
        return normalize
    if normalize is None or isinstance(normalize, bool):
        return {} if normalize else None
    refuse("normalize", normalize, "True, False, None, or a dict of arguments of VecNormalize")


def schedule(name: str, value: Any) -> Any:
    """The schedule that ``"lin_x"`` stands for, or else the value itself.

    :raises ArgumentError: (a ``ValueError``) if x is not a number
    """
    if not (isinstance(value, str) and value.startswith("lin_")):
        return value
    try:
        return LinearSchedule(float(value.removeprefix("lin_")), 0.0, 1.0)
    except ValueError:
        refuse(name, value, "lin_ and a number")
