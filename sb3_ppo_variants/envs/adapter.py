"""An SB3 ``VecEnv`` that wraps a gymnasium vector environment, and what adapters of other libraries do not have.

Observations are an array, or a dictionary or tuple of arrays, with one row per environment. SB3's ``VecEnv`` resets
within the step that ends an episode: that step returns the first observation of the next episode, and has the last
observation of the old one in its info. For gymnasium's autoreset modes, see https://farama.org/Vector-Autoreset-Mode.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from multiprocessing.connection import wait
from operator import setitem
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorEnv,
    VectorObservationWrapper,
    VectorWrapper,
)
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import concatenate, create_empty_array
from gymnasium.wrappers.vector import DictInfoToList, NormalizeObservation, NormalizeReward, RecordEpisodeStatistics
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.preprocessing import check_for_nested_spaces
from stable_baselines3.common.vec_env import VecEnv, VecMonitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from sb3_ppo_variants.envs.outputs import Info, copy_info
from sb3_ppo_variants.envs.subproc import SECONDS_AFTER_CLOSING, how_it_ended
from sb3_ppo_variants.errors import ArgumentError, WorkerError
from sb3_ppo_variants.interrupts import HELD
from sb3_ppo_variants.layout import Actions, is_hybrid, map_parts, parts_of

# Backends in C++ take seeds as signed 32-bit integers.
SEED_LIMIT = 2**31


class GymnasiumVecEnv(VecEnv):
    """Makes a gymnasium vector environment usable with SB3's algorithms, callbacks and wrappers.

    In every autoreset mode, a step returns what SB3's ``DummyVecEnv`` would return with the same environments. In the
    modes ``NEXT_STEP`` and ``DISABLED``, these get ``reset(options={})`` instead of ``reset()``. Later steps do not
    overwrite the returned arrays. Wrap it in SB3's ``VecMonitor`` to get episode statistics.

    The environments of a ``SyncVectorEnv`` must not share an array for their observations: gymnasium reads it after the
    last one's step, and returns the same observation for all. ``DummyVecEnv`` can have such environments.

    Setting attributes and calling methods raises an ``ArgumentError`` for some ``indices``, if ``env`` can only reach
    all of its environments at once, and a ``NotImplementedError`` if it has no single environments.

    :param env: a ``SyncVectorEnv``, ``AsyncVectorEnv``, ``AtariVectorEnv`` or any other vector environment that steps
        all its environments at once
    :param autoreset_mode: the autoreset mode of ``env``, if its metadata does not contain it
    :raises ArgumentError: if ``env`` is not such an environment, or its autoreset mode is unknown or not supported
    :raises NotImplementedError: if ``Dict`` or ``Tuple`` observation spaces are nested
    """

    def __init__(self, env: VectorEnv, autoreset_mode: AutoresetMode | str | None = None):
        if not isinstance(env, VectorEnv):
            raise ArgumentError(
                f"env={env} must be a gymnasium.vector.VectorEnv; for single environments use SB3's make_vec_env"
            )
        check_for_nested_spaces(env.single_observation_space)
        self._mode = check_mode(env, autoreset_mode)
        self.env = env
        inner: Any = env.unwrapped
        self._inner = inner
        self._has_workers = isinstance(inner, AsyncVectorEnv)
        self._has_singles = isinstance(inner, AsyncVectorEnv | SyncVectorEnv)
        if type(env) in (SyncVectorEnv, AsyncVectorEnv):  # Otherwise a wrapper may read the infos.
            inner._add_info = collect_info
        # SB3's VecMonitor writes the id into its file.
        self.spec = env.unwrapped.spec if isinstance(env.unwrapped.spec, EnvSpec) else None
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        self.metadata = dict(env.metadata)
        self._actions: Actions = np.empty(0)
        self._closed = False

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Let a Ctrl-C during training wait for the answers of gymnasium's workers, and name one that has ended."""
        try:
            # gymnasium has closed the pipe of a worker that raised an error.
            if self._has_workers and None in self._inner.parent_pipes:
                raise EOFError
            with HELD:
                yield
        except (EOFError, ConnectionError) as error:
            if not self._has_workers:
                raise
            self._inner._state = AsyncState.DEFAULT
            processes = self._inner.processes
            ended = wait([process.sentinel for process in processes], SECONDS_AFTER_CLOSING)
            index = next((i for i, process in enumerate(processes) if process.sentinel in ended), 0)
            raise WorkerError(index, how_it_ended(processes[index])) from error

    def reset(self) -> VecEnvObs:
        """Reset all environments with the seeds and options that were set since the last reset.

        :raises ArgumentError: if the options differ between environments, or ``env`` does not return one
            observation for each
        """
        options = self._options[0]
        if any(other != options for other in self._options):
            raise ArgumentError(f"options={self._options} must be the same for every environment of {self.env}")
        with self._asking():
            observations, infos = self.env.reset(seed=self._seeds[0], options=options or None)
        if (n := count_rows(observations)) != self.num_envs:
            problem = f"returns {n} observations for {self.num_envs} environments: create it with batch_size=num_envs"
            raise ArgumentError(f"env={self.env} {problem}; games of several players are not supported")
        self.reset_infos = per_env(infos, self.num_envs)
        self._reset_seeds()
        self._reset_options()
        return copy_rows(observations)

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Set the seeds for the next reset; see SB3.

        :param seed: seed of the first environment, taken modulo ``2**31 - num_envs`` and incremented for each further
            one; ``None`` draws a random seed
        """
        last = SEED_LIMIT - self.num_envs
        return super().seed(int(np.random.randint(last)) if seed is None else seed % last)

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
        with self._asking():
            observations, rewards, terminated, truncated, vector_infos = self.env.step(self._actions)
        observations = copy_rows(observations)
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
        overwritten = ("state", "steps") if isinstance(inner, CartPoleVectorEnv) else ()
        before = [getattr(inner, name).copy() for name in overwritten]
        with self._asking():
            first, vector_infos = self.env.reset(options={"reset_mask": dones.copy()})
        for name, array in zip(overwritten, before, strict=True):
            getattr(inner, name)[..., ~dones] = array[..., ~dones]
        reset_infos = per_env(vector_infos, count_rows(first))
        if len(reset_infos) == len(dones):
            others = [take_rows(each, ~dones) for each in (first, observations)]
            same = map_parts(partial(np.array_equal, equal_nan=True), *others)
            if not overwritten and not all(each for _, each in parts_of(same)):
                problem = "must reset only the environments in options['reset_mask'], or be in AutoresetMode.SAME_STEP"
                raise ArgumentError(f"env={self.env} {problem}")
            first, reset_infos = take_rows(first, dones), [reset_infos[i] for i in ended]
        # Otherwise env is EnvPool's, which returns only the environments that were reset.
        map_parts(lambda array, new: setitem(array, dones, new), observations, first)
        return dict(zip(ended, reset_infos, strict=True))

    def close(self) -> None:
        """Close the environments; a second call does nothing."""
        if self._closed:
            return
        at_once = self._has_workers and (
            self._inner._state is not AsyncState.DEFAULT or not all(each.is_alive() for each in self._inner.processes)
        )
        self.env.close(**({"terminate": True} if at_once else {}))
        self._closed = True

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Render each environment.

        :return: an RGB image of each environment; all are ``None`` unless ``render_mode="rgb_array"``
        """
        if self.render_mode != "rgb_array":
            warnings.warn(f"render_mode={self.render_mode!r} does not return images: create it with 'rgb_array'")
            return [None] * self.num_envs
        with self._asking():
            return list(cast(Any, self.env.render()))

    def has_attr(self, attr_name: str) -> bool:
        """Check whether all environments have the attribute."""
        return all(self._ask("has_wrapper_attr", attr_name)) if self._has_singles else hasattr(self._inner, attr_name)

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Get the attribute of each environment."""
        if not self._has_singles:
            return [getattr(self._inner, attr_name)] * len(list(self._get_indices(indices)))
        if self._has_workers:
            self._need(attr_name)
        # gymnasium's own get_attr would call an attribute that is callable.
        return self._ask("get_wrapper_attr", attr_name, indices=indices)

    def set_attr(self, attr_name: str, value: object, indices: VecEnvIndices = None) -> None:
        """Set the attribute of each environment to the value."""
        self._check_reach("set_attr()", indices)
        self._ask("set_wrapper_attr", attr_name, value, indices=indices)

    def env_method(
        self, method_name: str, *method_args: object, indices: VecEnvIndices = None, **method_kwargs: object
    ) -> list[Any]:
        """Call the method of each environment and return the results."""
        self._check_reach(f"{method_name}()", indices)
        if self._has_workers:
            self._need(method_name)
            return self._ask(method_name, *method_args, indices=None, **method_kwargs)
        return [method(*method_args, **method_kwargs) for method in self.get_attr(method_name, indices)]

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """Check which environments are wrapped with the class; in workers, with a class of that name."""
        where = list(self._get_indices(indices))
        if self._has_workers:  # Wrappers cannot be sent between processes, but their names can.
            names = [re.findall(r"<(\w+)", text) for text in self._ask("__str__")]
            return [wrapper_class.__name__ in names[i] for i in where]
        return [self._has_singles and is_wrapped(self._inner.envs[i], wrapper_class) for i in where]

    def _ask(self, method: str, /, *args: object, indices: VecEnvIndices = None, **kwargs: object) -> list[Any]:
        """Call a method of single environments, of which workers have to be asked all at once.

        A worker exits if its environment does not have the method or attribute.
        """
        where = list(self._get_indices(indices))
        if not self._has_workers:
            return [getattr(self._inner.envs[i], method)(*args, **kwargs) for i in where]
        with self._asking():
            answers = self._inner.call(method, *args, **kwargs)
        return [answers[i] for i in where]

    def _need(self, name: str) -> None:
        if not self.has_attr(name):
            raise AttributeError(f"{self._inner} has no attribute {name!r}")

    def _check_reach(self, call: str, indices: VecEnvIndices) -> None:
        where, kind = list(self._get_indices(indices)), type(self._inner).__name__
        if not self._has_singles:
            raise NotImplementedError(f"{kind} has no single environments for {call}")
        if self._has_workers and where != list(range(self.num_envs)):
            raise ArgumentError(f"indices={where} must be None: {kind} can only reach all environments at once")


def adapt(env: VectorEnv, monitored: bool) -> VecEnv:
    """Make a ``VecEnv`` of a vector environment that was passed to an algorithm, and warn about it.

    :param monitored: whether to wrap it in a ``VecMonitor``, unless its environments have a ``Monitor``
    :raises ArgumentError: see :class:`GymnasiumVecEnv`
    """
    venv: VecEnv = GymnasiumVecEnv(env)
    wrappers = "GymnasiumVecEnv(env)"
    if monitored and not all(venv.env_is_wrapped(Monitor)):
        venv, wrappers = VecMonitor(venv), "VecMonitor(GymnasiumVecEnv(env))"
    warnings.warn(
        f"env is one of gymnasium's vector environments, which SB3 cannot step, and is wrapped as {wrappers}; pass "
        "this to omit this message"
    )
    return venv


# What gymnasium's vector environments return, as SB3 has it.


class OfEach(dict[int, Info]):
    """Infos by the indices of their environments."""


def copy_rows(observations: VecEnvObs) -> VecEnvObs:
    """Copy observations, because many backends reuse their memory in the next step."""
    return cast(VecEnvObs, map_parts(np.array, observations))


def take_rows(observations: VecEnvObs, index: int | np.ndarray) -> VecEnvObs:
    """Take a copy of the row of one environment, or of the rows that a mask selects."""
    return cast(VecEnvObs, map_parts(lambda array: array[index].copy(), observations))


def count_rows(observations: VecEnvObs) -> int:
    """Count the rows."""
    _, array = next(parts_of(observations))
    return len(array)


def collect_info(vector_infos: Info | OfEach, env_info: Info, env_num: int) -> OfEach:
    """Add the info of an environment, as gymnasium's ``_add_info`` does, but without merging it with the others.

    ``_add_info`` writes values of all environments into an array with the type and shape of the first, so ``0.5`` after
    ``0`` becomes ``0``.
    """
    of_each = vector_infos if isinstance(vector_infos, OfEach) else OfEach()
    of_each.setdefault(env_num, {}).update(copy_info(env_info))
    return of_each


def per_env(vector_infos: Info | OfEach, n_envs: int) -> list[Info]:
    """Split the info of a vector environment into one info per environment.

    A Boolean array ``_key`` next to ``key`` says which environments have a value. ALE and EnvPool have no such arrays,
    because all environments have a value. A value without one entry per environment, such as a number, is copied to
    all. Dictionaries are split in the same way. No info shares memory with the arrays.
    """
    if isinstance(vector_infos, OfEach):
        return [vector_infos.get(i, {}) for i in range(n_envs)]
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
    if isinstance(values, list | tuple) or values.dtype.hasobject:
        return deepcopy(list(values))
    return values.tolist() if values.ndim == 1 else list(values.copy())


# gymnasium's wrappers that do not work here, and what to do instead. Most lose what they know of all environments when
# some are reset.
UNUSABLE: Mapping[type[VectorWrapper], str] = {
    DictInfoToList: "leave it out: GymnasiumVecEnv makes lists of infos",
    NormalizeObservation: "use SB3's VecNormalize",
    NormalizeReward: "use SB3's VecNormalize",
    RecordEpisodeStatistics: "use SB3's VecMonitor",
}


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
    inner = env.unwrapped
    if isinstance(inner, AsyncVectorEnv) and mode is AutoresetMode.NEXT_STEP and not inner.shared_memory:
        # Without shared memory, the workers forget that they were reset, and reset again in the next step.
        raise ArgumentError(f"env={env} must be created with shared_memory=True or in AutoresetMode.SAME_STEP")
    unusable = dict(UNUSABLE)
    if mode is AutoresetMode.SAME_STEP:  # gymnasium refuses these too, but only if the metadata says so.
        unusable[VectorObservationWrapper] = "use another autoreset mode, or wrap the single environments"
    wrapper = env
    while isinstance(wrapper, VectorWrapper):
        for kind, instead in unusable.items():
            if isinstance(wrapper, kind):
                raise ArgumentError(f"{type(wrapper).__name__} in env={env} does not work in {mode}: {instead}")
        wrapper = wrapper.env
    return mode


# What vectorised environments need not have. SB3 only trains: it calls ``reset`` and ``step``, and reads the spaces and
# ``num_envs``. Adapters of other libraries (PettingZoo's SuperSuit, Isaac Lab, procgen) often have little more. They
# lack methods of ``VecEnv``, raise ``NotImplementedError`` in them, skip its constructor, or derive from
# ``VecEnvWrapper`` around something that is not a ``VecEnv``.
ABSENT = (AttributeError, NotImplementedError)


def has_attr(env: VecEnv, name: str) -> bool:
    """Whether all single environments have an attribute; False if the environment gives no access to them."""
    with suppress(*ABSENT), HELD:  # SB3's workers would give an answer that is interrupted to the next question.
        # Some answer None for every name.
        return bool(env.has_attr(name)) and not env.has_attr("an attribute that no environment has")
    return False


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
