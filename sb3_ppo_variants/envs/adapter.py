"""An SB3 ``VecEnv`` around a gymnasium vector environment, other wrappers, and what other libraries' adapters lack.

Observations are an array, or a dictionary or tuple of arrays, with one row per environment. SB3's ``VecEnv`` resets
within the step that ends an episode: that step returns the first observation of the next episode, and has the last
observation of the old one in its info. For gymnasium's autoreset modes, see https://farama.org/Vector-Autoreset-Mode.
"""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from multiprocessing import get_start_method
from operator import itemgetter, setitem
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import concatenate, create_empty_array
from gymnasium.wrappers.vector import DictInfoToList, NormalizeObservation, NormalizeReward, RecordEpisodeStatistics
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper, VecMonitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from sb3_ppo_variants.envs.outputs import Info, check_observables, copy_value
from sb3_ppo_variants.envs.subproc import SafeSubprocVecEnv
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.interrupts import HELD
from sb3_ppo_variants.layout import Actions, is_hybrid, map_parts, parts_of

# Backends in C++ take seeds as signed 32-bit integers.
SEED_LIMIT = 2**31


class GymnasiumVecEnv(VecEnv):
    """Makes a gymnasium vector environment usable with SB3's algorithms, callbacks and wrappers.

    In every autoreset mode, a step returns what SB3's ``DummyVecEnv`` would return with the same environments. In the
    modes ``NEXT_STEP`` and ``DISABLED``, these get ``reset(options={})`` instead of ``reset()``. Later steps do not
    overwrite the returned arrays. Wrap it in SB3's ``VecMonitor`` to get episode statistics.

    Setting attributes and calling methods raises a ``NotImplementedError``, because there are no single environments.

    :param env: an ``AtariVectorEnv`` or any other vector environment that steps all its environments at once. Those of
        a ``SyncVectorEnv`` or ``AsyncVectorEnv`` belong in SB3's ``DummyVecEnv`` or in ``SafeSubprocVecEnv``
    :param autoreset_mode: the autoreset mode of ``env``, if its metadata does not contain it
    :raises ArgumentError: if ``env`` is not such an environment, or its autoreset mode is unknown or not supported
    :raises NotImplementedError: if ``Dict`` or ``Tuple`` observation spaces are nested
    """

    def __init__(self, env: VectorEnv, autoreset_mode: AutoresetMode | str | None = None):
        if not isinstance(env, VectorEnv):
            raise ArgumentError(
                f"env={env} must be a gymnasium.vector.VectorEnv; for single environments use SB3's make_vec_env"
            )
        if type(env) in (SyncVectorEnv, AsyncVectorEnv):
            cls = "DummyVecEnv" if isinstance(env, SyncVectorEnv) else "SafeSubprocVecEnv"
            raise ArgumentError(f"env={env} has single environments: use {cls}(env.env_fns), or pass env to the model")
        check_observables(env.single_observation_space)
        self._mode = check_mode(env, autoreset_mode)
        self.env = env
        self._inner: Any = env.unwrapped
        # SB3's VecMonitor writes the id into its file.
        self.spec = env.unwrapped.spec if isinstance(env.unwrapped.spec, EnvSpec) else None
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        self.metadata = dict(env.metadata)
        self._actions: Actions = np.empty(0)

    def reset(self) -> VecEnvObs:
        """Reset all environments with the seeds, modulo ``2**31``, and options that were set since the last reset.

        :raises ArgumentError: if the options differ between environments, or ``env`` does not return one
            observation for each
        """
        options = self._options[0]
        if any(other != options for other in self._options):
            raise ArgumentError(f"options={self._options} must be the same for every environment of {self.env}")
        seed = None if self._seeds[0] is None else self._seeds[0] % (SEED_LIMIT - self.num_envs)
        observations, infos = self.env.reset(seed=seed, options=options or None)
        if (n := count_rows(observations)) != self.num_envs:
            problem = f"returns {n} observations for {self.num_envs} environments: create it with batch_size=num_envs"
            raise ArgumentError(f"env={self.env} {problem}; games of several players are not supported")
        self.reset_infos = per_env(infos, self.num_envs)
        self._reset_seeds()
        self._reset_options()
        return cast(VecEnvObs, copy_value(observations))  # Many backends reuse their memory in the next step.

    def step_async(self, actions: Actions) -> None:
        """Store the actions for the next step."""
        space = self.env.single_action_space
        if is_hybrid(space):  # gymnasium's take one structure, with an array of all environments for each part.
            arrays: Any = create_empty_array(space, self.num_envs)
            self._actions = concatenate(space, actions, arrays)
        else:
            self._actions = np.asarray(actions, dtype=space.dtype)

    def step_wait(self) -> VecEnvStepReturn:
        """Step all environments and reset those that are done."""
        observations, rewards, terminated, truncated, vector_infos = self.env.step(self._actions)
        observations = copy_value(observations)
        dones = terminated | truncated
        infos = per_env(vector_infos, self.num_envs)
        if dones.any():
            end = self._reset_in_the_step if self._mode is AutoresetMode.SAME_STEP else self._reset_at_once
            for i, reset_info in end(observations, dones, infos).items():
                self.reset_infos[i] = reset_info
        for info, cut_off in zip(infos, (truncated & ~terminated).tolist(), strict=True):
            info["TimeLimit.truncated"] = cut_off
        return observations, rewards.astype(np.float32), dones, infos

    # Each writes the first observations of the new episodes into the observations, and ``terminal_observation`` into
    # the infos, and returns the info of each reset by the index of its environment.

    def _reset_in_the_step(self, observations: VecEnvObs, dones: np.ndarray, infos: list[Info]) -> dict[int, Info]:
        """Handle SAME_STEP: the new episode has begun, and its info contains those of the end of the old one."""
        reset_infos = {}
        for i, info in enumerate(infos):
            # ALE fills final_obs for all environments; it is stale for those that are not done.
            final_observation, final_info = info.pop("final_obs", None), info.pop("final_info", {})
            if dones[i]:
                if final_observation is None:
                    raise ArgumentError(f"env={self.env} must return infos['final_obs'] in AutoresetMode.SAME_STEP")
                reset_infos[i] = info
                infos[i] = {**final_info, "terminal_observation": final_observation}
        return reset_infos

    def _reset_at_once(self, observations: VecEnvObs, dones: np.ndarray, infos: list[Info]) -> dict[int, Info]:
        """Handle NEXT_STEP and DISABLED by immediately resetting the environments that are done.

        In NEXT_STEP they would otherwise reset themselves in the next step and ignore its action.
        """
        ended = np.flatnonzero(dones).tolist()
        for i in ended:
            infos[i]["terminal_observation"] = take_rows(observations, i)
        inner = self._inner
        # gymnasium's CartPoleVectorEnv ignores the mask and resets all poles, whose state consists of two arrays.
        before = (inner.state, inner.steps) if isinstance(inner, CartPoleVectorEnv) else None
        first, vector_infos = self.env.reset(options={"reset_mask": dones.copy()})
        if before is not None:
            inner.state, inner.steps = map(partial(np.where, dones), (inner.state, inner.steps), before)
        reset_infos = per_env(vector_infos, count_rows(first))
        if len(reset_infos) == len(dones):
            others = [take_rows(each, ~dones) for each in (first, observations)]
            same = map_parts(partial(np.array_equal, equal_nan=True), *others)
            if before is None and not all(each for _, each in parts_of(same)):
                problem = "must reset only the environments in options['reset_mask'], or be in AutoresetMode.SAME_STEP"
                raise ArgumentError(f"env={self.env} {problem}")
            first, reset_infos = take_rows(first, dones), [reset_infos[i] for i in ended]
        # Otherwise env is EnvPool's, which returns only the environments that were reset.
        map_parts(lambda array, new: setitem(array, dones, new), observations, first)
        return dict(zip(ended, reset_infos, strict=True))

    def close(self) -> None:
        """Close the environments; a second call does nothing."""
        self.env.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Render each environment.

        :return: an RGB image of each environment; all are ``None`` unless ``render_mode="rgb_array"``
        """
        images: Any = self.env.render()
        return [None] * self.num_envs if images is None else [*images]

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Get the attribute of the vector environment, for each environment."""
        return [getattr(self._inner, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: object, indices: VecEnvIndices = None) -> None:
        """Raise an error, because there are no single environments."""
        raise NotImplementedError(f"{type(self._inner).__name__} has no single environments to set {attr_name} in")

    def env_method(
        self, method_name: str, *method_args: object, indices: VecEnvIndices = None, **method_kwargs: object
    ) -> list[Any]:
        """Raise an error, because there are no single environments."""
        raise NotImplementedError(f"{type(self._inner).__name__} has no single environments to call {method_name}() of")

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """Return False for each environment."""
        return [False] * len(list(self._get_indices(indices)))


def adapt(env: VectorEnv, monitored: bool) -> VecEnv:
    """Make a ``VecEnv`` of a vector environment that was passed to an algorithm, and warn about it.

    :param monitored: whether to wrap it in a ``VecMonitor``, unless its environments have a ``Monitor``
    :raises ArgumentError: see :class:`GymnasiumVecEnv`
    """
    venv: VecEnv
    if isinstance(env, SyncVectorEnv):
        venv, how = DummyVecEnv([partial(itemgetter(i), env.envs) for i in range(env.num_envs)]), "a DummyVecEnv"
    elif isinstance(env, AsyncVectorEnv):
        env.close()
        # Its own workers are started in this way too.
        venv, how = SafeSubprocVecEnv([*env.env_fns], get_start_method()), "a SafeSubprocVecEnv, and closed"
    else:
        venv, how = GymnasiumVecEnv(env), "a GymnasiumVecEnv"
    if monitored and not all(venv.env_is_wrapped(Monitor)):
        venv, how = VecMonitor(venv), f"{how}, with a VecMonitor"
    warnings.warn(
        f"env is one of gymnasium's vector environments, which SB3 cannot step, and is made into {how}; pass one of "
        "SB3's to omit this message"
    )
    return venv


def take_rows(observations: VecEnvObs, index: int | np.ndarray) -> VecEnvObs:
    """Take a copy of the row of one environment, or of the rows that a mask selects."""
    return cast(VecEnvObs, map_parts(lambda array: array[index].copy(), observations))


def count_rows(observations: VecEnvObs) -> int:
    """Count the rows."""
    _, array = next(parts_of(observations))
    return len(array)


def per_env(vector_infos: Info, n_envs: int) -> list[Info]:
    """Split the info of a vector environment into one info per environment.

    A Boolean array ``_key`` next to ``key`` says which environments have a value. ALE and EnvPool have no such arrays,
    because all environments have a value. A value without one entry per environment, such as a number, is copied to
    all. Dictionaries are split in the same way. No info shares memory with the arrays.
    """
    infos: list[Info] = [{} for _ in range(n_envs)]
    masks = {f"_{key}" for key in vector_infos}
    for key, values in vector_infos.items():
        if key in masks:
            continue
        has_value = vector_infos.get(f"_{key}")
        for i, value in enumerate(_values(values, n_envs)):
            if has_value is None or has_value[i]:
                infos[i][key] = value
    return infos


def _values(values: Any, n_envs: int) -> list[Any]:
    if isinstance(values, dict):
        return per_env(values, n_envs)
    if not (isinstance(values, list | tuple) or np.ndim(values) > 0) or len(values) != n_envs:
        return [deepcopy(values) for _ in range(n_envs)]
    is_flat = isinstance(values, np.ndarray) and values.ndim == 1 and not values.dtype.hasobject
    return values.tolist() if is_flat else deepcopy(list(values))


def check_mode(env: VectorEnv, given: AutoresetMode | str | None) -> AutoresetMode:
    """Find the autoreset mode, and check that it works with the environment and its wrappers.

    :param given: the mode, if ``env`` does not declare one
    :raises ArgumentError: if the mode is unknown, or does not work with the environment or a wrapper
    """
    # ALE writes its mode into the metadata of gymnasium's base class, which all environments without metadata of their
    # own share. So an attribute takes precedence, and the metadata of the base class is ignored.
    metadata = {} if env.metadata is VectorEnv.metadata else env.metadata
    declared = getattr(env.unwrapped, "autoreset_mode", metadata.get("autoreset_mode"))
    try:
        (mode,) = {AutoresetMode(mode) for mode in (given, declared) if mode is not None}
    except ValueError as error:
        allowed = ", ".join(f"'{mode.value}'" for mode in AutoresetMode)
        raise ArgumentError(
            f"autoreset_mode={given!r} must be the mode of env, one of {allowed}; its metadata says {declared}"
        ) from error
    # Wrappers that do not work here, and what to do instead. Most lose what they know of all when some are reset.
    unusable: dict[type[VectorWrapper], str] = {
        DictInfoToList: "leave it out: GymnasiumVecEnv makes lists of infos",
        NormalizeObservation: "use SB3's VecNormalize",
        NormalizeReward: "use SB3's VecNormalize",
        RecordEpisodeStatistics: "use SB3's VecMonitor",
    }
    if mode is AutoresetMode.SAME_STEP:  # gymnasium refuses these too, but only if the metadata says so.
        unusable[gym.vector.VectorObservationWrapper] = "use another autoreset mode, or wrap the single environments"
    wrapper = env
    while isinstance(wrapper, VectorWrapper):
        for kind, instead in unusable.items():
            if isinstance(wrapper, kind):
                raise ArgumentError(f"{type(wrapper).__name__} in env={env} does not work in {mode}: {instead}")
        wrapper = wrapper.env
    return mode


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
            raise ArgumentError(f"ActionsAsDrawn needs a Box of floating-point actions, and not {space}")
        self.own_action_space = space
        widest = np.finfo(space.dtype).max
        self.action_space = spaces.Box(-widest, widest, space.shape, space.dtype.type)


class VecEpisodicLife(VecEnvWrapper):
    """Ends an episode when a life is lost, while the game continues, as SB3's ``EpisodicLifeEnv`` does.

    Wrap it around a ``VecMonitor``, so that its statistics cover whole games.

    :param venv: environments with ``lives`` in the info of every step and reset
    """

    def reset(self) -> VecEnvObs:
        """Reset all games, whether they are over or not.

        :raises ArgumentError: if an info has no ``lives``
        """
        observations = self.venv.reset()
        self._lives = self._lives_in(self.venv.unwrapped.reset_infos)
        return observations

    def _lives_in(self, infos: list[Info]) -> np.ndarray:
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


# What vectorised environments need not have. SB3 only trains: it calls ``reset`` and ``step``, and reads the spaces and
# ``num_envs``. Adapters of other libraries (PettingZoo's SuperSuit, Isaac Lab, procgen) often have little more. They
# lack methods of ``VecEnv``, raise ``NotImplementedError`` in them, skip its constructor, or derive from
# ``VecEnvWrapper`` around something that is not a ``VecEnv``.
ABSENT = (AttributeError, NotImplementedError)


def has_attr(env: VecEnv, name: str) -> bool:
    """Whether all single environments have an attribute; False if they raise any error, or cannot be asked."""

    def answers(name: str) -> bool:
        with suppress(Exception), HELD:  # SB3's workers would give an interrupted answer to the next question.
            return bool(env.has_attr(name))
        return False

    return answers(name) and not answers("an attribute that no environment has")  # Some answer None for every name.


def pending_seeds(env: VecEnv) -> list[int]:
    """Return the seeds for the next reset, if the environment has any."""
    with suppress(*ABSENT):
        return [seed for seed in env.unwrapped._seeds if seed is not None]
    return []


def seed_env(env: VecEnv, seed: int) -> None:
    """Seed the next reset of all environments.

    :raises ArgumentError: if they cannot be seeded
    """
    try:
        env.seed(seed)
    except ABSENT as error:
        raise ArgumentError(
            f"env={env} cannot be seeded ({type(error).__name__}: {error}): seed the environments themselves and pass "
            "seed=None. Checkpoints of exact runs need environments with a seed method"
        ) from error
