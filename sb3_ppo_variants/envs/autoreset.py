"""What gymnasium's vector environments return, as SB3's ``VecEnv`` has it: rows, infos and ends of episodes.

Observations are an array, or a dictionary or tuple of arrays, with one row per environment.

SB3's ``VecEnv`` resets within the step that ends an episode: that step returns the first observation of the next
episode, and has the last observation of the old one in its info. For gymnasium's autoreset modes, see
https://farama.org/Vector-Autoreset-Mode.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from operator import setitem
from typing import Any, TypeAlias, cast

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorEnv,
    VectorObservationWrapper,
    VectorWrapper,
)
from gymnasium.wrappers.vector import DictInfoToList, NormalizeObservation, NormalizeReward, RecordEpisodeStatistics
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs

from sb3_ppo_variants.envs.outputs import Info, copy_info
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.layout import map_parts, parts_of

Infos: TypeAlias = list[Info]

LISTS = "returns infos that GymnasiumVecEnv does not expect: leave it out, because GymnasiumVecEnv makes lists of infos"
RESETS_ALL = "can only reset all environments at once: use SB3's"
# gymnasium refuses these in SAME_STEP too, but only if the metadata says that this is the mode.
UNCHANGED_END = "does not change infos['final_obs']: use another autoreset mode, or wrap the single environments"

# Takes the environment, and the observations, dones and infos of a step that ended an episode. It writes the first
# observations of the new episodes into the observations and ``terminal_observation`` into the infos, and returns the
# info of each reset by the index of its environment.
EndOfEpisode = Callable[[VectorEnv, VecEnvObs, np.ndarray, Infos], dict[int, Info]]


class OfEach(dict[Any, Info]):
    """Infos by the indices of their environments."""


def _are_equal(first: VecEnvObs, second: VecEnvObs) -> bool:
    """Check whether all values are equal, treating NaN as equal to NaN."""
    equal = map_parts(lambda a, b: np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), first, second)
    return all(each for _, each in parts_of(equal))


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


def collect_info(vector_infos: Info, env_info: Info, env_num: int) -> Info:
    """Add the info of an environment, as gymnasium's ``_add_info`` does, but without merging it with the others.

    ``_add_info`` writes values of all environments into an array with the type and shape of the first, so ``0.5`` after
    ``0`` becomes ``0``.
    """
    of_each = vector_infos if isinstance(vector_infos, OfEach) else OfEach()
    of_each.setdefault(env_num, {}).update(copy_info(env_info))
    return of_each


def per_env(vector_infos: Info, n_envs: int) -> Infos:
    """Split the info of a vector environment into one info per environment.

    A Boolean array ``_key`` next to ``key`` says which environments have a value. ALE and EnvPool have no such arrays,
    because all environments have a value. A value without one entry per environment, such as a number, is copied to
    all. Dictionaries are split in the same way. No info shares memory with the arrays.
    """
    if isinstance(vector_infos, OfEach):
        return [vector_infos.get(i, {}) for i in range(n_envs)]
    infos: Infos = [{} for _ in range(n_envs)]
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


def reset_in_the_step(env: VectorEnv, observations: VecEnvObs, dones: np.ndarray, infos: Infos) -> dict[int, Info]:
    """Handle SAME_STEP: the new episode has begun, and its info contains the last observation and info of the old."""
    reset_infos = {}
    # RecordEpisodeStatistics puts the statistics of the old episode into the info of the new one.
    keys = [wrapper._stats_key for wrapper in _wrappers(env) if isinstance(wrapper, RecordEpisodeStatistics)]
    for i, info in enumerate(infos):
        # ALE fills final_obs for all environments; it is stale for those that are not done.
        final_observation, final_info = info.pop("final_obs", None), info.pop("final_info", {})
        if dones[i]:
            if final_observation is None:
                raise ArgumentError(f"env={env} must return infos['final_obs'] in AutoresetMode.SAME_STEP")
            statistics = {key: info.pop(key) for key in keys}
            reset_infos[i] = info
            infos[i] = {**final_info, **statistics, "terminal_observation": final_observation}
    return reset_infos


def reset_at_once(env: VectorEnv, observations: VecEnvObs, dones: np.ndarray, infos: Infos) -> dict[int, Info]:
    """Handle NEXT_STEP and DISABLED by immediately resetting the environments that are done.

    In NEXT_STEP they would otherwise reset themselves in the next step and ignore its action.
    """
    ended = np.flatnonzero(dones).tolist()
    for i in ended:
        infos[i]["terminal_observation"] = take_rows(observations, i)
    inner: Any = env.unwrapped
    # gymnasium's CartPoleVectorEnv ignores the mask and resets all poles, whose state consists of two arrays.
    overwritten = ("state", "steps") if isinstance(inner, CartPoleVectorEnv) else ()
    before = [getattr(inner, name).copy() for name in overwritten]
    first, vector_infos = env.reset(options={"reset_mask": dones.copy()})
    reset_infos = per_env(vector_infos, count_rows(first))
    for name, array in zip(overwritten, before, strict=True):
        getattr(inner, name)[..., ~dones] = array[..., ~dones]
    if len(reset_infos) == len(dones):
        if not overwritten and not _are_equal(take_rows(first, ~dones), take_rows(observations, ~dones)):
            problem = "must reset only the environments in options['reset_mask'], or be in AutoresetMode.SAME_STEP"
            raise ArgumentError(f"env={env} {problem}")
        first, reset_infos = take_rows(first, dones), [reset_infos[i] for i in ended]
    # Otherwise env is EnvPool's, which returns only the environments that were reset.
    map_parts(lambda array, new: setitem(array, dones, new), observations, first)
    return dict(zip(ended, reset_infos, strict=True))


def end_of_episode(env: VectorEnv, mode: AutoresetMode | str | None) -> EndOfEpisode:
    """Choose the function that handles the end of an episode.

    :param mode: the autoreset mode of ``env``, if it does not declare one
    :raises ArgumentError: if the mode is unknown, or does not work with the environment or a wrapper
    """
    known = _mode(env, mode)
    inner = env.unwrapped
    if isinstance(inner, AsyncVectorEnv) and known is AutoresetMode.NEXT_STEP and not inner.shared_memory:
        # Without shared memory, the workers forget that they were reset, and reset again in the next step.
        raise ArgumentError(f"env={env} must be created with shared_memory=True or in AutoresetMode.SAME_STEP")
    is_same_step = known is AutoresetMode.SAME_STEP
    for wrapper in _wrappers(env):
        if problem := _problem(wrapper, is_same_step):
            raise ArgumentError(f"{type(wrapper).__name__} in env={env} {problem}")
    return reset_in_the_step if is_same_step else reset_at_once


def _wrappers(env: VectorEnv) -> Iterator[VectorWrapper]:
    while isinstance(env, VectorWrapper):
        yield env
        env = env.env


def _problem(wrapper: VectorWrapper, is_same_step: bool) -> str | None:
    """Say what a wrapper would do wrong, if anything."""
    if isinstance(wrapper, DictInfoToList):
        return LISTS
    if is_same_step:
        return UNCHANGED_END if isinstance(wrapper, VectorObservationWrapper) else None
    # If only some environments are reset, these raise an error or lose the returns of all.
    if isinstance(wrapper, NormalizeObservation):
        return f"{RESETS_ALL} VecNormalize"
    if isinstance(wrapper, NormalizeReward):
        return f"{RESETS_ALL} VecNormalize, or AutoresetMode.SAME_STEP"
    # These environments remove the mask from the options before the wrapper sees it.
    is_without_mask = isinstance(wrapper.unwrapped, SyncVectorEnv | AsyncVectorEnv)
    if is_without_mask and isinstance(wrapper, RecordEpisodeStatistics):
        return f"{RESETS_ALL} VecMonitor, or AutoresetMode.SAME_STEP"
    return None


def _mode(env: VectorEnv, given: AutoresetMode | str | None) -> AutoresetMode:
    # ALE writes its mode into the metadata of gymnasium's base class, which all environments without metadata of their
    # own share. So an attribute takes precedence, and the metadata of the base class is ignored.
    metadata = {} if env.metadata is VectorEnv.metadata else env.metadata
    declared = getattr(env.unwrapped, "autoreset_mode", metadata.get("autoreset_mode"))
    try:
        modes = {AutoresetMode(mode) for mode in (given, declared) if mode is not None}
    except ValueError:
        modes = set()
    if len(modes) != 1:
        allowed = ", ".join(f"'{mode.value}'" for mode in AutoresetMode)
        raise ArgumentError(
            f"autoreset_mode={given!r} must be the mode of env, one of {allowed}; its metadata says {declared}"
        )
    return modes.pop()
