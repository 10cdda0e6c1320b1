"""The end of an episode, which SB3 knows in one form and gymnasium in three.

SB3's ``VecEnv`` resets within the step that ends an episode: that step returns the first observation of the next
episode, and the last of the old one in its info. See https://farama.org/Vector-Autoreset-Mode for gymnasium's modes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import NormalizeObservation, NormalizeReward, RecordEpisodeStatistics
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs

from sb3_ppo_variants.envs import rows
from sb3_ppo_variants.envs.infos import Infos, per_env
from sb3_ppo_variants.errors import refuse

# Takes the environment, observations, dones and infos of a step in which some environment was done. It writes the
# first observations of the new episodes and ``terminal_observation`` into them, and returns the info of each reset.
EndOfEpisode = Callable[[VectorEnv, VecEnvObs, np.ndarray, Infos], dict[int, dict[str, Any]]]


def reset_in_the_step(env: VectorEnv, observations: VecEnvObs, dones: np.ndarray, infos: Infos) -> dict[int, Any]:
    """SAME_STEP: the new episode has begun; the last observation and info of the old one are in the info."""
    reset_infos = {}
    # What this wrapper says of the old episode stands beside what the environment says of the new one.
    of_the_old = [wrapper._stats_key for wrapper in _wrappers(env) if isinstance(wrapper, RecordEpisodeStatistics)]
    for i, info in enumerate(infos):
        # ALE fills final_obs for all environments, with what it last was for those that are not done.
        final_observation, final_info = info.pop("final_obs", None), info.pop("final_info", {})
        if dones[i]:
            if final_observation is None:
                refuse("env", env, "in AutoresetMode.SAME_STEP, one that gives infos['final_obs']")
            statistics = {key: info.pop(key) for key in of_the_old}
            reset_infos[i] = info
            infos[i] = {**final_info, **statistics, "terminal_observation": final_observation}
    return reset_infos


def reset_at_once(env: VectorEnv, observations: VecEnvObs, dones: np.ndarray, infos: Infos) -> dict[int, Any]:
    """NEXT_STEP and DISABLED: reset those that are done now.

    In NEXT_STEP this comes before the step in which the environment would reset itself and ignore its action.
    """
    ended = np.flatnonzero(dones).tolist()
    for i in ended:
        infos[i]["terminal_observation"] = rows.row(observations, i)
    with _others_kept(env, dones):
        first, vector_infos = env.reset(options={"reset_mask": dones.copy()})
    reset_infos = per_env(vector_infos, rows.count(first))
    if len(reset_infos) == len(dones):
        if not _resets_others(env) and not rows.equal(rows.take(first, ~dones), rows.take(observations, ~dones)):
            refuse("env", env, "one whose reset heeds options['reset_mask'], or one in AutoresetMode.SAME_STEP")
        first, reset_infos = rows.take(first, dones), [reset_infos[i] for i in ended]
    # Otherwise it is EnvPool, which returns those that were reset and no others.
    rows.put(observations, dones, first)
    return dict(zip(ended, reset_infos, strict=True))


ENDS: Mapping[AutoresetMode, EndOfEpisode] = {
    AutoresetMode.SAME_STEP: reset_in_the_step,
    AutoresetMode.NEXT_STEP: reset_at_once,
    AutoresetMode.DISABLED: reset_at_once,
}


def _resets_others(env: VectorEnv) -> bool:
    return isinstance(env.unwrapped, CartPoleVectorEnv)


@contextmanager
def _others_kept(env: VectorEnv, mask: np.ndarray) -> Iterator[None]:
    """Keep what is outside of the mask through a reset.

    gymnasium's CartPoleVectorEnv resets all poles whatever the mask, and has its state in two arrays.
    """
    inner: Any = env.unwrapped
    if not _resets_others(env):
        yield
        return
    state, steps = inner.state.copy(), inner.steps.copy()
    yield
    inner.state[:, ~mask], inner.steps[~mask] = state[:, ~mask], steps[~mask]


def end_of_episode(env: VectorEnv, mode: AutoresetMode | str | None) -> EndOfEpisode:
    """What to do at the end of an episode.

    :param env: the vector environment
    :param mode: its autoreset mode, if it does not say so itself
    :raises ArgumentError: if it is unknown, or does not work
    """
    known = _mode(env, mode)
    inner = env.unwrapped
    if isinstance(inner, AsyncVectorEnv) and known is AutoresetMode.NEXT_STEP and not inner.shared_memory:
        # Its workers forget that they were reset, and reset again in the next step.
        refuse("env", env, "an AsyncVectorEnv with shared_memory=True, or in AutoresetMode.SAME_STEP")
    if known is not AutoresetMode.SAME_STEP:
        _check_wrappers(env)
    return ENDS[known]


def _wrappers(env: VectorEnv) -> Iterator[VectorWrapper]:
    while isinstance(env, VectorWrapper):
        yield env
        env = env.env


def _check_wrappers(env: VectorEnv) -> None:
    """Refuse the wrappers that know no reset of some environments: they raise, or forget the returns of all."""
    # These two take the mask out of the options, so that the wrapper does not see it.
    hides_mask = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
    for wrapper in _wrappers(env):
        if isinstance(wrapper, NormalizeObservation):
            refuse("env", env, "one with SB3's VecNormalize for NormalizeObservation")
        if isinstance(wrapper, NormalizeReward):
            refuse("env", env, "one in AutoresetMode.SAME_STEP, or with SB3's VecNormalize for NormalizeReward")
        if isinstance(wrapper, RecordEpisodeStatistics) and hides_mask:
            refuse("env", env, "one in AutoresetMode.SAME_STEP, or with SB3's VecMonitor for RecordEpisodeStatistics")


def _mode(env: VectorEnv, given: AutoresetMode | str | None) -> AutoresetMode:
    inner: Any = env.unwrapped
    # ALE writes its mode into the metadata of gymnasium's base class, so that environments which say nothing seem to
    # say it too; what an environment has in an attribute comes first, and what is in the base class does not count.
    metadata = {} if env.metadata is VectorEnv.metadata else env.metadata
    declared = getattr(inner, "autoreset_mode", metadata.get("autoreset_mode"))
    try:
        modes = {AutoresetMode(mode) for mode in (given, declared) if mode is not None}
    except ValueError:
        modes = set()
    if len(modes) != 1:
        allowed = ", ".join(f"'{mode.value}'" for mode in AutoresetMode)
        refuse(
            "autoreset_mode",
            given,
            f"one of {allowed}, the mode in which the environment was made; its own metadata says {declared}",
        )
    return modes.pop()
