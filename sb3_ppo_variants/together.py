"""Keeps the models of processes that train together in step.

An update equals that of a single process with the environments of all processes, whose minibatches combine the rows of
all of them. The backends average gradients; this module does the rest.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from sb3_ppo_variants.collector import Steps
from sb3_ppo_variants.errors import ProcessError
from sb3_ppo_variants.guards import capabilities
from sb3_ppo_variants.processes import Processes
from sb3_ppo_variants.processes.descriptions import describe, refuse_differences
from sb3_ppo_variants.processes.statistics import Contribution, find_normalizations, name_wrapper
from sb3_ppo_variants.saving import SavedAlgorithm
from sb3_ppo_variants.saving.state import EPISODES
from sb3_ppo_variants.update import UpdatePlan

OF_SAME_VERSION = ("sb3_ppo_variants", "stable_baselines3", "gymnasium", "torch")
# Arguments that may differ between processes.
FREE = {"policy", "env", "seed", "device", "verbose", "tensorboard_log"}
OF_NORMALIZATION = (
    "training", "norm_obs", "norm_obs_keys", "norm_reward", "clip_obs", "clip_reward", "gamma", "epsilon",
)  # fmt: skip
OF_BUFFER = ("buffer_size", "gamma", "gae_lambda")
OF_DESCENT = ("learning_rate", "epochs", "max_grad_norm", "stop", "adaptive", "of_policy", "of_value")
# The parameters themselves are compared one by one, and each update sets the learning rate.
NOT_OF_OPTIMIZER = {"params", "lr"}


def settings_of(
    model: SavedAlgorithm, names: Iterable[str], plan: UpdatePlan, path: str, progress_remaining: Sequence[float]
) -> dict[str, str]:
    """Describe everything that an update depends on, except its data.

    :param names: the names of the model's arguments
    :param plan: the plan of the update
    :param path: the path of the backend; the two paths exchange numbers in a different order
    :param progress_remaining: where to compare schedules
    :return: descriptions that are the same in all processes if the settings are, by name
    """
    found = {
        **dict(_arguments(model, names)),
        **dict(_of_plan(plan)),
        **dict(_of_normalizations(model.env)),
        "path of the update": path,
    }
    return {name: describe(value, progress_remaining) for name, value in found.items()}


def _arguments(model: SavedAlgorithm, names: Iterable[str]) -> Iterator[tuple[str, object]]:
    for name in names:
        # The plan knows what the update makes of names with an underscore, such as beta.
        if name not in FREE and not name.startswith("_") and hasattr(model, name):
            yield name, getattr(model, name)


def _of_plan(plan: UpdatePlan) -> Iterator[tuple[str, object]]:
    """Describe what the update makes of the arguments, and what has no argument."""
    for name, value in plan.coefficients().items():
        yield f"{name} of the update", value
    for name in OF_BUFFER:
        yield f"rollout_buffer.{name}", getattr(plan.buffer, name)
    for index, descent in enumerate(plan.descents):
        which = "the update" if len(plan.descents) == 1 else f"descent {index}"
        for name in OF_DESCENT:
            yield f"{name} of {which}", getattr(descent, name)
        groups = descent.optimizer.param_groups
        for name in groups[0]:
            if name not in NOT_OF_OPTIMIZER:
                values = [group[name] for group in groups]
                yield f"{name} of the optimizer of {which}", values if len(values) > 1 else values[0]
    for name, parameter in plan.parameters.items():
        shape = tuple(parameter.shape)
        yield f"policy's {name}", shape if parameter.requires_grad else f"{shape}, frozen"


def _of_normalizations(env: VecEnv | None) -> Iterator[tuple[str, object]]:
    for index, wrapper in enumerate(find_normalizations(env)):
        for name in OF_NORMALIZATION:
            yield f"{name_wrapper(index)}.{name}", getattr(wrapper, name, None)


def begin(model: SavedAlgorithm, settings: dict[str, str], **arguments: object) -> None:
    """Begin to train together, with the same model and different random numbers in each process. Only rank 0 logs.

    :param settings: the settings of the model, which must be the same in all processes, by name
    :param arguments: those of ``learn`` that must be the same, too
    :raises ArgumentError: if the models or their settings differ, naming what differs
    """
    processes = model.processes
    own = _description(model, arguments) | settings, model.statistics.contribution(model.env)
    each = processes.exchange("begins to learn", own)
    refuse_differences([description for description, _ in each])
    model.statistics.merge(model.env, [contribution for _, contribution in each])
    _set_apart(model)
    _take_first(model)
    if processes.rank > 0:
        model.set_logger(Logger(folder=None, output_formats=[]))


def _description(model: SavedAlgorithm, arguments: dict[str, object]) -> dict[str, str]:
    """List what must be the same in all processes when they begin, except settings, by name."""
    versions = {name: import_module(name).__version__ for name in OF_SAME_VERSION}
    others = {
        "algorithm": type(model).__name__,
        "observation_space": model.observation_space,
        "action_space": model.action_space,
        "n_envs": model.n_envs,
        "num_timesteps": model.num_timesteps,
        **arguments,
    }
    return {name: describe(value) for name, value in {**others, **versions}.items()}


def _set_apart(model: SavedAlgorithm) -> None:
    """Give each process its own random numbers, unless it already has them."""
    processes, env = model.processes, model.env
    assert env is not None
    states = processes.exchange("compares random numbers", (_random_digests(), _seeds(model)))
    digests, seeds = [digests for digests, _ in states], [seeds for _, seeds in states]
    rank, known = processes.rank, [seed for of_rank in seeds for seed in of_rank]
    # If one generator is in the same state, the others may have been too, and one process has drawn from them since.
    if any(own == lower for of_rank in digests[:rank] for own, lower in zip(digests[rank], of_rank, strict=True)):
        words = np.random.SeedSequence([*digests[rank], rank]).generate_state(3)
        th.manual_seed(int(words[0]))
        np.random.seed(int(words[1]))
        random.seed(int(words[2]))
    if rank > 0 and seeds[rank] and len(known) > len(set(known)):
        # These are the seeds that the environments would have in a single process.
        capabilities.seed(env, known[0] + rank * env.num_envs)


def _seeds(model: SavedAlgorithm) -> list[int]:
    """Find the seeds of the environments, as far as they are known."""
    assert model.env is not None
    pending = capabilities.pending_seeds(model.env)
    if pending or model.seed is None or model._last_obs is not None:
        return pending
    # The model has seeded its environments, but they have been reset since, such as for an evaluation.
    return [model.seed + i for i in range(model.n_envs)]


def _random_digests() -> tuple[int, ...]:
    states = (random.getstate(), np.random.get_state(legacy=False), th.get_rng_state().tolist())
    return tuple(crc32(repr(state).encode()) for state in states)


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
    sums = processes.gather(checksum(model.policy.parameters())[None]).flatten().tolist()
    if len(set(sums)) > 1:
        usual = max(set(sums), key=sums.count)
        others = " and ".join(f"rank {rank}" for rank, one in enumerate(sums) if one != usual)
        raise ProcessError(f"the weights of {others} differ from those of the other ranks: something changed them")


@th.no_grad()
def checksum(parameters: Iterable[th.Tensor]) -> th.Tensor:
    """Compute a checksum of the bits of all parameters, shape ``()``."""
    # A plain sum would not change if the same number is added to x and -x.
    bits = [parameter.flatten().view(th.int32).long().square().sum() for parameter in parameters]
    return th.stack(bits).cpu().sum()


@contextmanager
def failing(processes: Processes) -> Iterator[None]:
    """While the context is active, an error or an interrupt in this process also ends the other processes."""
    try:
        yield
    except BaseException as error:
        processes.failed(error)
        raise


class RolloutEnd(NamedTuple):
    """What a process tells the others when it ends a rollout."""

    going: bool
    num_timesteps: int
    episodes: list[list[Any]]
    statistics: Contribution
    settings: dict[str, str]


class SharedRollout:
    """Combines the statistics of a rollout over all processes, and checks that they agree on the update after it.

    :param model: the model, before the rollout
    :param settings: returns the settings of the next update, which must be the same in all processes, by name
    """

    def __init__(self, model: SavedAlgorithm, settings: Callable[[], dict[str, str]]):
        self._model = model
        self._settings = settings
        self._together = model.processes.size > 1
        if self._together:
            self._merge()  # A checkpoint written before the rollout holds the statistics of all.
            self._episodes = [list(getattr(model, name)) for name in EPISODES]

    def _merge(self) -> None:
        """Add what the other processes have seen since the last rollout, such as when the environments were reset."""
        model = self._model
        own = model.statistics.contribution(model.env)
        if own:
            model.statistics.merge(model.env, model.processes.exchange("merges statistics", own))

    def watch(self, steps: Steps) -> Steps:
        """Return what steps the environments and, if there are several processes, collects their episodes too."""
        if self._together:
            steps = self._watched = Watched(steps, self._model._stats_window_size)
        return steps

    def begin(self) -> None:
        """Begin the rollout. Call this after ``on_rollout_start``, where callbacks may reset the environments."""
        if self._together:
            self._merge()

    def end(self, going: bool) -> bool:
        """Add the statistics that the other processes have collected.

        :param going: whether this process continues training
        :return: whether all processes do
        :raises ArgumentError: if they all do, but with different settings
        """
        if not self._together:
            return going
        model = self._model
        if going:
            # SB3 does the same after the rollout, but the schedules of the update are compared now.
            model._update_current_progress_remaining(model.num_timesteps, model._total_timesteps)
        statistics = model.statistics.contribution(model.env)
        own = RolloutEnd(
            going, model.num_timesteps, self._watched.episodes(going), statistics, self._settings() if going else {}
        )
        each = model.processes.exchange("ends a rollout", own)
        all_going = all(ended.going for ended in each)
        if all_going:
            refuse_differences([ended.settings for ended in each])
        # A callback may have stopped some processes early, so that each has counted another number of steps.
        model.num_timesteps = sum(ended.num_timesteps for ended in each) // len(each)
        for i, (name, before) in enumerate(zip(EPISODES, self._episodes, strict=True)):
            in_turn = zip_longest(*(ended.episodes[i] for ended in each), fillvalue=None)
            added = [episode for turn in in_turn for episode in turn if episode is not None]
            setattr(model, name, deque([*before, *added], maxlen=model._stats_window_size))
        model.statistics.merge(model.env, [ended.statistics for ended in each])
        return all_going


class Watched:
    """Steps environments, and collects the episodes of a rollout apart from those that the model has.

    :param steps: steps the environments
    :param size: number of episodes to keep
    """

    def __init__(self, steps: Steps, size: int):
        self.num_envs = steps.num_envs
        self._steps = steps
        self._new: Any = SimpleNamespace(**{name: deque(maxlen=size) for name in EPISODES})
        self._latest: tuple[Any, ...] = ((), None)

    def step(self, actions: np.ndarray) -> VecEnvStepReturn:
        """Step the environments."""
        self._collect()
        observations, rewards, dones, infos = self._steps.step(actions)
        self._latest = (infos, dones)
        return observations, rewards, dones, infos

    def _collect(self) -> None:
        BaseAlgorithm._update_info_buffer(self._new, *self._latest)

    def episodes(self, going: bool) -> list[list[Any]]:
        """Collect the results of the episodes that have ended.

        :param going: False if a callback has stopped the rollout, in which case SB3 ignores the last step
        """
        if going:
            self._collect()
        return [list(getattr(self._new, name)) for name in EPISODES]
