"""Keeps the models of processes that train together in step.

An update equals that of a single process with the environments of all processes, whose minibatches combine the rows of
all of them. The engines average gradients; this module does the rest: it compares settings and weights, gives each
process random numbers of its own, and merges episodes and the statistics of ``VecNormalize``.
"""

import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch as th
from stable_baselines3.common.logger import Logger

from sb3_ppo_variants.arguments import describe
from sb3_ppo_variants.envs.adapter import pending_seeds, seed_env
from sb3_ppo_variants.errors import ArgumentError, ProcessError
from sb3_ppo_variants.saving import SavedAlgorithm
from sb3_ppo_variants.saving.state import EPISODES
from sb3_ppo_variants.update import UpdatePlan

# Arguments that may differ between processes.
FREE = {"policy", "env", "seed", "device", "verbose", "tensorboard_log"}


def settings_of(model: SavedAlgorithm, names: Iterable[str], plan: UpdatePlan, path: str) -> dict[str, str]:
    """Describe what all processes must have in common for an update.

    :param names: the names of the model's arguments
    :param plan: the plan of the update
    :param path: the path of the engine; the two paths exchange numbers in a different order
    """
    found: dict[str, object] = {name: getattr(model, name, None) for name in names if name not in FREE}
    found |= {f"{name} of the update": value for name, value in plan.coefficients().items()}
    found |= {f"learning rate {i}": descent.learning_rate for i, descent in enumerate(plan.descents)}
    found |= {
        "path of the update": path,
        "algorithm": type(model).__name__,
        "observation_space": model.observation_space,
        "action_space": model.action_space,
        "n_envs": model.n_envs,
        "shapes of the policy": {name: (*each.shape,) for name, each in plan.parameters.items() if each.requires_grad},
    }
    return {name: describe(value, model._current_progress_remaining) for name, value in found.items()}


def check_same_settings(each: Sequence[Mapping[str, str]]) -> None:
    """Check that all processes have the same settings.

    :raises ArgumentError: if one differs, with its name, the ranks and their values
    """
    for rank, other in enumerate(each):
        for name, first in each[0].items():
            if other.get(name) != first:
                raise ArgumentError(
                    f"{name} is {first} in rank 0 and {other.get(name)} in rank {rank}: all processes must have the "
                    "same value. If a callback sets it, let it do so in all of them"
                )


def begin(model: SavedAlgorithm, settings: dict[str, str], **arguments: object) -> None:
    """Begin to train together, with the same model and different random numbers in each process. Only rank 0 logs.

    :param settings: the settings of the model, which must be the same in all processes, by name
    :param arguments: those of ``learn`` that must be the same, too
    :raises ArgumentError: if the models or their settings differ, naming what differs
    """
    processes = model.processes
    same = {"num_timesteps": model.num_timesteps, **arguments}
    own = settings | {name: repr(value) for name, value in same.items()}
    check_same_settings(processes.exchange("begins to learn", own))
    model.statistics.merge(model.env, processes)
    _set_apart(model)
    states: dict[str, Any] = model.get_parameters() if processes.rank == 0 else {}
    states = processes.exchange("takes the weights of rank 0", states)[0]
    if processes.rank > 0:
        model.set_parameters(states, device=model.device)
        model.set_logger(Logger(folder=None, output_formats=[]))


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
        seed_env(env, known[0] + rank * env.num_envs)


def _seeds(model: SavedAlgorithm) -> list[int]:
    """Find the seeds of the environments, as far as they are known."""
    assert model.env is not None
    pending = pending_seeds(model.env)
    if pending or model.seed is None or model._last_obs is not None:
        return pending
    # The model has seeded its environments, but they have been reset since, such as for an evaluation.
    return [model.seed + i for i in range(model.n_envs)]


def _random_digests() -> tuple[int, ...]:
    states = (random.getstate(), np.random.get_state(legacy=False), th.get_rng_state().tolist())
    return tuple(crc32(repr(state).encode()) for state in states)


def check_same_weights(model: SavedAlgorithm) -> None:
    """Check that the weights are the same in all processes, by a checksum of their bits.

    :raises ProcessError: if they are not, naming the ranks
    """
    sums = model.processes.gather(checksum(model.policy.parameters())[None]).flatten().tolist()
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


class RolloutEnd(NamedTuple):
    """What a process tells the others when it ends a rollout."""

    going: bool
    num_timesteps: int
    episodes: list[list[Any]]
    settings: dict[str, str]


class SharedRollout:
    """Combines the statistics of a rollout over all processes, and checks that they agree on the update after it.

    :param model: the model, before the rollout and its ``on_rollout_start``
    """

    def __init__(self, model: SavedAlgorithm):
        self._model = model
        # A checkpoint written before the rollout holds the statistics of all.
        model.statistics.merge(model.env, model.processes)
        self._before: dict[str, list[Any]] = {name: list(getattr(model, name)) for name in EPISODES}
        for name, episodes in self._before.items():
            setattr(model, name, deque(episodes))  # Without a bound, so that it tells which ones are new.

    def end(self, going: bool, settings: dict[str, str]) -> bool:
        """Add the statistics that the other processes have collected.

        :param going: whether this process continues training
        :param settings: those of the next update
        :return: whether all processes do
        :raises ArgumentError: if they all do, but with different settings
        """
        model, n_before = self._model, [*map(len, self._before.values())]
        new = [[*getattr(model, name)][n:] for name, n in zip(EPISODES, n_before, strict=True)]
        own = RolloutEnd(going, model.num_timesteps, new, settings)
        each = model.processes.exchange("ends a rollout", own)
        all_going = all(ended.going for ended in each)
        if all_going:
            check_same_settings([ended.settings for ended in each])
        # A callback may have stopped some processes early, so that each has counted another number of steps.
        model.num_timesteps = sum(ended.num_timesteps for ended in each) // len(each)
        for i, (name, before) in enumerate(self._before.items()):
            in_turn = zip_longest(*(ended.episodes[i] for ended in each), fillvalue=None)
            all_new = [episode for turn in in_turn for episode in turn if episode is not None]
            setattr(model, name, deque([*before, *all_new], maxlen=model._stats_window_size))
        model.statistics.merge(model.env, model.processes)
        return all_going
