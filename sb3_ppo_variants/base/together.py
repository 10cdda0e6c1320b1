"""Keeps the models of processes that train together in step.

An update equals that of a single process with the environments of all processes, whose minibatches combine the rows of
all of them. The backends average gradients; this module does the rest.
"""

import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import zip_longest
from typing import Any
from zlib import crc32

import numpy as np
import torch as th
from stable_baselines3.common import utils
from stable_baselines3.common.callbacks import CallbackList, CheckpointCallback, EvalCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from sb3_ppo_variants.errors import ArgumentError, ProcessError
from sb3_ppo_variants.processes import Processes
from sb3_ppo_variants.saving import SavedAlgorithm

# Arguments that may differ between processes.
FREE = {"policy", "env", "seed", "device", "verbose", "tensorboard_log", "_init_setup_model", "updates"}
PACKAGES = ("sb3_ppo_variants", "stable_baselines3", "gymnasium", "torch")
# Callbacks that evaluate or write files. Only rank 0 runs them.
ONCE = (CheckpointCallback, EvalCallback)
# The attributes of a model that hold the results of its last episodes.
EPISODES = ("ep_info_buffer", "ep_success_buffer")


def begin(model: SavedAlgorithm, names: Mapping[str, Any], total_timesteps: int) -> None:
    """Begin to train together, with the same model and different random numbers in each process. Only rank 0 logs.

    :param names: the names of the model's arguments
    :param total_timesteps: the argument of ``learn``
    :raises ArgumentError: if the models or their arguments differ, naming what differs
    """
    processes = model.processes
    each = processes.exchange("begins to learn", _description(model, names) | {"total_timesteps": total_timesteps})
    _refuse_differences(each)
    _set_apart(model)
    _take_first(model)
    if processes.rank > 0:
        model.set_logger(Logger(folder=None, output_formats=[]))


def _description(model: SavedAlgorithm, names: Mapping[str, Any]) -> dict[str, str]:
    """Return everything that must be the same in all processes, by name."""
    versions = {name: import_module(name).__version__ for name in PACKAGES}
    arguments = {name: _told(getattr(model, name)) for name in names if name not in FREE and hasattr(model, name)}
    shapes = {f"policy's {name}": tuple(p.shape) for name, p in model.policy.named_parameters()}
    others = {
        "algorithm": type(model).__name__,
        "observation_space": model.observation_space,
        "action_space": model.action_space,
        "n_envs": model.n_envs,
        "num_timesteps": model.num_timesteps,
    }
    return {name: str(value) for name, value in {**others, **versions, **arguments, **shapes}.items()}


def _told(value: Any) -> Any:
    # Functions, such as schedules, are compared by their values.
    return (
        [value(progress) for progress in (1.0, 0.5, 0.0)] if callable(value) and not isinstance(value, type) else value
    )


def _refuse_differences(each: list[dict[str, Any]]) -> None:
    for rank, other in enumerate(each):
        for name in {**each[0], **other}:
            first, own = each[0].get(name, "missing"), other.get(name, "missing")
            if first != own:
                raise ArgumentError(
                    f"{name} is {first} in rank 0 and {own} in rank {rank}: all processes must have the same value"
                )


def _set_apart(model: SavedAlgorithm) -> None:
    """Give each process its own random numbers, unless it already has them."""
    processes, env = model.processes, model.env
    assert env is not None
    states = processes.exchange("compares random numbers", (_random_digest(), env.unwrapped._seeds))
    digests, seeds = [digest for digest, _ in states], [seeds[0] for _, seeds in states]
    rank = processes.rank
    if digests[rank] in digests[:rank]:
        words = np.random.SeedSequence([digests[rank], rank]).generate_state(3)
        th.manual_seed(int(words[0]))
        np.random.seed(int(words[1]))
        random.seed(int(words[2]))
    if seeds[rank] is not None and seeds[rank] in seeds[:rank]:
        # These are the seeds that the environments would have in a single process.
        env.seed(int(seeds[rank] or 0) + rank * env.num_envs)


def _random_digest() -> int:
    numpy = np.random.get_state(legacy=False)
    return crc32(repr((random.getstate(), numpy, th.get_rng_state().tolist())).encode())


def _take_first(model: SavedAlgorithm) -> None:
    """Load the networks and optimizers of rank 0 in all other processes."""
    processes = model.processes
    own: dict[str, Any] = model.get_parameters() if processes.rank == 0 else {}
    states = processes.exchange("takes the weights of rank 0", own)[0]
    if processes.rank > 0:
        model.set_parameters(states, device=model.device)


def check_same(model: SavedAlgorithm) -> None:
    """Check that the weights are the same in all processes, by a checksum of their bits.

    :raises ProcessError: if they are not, naming the ranks
    """
    processes = model.processes
    if processes.size == 1:
        return
    with th.no_grad():
        bits = [parameter.flatten().view(th.int32).sum(dtype=th.int64) for parameter in model.policy.parameters()]
    sums = processes.gather(th.stack(bits).cpu().sum()[None]).flatten().tolist()
    if len(set(sums)) > 1:
        usual = max(set(sums), key=sums.count)
        others = " and ".join(f"rank {rank}" for rank, one in enumerate(sums) if one != usual)
        raise ProcessError(f"the weights of {others} differ from those of the other ranks: something changed them")


class Rollout:
    """Combines the statistics of a rollout over all processes.

    :param model: the model, before the rollout
    """

    def __init__(self, model: SavedAlgorithm):
        self._model = model
        self._together = model.processes.size > 1
        if self._together:
            self._take_first_moments()  # A checkpoint written before the rollout holds these.
            self._n_before = [len(self._buffer(name)) for name in EPISODES]
            for name in EPISODES:  # Lift the size limit, which would hide how many episodes are new.
                setattr(model, name, deque(self._buffer(name)))

    def _buffer(self, name: str) -> deque[Any]:
        return getattr(self._model, name)

    def _take_first_moments(self) -> None:
        moments = _moments(self._model.env)
        if moments:
            for own, first in zip(moments, self._model.processes.exchange("takes statistics", moments)[0], strict=True):
                own.mean, own.var, own.count = first.mean, first.var, first.count

    def begin(self) -> None:
        """Begin the rollout. Call this after ``on_rollout_start``, where callbacks may reset the environments."""
        if self._together:
            self._take_first_moments()
            self._before = [moments.copy() for moments in _moments(self._model.env)]

    def end(self, going: bool) -> bool:
        """Add the statistics that the other processes have collected.

        :param going: whether this process continues training
        :return: whether all processes do
        """
        if not self._together:
            return going
        new = [list(self._buffer(name))[n:] for name, n in zip(EPISODES, self._n_before, strict=True)]
        all_moments = _moments(self._model.env)
        each = self._model.processes.exchange("ends a rollout", (going, new, all_moments))
        for i, (name, n) in enumerate(zip(EPISODES, self._n_before, strict=True)):
            in_turn = zip_longest(*(episodes[i] for _, episodes, _ in each), fillvalue=None)
            added = [episode for turn in in_turn for episode in turn if episode is not None]
            kept = [*list(self._buffer(name))[:n], *added]
            setattr(self._model, name, deque(kept, maxlen=self._model._stats_window_size))
        for i, (moments, before) in enumerate(zip(all_moments, self._before, strict=True)):
            merge_moments(moments, before, [others[i] for _, _, others in each])
        return all(going for going, _, _ in each)


def _moments(env: VecEnv | None) -> list[RunningMeanStd]:
    """Return the statistics of all ``VecNormalize`` wrappers, from the outside in."""
    if not isinstance(env, VecEnvWrapper):
        return []
    own: list[RunningMeanStd] = []
    if isinstance(env, VecNormalize):
        observations = getattr(env, "obs_rms", None)
        own = [*(observations.values() if isinstance(observations, dict) else [observations]), env.ret_rms]
    return [*(moments for moments in own if moments is not None), *_moments(env.venv)]


def merge_moments(moments: RunningMeanStd, before: RunningMeanStd, each: Sequence[RunningMeanStd]) -> None:
    """Set moments to those of the data of all processes, which started from common data.

    :param moments: the moments to set
    :param before: the moments of the common data
    :param each: the moments of each process: of the common data and its own
    """
    if all(one.count == before.count for one in each):
        return  # There is no new data.
    # Sum x and x^2 relative to the previous mean, which preserves precision.
    counts = [one.count - before.count for one in each]
    sums = [one.count * (one.mean - before.mean) for one in each]
    squares = [one.count * (one.var + (one.mean - before.mean) ** 2) - before.count * before.var for one in each]
    count = before.count + sum(counts)
    shift = sum(sums) / count
    moments.mean = before.mean + shift
    moments.var = (before.count * before.var + sum(squares)) / count - shift**2
    moments.count = count


def explained_variance(values: np.ndarray, returns: np.ndarray, processes: Processes) -> float:
    """Return SB3's ``explained_variance`` for the predictions of all processes, each of which has the same number."""
    if processes.size == 1:
        return utils.explained_variance(values.flatten(), returns.flatten())
    means = [array.mean(dtype=np.float64) for part in (returns, returns - values) for array in (part, part**2)]
    together = th.tensor(means, dtype=th.float64)
    processes.average(together)
    mean, square, mean_error, square_error = together.tolist()
    variance = square - mean**2
    return np.nan if variance == 0 else 1 - (square_error - mean_error**2) / variance


@contextmanager
def failing(processes: Processes) -> Iterator[None]:
    """While the context is active, an error or an interrupt in this process also ends the other processes."""
    try:
        yield
    except BaseException as error:
        processes.failed(error)
        raise


def own_callbacks(callback: MaybeCallback, processes: Processes) -> MaybeCallback:
    """Return the callbacks that a process runs: on ranks other than 0, none of those that evaluate or save.

    This searches a list of callbacks, but not callbacks within other callbacks.
    """
    if processes.rank == 0:
        return callback
    if isinstance(callback, CallbackList):
        return CallbackList([one for one in callback.callbacks if not isinstance(one, ONCE)])
    if isinstance(callback, list):
        return [one for one in callback if not isinstance(one, ONCE)]
    return None if isinstance(callback, ONCE) else callback
