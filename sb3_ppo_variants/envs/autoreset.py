"""Handles the end of an episode in each of gymnasium's autoreset modes.

SB3's ``VecEnv`` resets within the step that ends an episode: that step returns the first observation of the next
episode, and has the last observation of the old one in its info. For gymnasium's modes, see
https://farama.org/Vector-Autoreset-Mode.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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

from sb3_ppo_variants.envs import rows
from sb3_ppo_variants.envs.rows import Infos, per_env
from sb3_ppo_variants.errors import ArgumentError

LISTS = "returns infos that GymnasiumVecEnv does not expect: leave it out, because GymnasiumVecEnv makes lists of infos"
# gymnasium refuses these in SAME_STEP too, but only if the metadata says that this is the mode.
UNCHANGED_END = "does not change infos['final_obs']: use another autoreset mode, or wrap the single environments"

# Takes the environment, and the observations, dones and infos of a step that ended an episode. It writes the first
# observations of the new episodes into the observations and ``terminal_observation`` into the infos, and returns the
# info of each reset by the index of its environment.
EndOfEpisode = Callable[[VectorEnv, VecEnvObs, np.ndarray, Infos], dict[int, dict[str, Any]]]


def reset_in_the_step(env: VectorEnv, observations: VecEnvObs, dones: np.ndarray, infos: Infos) -> dict[int, Any]:
    """Handle SAME_STEP: the new episode has begun, and its info contains the last observation and info of the old."""
    reset_infos = {}
    # RecordEpisodeStatistics puts the statistics of the old episode into the info of the new one.
    of_the_old = [wrapper._stats_key for wrapper in _wrappers(env) if isinstance(wrapper, RecordEpisodeStatistics)]
    for i, info in enumerate(infos):
        # ALE fills final_obs for all environments; it is stale for those that are not done.
        final_observation, final_info = info.pop("final_obs", None), info.pop("final_info", {})
        if dones[i]:
            if final_observation is None:
                raise ArgumentError(f"env={env} must return infos['final_obs'] in AutoresetMode.SAME_STEP")
            statistics = {key: info.pop(key) for key in of_the_old}
            reset_infos[i] = info
            infos[i] = {**final_info, **statistics, "terminal_observation": final_observation}
    return reset_infos


def reset_at_once(env: VectorEnv, observations: VecEnvObs, dones: np.ndarray, infos: Infos) -> dict[int, Any]:
    """Handle NEXT_STEP and DISABLED by immediately resetting the environments that are done.

    In NEXT_STEP they would otherwise reset themselves in the next step and ignore its action.
    """
    ended = np.flatnonzero(dones).tolist()
    for i in ended:
        infos[i]["terminal_observation"] = rows.take(observations, i)
    with _others_kept(env, dones):
        first, vector_infos = env.reset(options={"reset_mask": dones.copy()})
    reset_infos = per_env(vector_infos, rows.count(first))
    if len(reset_infos) == len(dones):
        if not _resets_others(env) and not rows.equal(rows.take(first, ~dones), rows.take(observations, ~dones)):
            problem = "must reset only the environments in options['reset_mask'], or be in AutoresetMode.SAME_STEP"
            raise ArgumentError(f"env={env} {problem}")
        first, reset_infos = rows.take(first, dones), [reset_infos[i] for i in ended]
    # Otherwise env is EnvPool's, which returns only the environments that were reset.
    rows.put(observations, dones, first)
    return dict(zip(ended, reset_infos, strict=True))


def _resets_others(env: VectorEnv) -> bool:
    return isinstance(env.unwrapped, CartPoleVectorEnv)


@contextmanager
def _others_kept(env: VectorEnv, mask: np.ndarray) -> Iterator[None]:
    """Preserve the environments outside the mask during a reset.

    gymnasium's ``CartPoleVectorEnv`` ignores the mask and resets all poles. Its state consists of two arrays.
    """
    inner: Any = env.unwrapped
    if not _resets_others(env):
        yield
        return
    state, steps = inner.state.copy(), inner.steps.copy()
    yield
    inner.state[:, ~mask], inner.steps[~mask] = state[:, ~mask], steps[~mask]


def end_of_episode(env: VectorEnv, mode: AutoresetMode | str | None) -> EndOfEpisode:
    """Return the function that handles the end of an episode.

    :param env: the vector environment
    :param mode: its autoreset mode, if it does not declare one
    :raises ArgumentError: if the mode is unknown, or does not work with the environment
    """
    known = _mode(env, mode)
    inner = env.unwrapped
    if isinstance(inner, AsyncVectorEnv) and known is AutoresetMode.NEXT_STEP and not inner.shared_memory:
        # Without shared memory, the workers forget that they were reset, and reset again in the next step.
        raise ArgumentError(f"env={env} must be created with shared_memory=True or in AutoresetMode.SAME_STEP")
    _check_wrappers(env, {DictInfoToList: LISTS})
    if known is AutoresetMode.SAME_STEP:
        _check_wrappers(env, {VectorObservationWrapper: UNCHANGED_END})
        return reset_in_the_step
    _check_wrappers(env, _resetting_all(env))
    return reset_at_once


def _wrappers(env: VectorEnv) -> Iterator[VectorWrapper]:
    while isinstance(env, VectorWrapper):
        yield env
        env = env.env


def _resetting_all(env: VectorEnv) -> dict[type[VectorWrapper], str]:
    """Return wrappers that cannot reset only some environments: they raise an error or lose the returns of all."""
    problem = "can only reset all environments at once: use SB3's"
    refused: dict[type[VectorWrapper], str] = {
        NormalizeObservation: f"{problem} VecNormalize",
        NormalizeReward: f"{problem} VecNormalize, or AutoresetMode.SAME_STEP",
    }
    if isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
        # These two remove the mask from the options before the wrapper sees it.
        refused[RecordEpisodeStatistics] = f"{problem} VecMonitor, or AutoresetMode.SAME_STEP"
    return refused


def _check_wrappers(env: VectorEnv, refused: dict[type[VectorWrapper], str]) -> None:
    for wrapper in _wrappers(env):
        for kind, problem in refused.items():
            if isinstance(wrapper, kind):
                raise ArgumentError(f"{type(wrapper).__name__} in env={env} {problem}")


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
