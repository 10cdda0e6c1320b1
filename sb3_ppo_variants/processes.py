"""Data-parallel training: processes that train one policy together, and what keeps their models in step.

They communicate over the default process group of ``torch.distributed``. An update equals that of a single process with
the environments of all, whose minibatches combine the rows of all. The engines average gradients. This module does the
rest: it compares settings and weights, gives each process random numbers of its own, and merges episodes and the
statistics of ``VecNormalize``.
"""

import atexit
import os
import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import zip_longest
from typing import Literal, TypeVar
from zlib import crc32

import numpy as np
import torch as th
import torch.distributed as dist
from stable_baselines3.common import utils
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from sb3_ppo_variants.arguments import Values
from sb3_ppo_variants.envs.adapter import pending_seeds, seed_env
from sb3_ppo_variants.errors import ArgumentError, ProcessError
from sb3_ppo_variants.losses import ADVANTAGE_EPSILON

Content = TypeVar("Content")
# Attributes with the results of past episodes; without them a model starts new ones.
EPISODES = ("ep_info_buffer", "ep_success_buffer")


class Processes:
    """The processes that train together: here a single one, which communicates with none."""

    rank: int = 0
    """The rank of this process."""
    size: int = 1
    """The number of processes."""

    def average(self, tensor: th.Tensor) -> None:
        """Replace a tensor with its mean over the processes.

        :raises ProcessError: if the processes cannot communicate, as in all methods here
        """

    def gather(self, tensor: th.Tensor) -> th.Tensor:
        """Gather the tensors of all processes, stacked in the order of their ranks."""
        return tensor[None]

    def exchange(self, what: str, content: Content) -> list[Content]:
        """Exchange the contents that all processes pass, in the order of their ranks.

        :param what: what this process is doing, such as "writes a checkpoint"; must be the same in all processes
        """
        return [content]

    def mean(self, value: float) -> float:
        """Compute the mean of a number over the processes."""
        if self.size == 1:
            return value
        number = th.tensor([value], dtype=th.float64)
        self.average(number)
        return number.item()


ALONE = Processes()


class DistributedProcesses(Processes):
    """The processes of the default process group. Gloo and torchrun notice those that have ended or hang."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def average(self, tensor: th.Tensor) -> None:
        with self._communicating():
            # Gloo adds in the same order on all ranks, so they all get the same bits.
            dist.all_reduce(tensor)
        tensor /= self.size

    def gather(self, tensor: th.Tensor) -> th.Tensor:
        each = [th.empty_like(tensor) for _ in range(self.size)]
        with self._communicating():
            dist.all_gather(each, tensor.contiguous())
        return th.stack(each)

    def exchange(self, what: str, content: Content) -> list[Content]:
        each = [("", content)] * self.size
        with self._communicating():
            dist.all_gather_object(each, (what, content))
        moments = [moment for moment, _ in each]
        if len(set(moments)) > 1:
            where = ", ".join(f"rank {rank} {moment}" for rank, moment in enumerate(moments))
            raise ProcessError(
                f"the processes are doing different things: {where}. Pass the same callbacks to all of them, and call "
                "learn() in all of them"
            )
        return [content for _, content in each]

    @contextmanager
    def _communicating(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise ProcessError(
                f"rank {self.rank} cannot communicate with the other processes any more, because one of them has ended "
                f"or did not answer in time: see its own error. Resume all from a checkpoint. PyTorch says: {error}"
            ) from error


def current(data_parallel: bool | Literal["auto"]) -> Processes:
    """Find the processes that train together.

    :param data_parallel: ``"auto"`` uses the process group if one is initialised; True requires a group, and
        initialises it if torchrun started this process; False trains alone
    :raises ArgumentError: if a group is required and there is none, or it has no backend for tensors on CPUs
    """
    if data_parallel is False or (data_parallel == "auto" and not (dist.is_available() and dist.is_initialized())):
        return ALONE
    if not dist.is_available():
        raise ArgumentError("data_parallel=True needs torch.distributed, without which this PyTorch was built")
    if not init_processes():
        raise ArgumentError(
            "data_parallel=True needs a process group: start the script with torchrun, or call "
            "torch.distributed.init_process_group() before you create the model"
        )
    if dist.get_world_size() == 1:
        return ALONE
    if "cpu:" not in (backends := dist.get_backend_config()):
        raise ArgumentError(
            f"data_parallel={data_parallel!r} needs a process group that can exchange tensors on CPUs too, but its "
            f"backends are {backends!r}: call init_processes(), or torch.distributed.init_process_group() with "
            "'cpu:gloo,cuda:nccl' or 'gloo'"
        )
    return DistributedProcesses()


def _of_attempt(timeout: timedelta) -> Values:
    """Find the arguments with which processes that torchrun has restarted do not read what earlier ones have stored.

    PyTorch 2.13 lets them connect to the addresses of those. With several nodes, there are no such arguments, because
    each node counts its restarts itself.
    """
    attempt, n_nodes = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), os.environ.get("GROUP_WORLD_SIZE", "1")
    if attempt == "0" or n_nodes != "1":
        return {}
    store, rank, size = next(dist.rendezvous("env://", timeout=timeout))
    return {"store": dist.PrefixStore(f"sb3_ppo_variants/attempt_{attempt}", store), "rank": rank, "world_size": size}


def init_processes(timeout: timedelta = timedelta(minutes=30)) -> bool:
    """Initialise the process group if torchrun started this process; otherwise do nothing.

    Tensors on CPUs are averaged with gloo, tensors on GPUs with NCCL.

    :param timeout: how long a process waits for the others before it considers them gone
    :return: whether there is a process group
    """
    if not dist.is_available():
        return False
    if not dist.is_initialized() and {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        gpus = th.cuda.is_available() and dist.is_nccl_available()
        if gpus:
            th.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % th.cuda.device_count())
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=timeout, **_of_attempt(timeout))
        atexit.register(_destroy)  # PyTorch may abort a process that exits without leaving its group.
    return dist.is_initialized()


def _destroy() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def normalize_together(advantages: th.Tensor, processes: Processes) -> th.Tensor:
    """Normalise minibatches distributed over processes as :func:`sb3_ppo_variants.losses.normalize_advantages` does.

    :param advantages: the rows of each minibatch in this process, shape ``(..., rows)``
    """
    rows = advantages.shape[-1]
    mean = advantages.mean(dim=-1)
    squares = ((advantages - mean[..., None]) ** 2).sum(dim=-1)
    means, all_squares = processes.gather(th.stack([mean, squares])).unbind(dim=1)
    mean = means.mean(dim=0)
    variance = (all_squares + rows * (means - mean) ** 2).sum(dim=0) / (processes.size * rows - 1)
    return (advantages - mean[..., None]) / (variance.sqrt()[..., None] + ADVANTAGE_EPSILON)


def mean_and_variance(numbers: th.Tensor, processes: Processes) -> tuple[float, float]:
    """Compute the mean and the variance of the numbers of all processes, each of which has the same number of them."""
    variance, mean = th.var_mean(numbers.double(), correction=0)
    variances, means = processes.gather(th.stack([variance, mean])).unbind(dim=1)
    together = means.mean()
    return together.item(), (variances + (means - together) ** 2).mean().item()


@np.errstate(all="ignore")
def explained_variance(values: np.ndarray, returns: np.ndarray, processes: Processes) -> float:
    """Compute SB3's ``explained_variance`` for the predictions of all processes, each of which has the same number."""
    if processes.size == 1:
        return float(utils.explained_variance(values, returns))
    expected = th.from_numpy(returns).double()
    _, unexplained = mean_and_variance(expected - th.from_numpy(values), processes)
    _, variance = mean_and_variance(expected, processes)
    return np.nan if variance == 0 else 1 - unexplained / variance


class Statistics:
    """The statistics of a model's ``VecNormalize`` wrappers, and what all processes last had in common."""

    def __init__(self) -> None:
        # Each object is kept together with a copy. If a wrapper has another object, its data is not known.
        self._common: dict[str, tuple[RunningMeanStd, RunningMeanStd]] = {}

    def agree(self, env: VecEnv | None) -> None:
        """Note that all processes have the same statistics now."""
        self._common = {name: (moments, moments.copy()) for name, moments in _get_moments(env).items()}

    def merge(self, env: VecEnv | None, processes: Processes) -> None:
        """Set the statistics to those of the data of all processes.

        What a process has added since they last had the same is its own data, wherever it comes from: rollouts, resets
        or callbacks. If they have had nothing in common before, they take the statistics of rank 0.

        :raises ArgumentError: if the processes have different wrappers
        """
        own = _get_moments(env)
        is_known = all(name in self._common and self._common[name][0] is moments for name, moments in own.items())
        each = processes.exchange("merges statistics", (is_known, own))
        if len({(*one,) for _, one in each}) > 1:
            names = " and ".join(f"rank {rank} has {[*one]}" for rank, (_, one) in enumerate(each))
            raise ArgumentError(f"the processes have different VecNormalize wrappers: {names}")
        for name, moments in own.items():
            now = [one[name] for _, one in each]
            if all(known for known, _ in each):
                merge_moments(moments, self._common[name][1], now)
            else:
                moments.mean, moments.var, moments.count = now[0].mean, now[0].var, now[0].count
        self.agree(env)


def find_normalizations(env: VecEnv | None) -> list[VecNormalize]:
    """Find the ``VecNormalize`` wrappers of an environment, from the outside in."""
    inner = find_normalizations(env.venv) if isinstance(env, VecEnvWrapper) else []
    return [env, *inner] if isinstance(env, VecNormalize) else inner


def _get_moments(env: VecEnv | None) -> dict[str, RunningMeanStd]:
    found: dict[str, RunningMeanStd] = {}
    for index, wrapper in enumerate(find_normalizations(env)):
        name, observations = f"VecNormalize {index}", getattr(wrapper, "obs_rms", None)
        if isinstance(observations, dict):
            found |= {f"{name}.obs_rms[{key!r}]": moments for key, moments in observations.items()}
        elif observations is not None:
            found[f"{name}.obs_rms"] = observations
        found[f"{name}.ret_rms"] = wrapper.ret_rms
    return found


def merge_moments(moments: RunningMeanStd, before: RunningMeanStd, each: Sequence[RunningMeanStd]) -> None:
    """Set moments to those of the data of all processes, each of which has added data to that of ``before``."""
    # Sum x and x^2 relative to the previous mean, which preserves precision.
    counts = [one.count - before.count for one in each]
    sums = [one.count * (one.mean - before.mean) for one in each]
    squares = [one.count * (one.var + (one.mean - before.mean) ** 2) - before.count * before.var for one in each]
    count = before.count + sum(counts)
    shift = sum(sums) / count
    moments.mean = before.mean + shift
    moments.var = (before.count * before.var + sum(squares)) / count - shift**2
    moments.count = count


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


def begin_together(
    model: OnPolicyAlgorithm, statistics: Statistics, processes: Processes, settings: Mapping[str, str]
) -> None:
    """Begin to train together, with the same model and different random numbers in each process. Only rank 0 logs.

    :param statistics: those of the model's ``VecNormalize`` wrappers
    :param settings: what must be the same in all processes, by name
    :raises ArgumentError: if the models or their settings differ, naming what differs
    """
    check_same_settings(processes.exchange("begins to learn", settings))
    statistics.merge(model.env, processes)
    _set_apart(model, processes)
    states = model.get_parameters() if processes.rank == 0 else {}
    states = processes.exchange("takes the weights of rank 0", states)[0]
    if processes.rank > 0:
        model.set_parameters(states, device=model.device)  # type: ignore[arg-type]
        model.set_logger(Logger(folder=None, output_formats=[]))


def _set_apart(model: OnPolicyAlgorithm, processes: Processes) -> None:
    """Give each process its own random numbers, unless it already has them."""
    env, rank = model.env, processes.rank
    assert env is not None
    own_seeds = pending_seeds(env)
    if not own_seeds and model.seed is not None and model._last_obs is None:
        # The model has seeded its environments, but they have been reset since, such as for an evaluation.
        own_seeds = [model.seed + i for i in range(model.n_envs)]
    generators = random.getstate(), np.random.get_state(legacy=False), th.get_rng_state().tolist()
    own = [crc32(repr(generator).encode()) for generator in generators], own_seeds
    digests, seeds = zip(*processes.exchange("compares random numbers", own), strict=True)
    # If one generator is in the same state, the others may have been too, and one process has drawn from them since.
    if any(mine == theirs for lower in digests[:rank] for mine, theirs in zip(digests[rank], lower, strict=True)):
        words = np.random.SeedSequence([*digests[rank], rank]).generate_state(3)
        th.manual_seed(int(words[0]))
        np.random.seed(int(words[1]))
        random.seed(int(words[2]))
    known = [seed for of_rank in seeds for seed in of_rank]
    if rank > 0 and own_seeds and len(known) > len(set(known)):
        # These are the seeds that the environments would have in a single process.
        seed_env(env, known[0] + rank * env.num_envs)


def check_same_weights(parameters: Iterable[th.Tensor], processes: Processes) -> None:
    """Check that the weights are the same in all processes, by a checksum of their bits.

    :raises ProcessError: if they are not, naming the ranks
    """
    # A plain sum would not change if the same number is added to x and -x.
    bits = [parameter.detach().flatten().view(th.int32).long().square().sum() for parameter in parameters]
    sums = processes.gather(th.stack(bits).sum().cpu()).tolist()
    if len(set(sums)) > 1:
        usual = max(set(sums), key=sums.count)
        others = " and ".join(f"rank {rank}" for rank, one in enumerate(sums) if one != usual)
        raise ProcessError(f"the weights of {others} differ from those of the other ranks: something changed them")


class SharedRollout:
    """Combines the statistics of a rollout over all processes, and checks that they agree on the update after it.

    :param model: the model, before the rollout and its ``on_rollout_start``
    :param statistics: those of its ``VecNormalize`` wrappers
    """

    def __init__(self, model: OnPolicyAlgorithm, statistics: Statistics, processes: Processes):
        self._model, self._statistics, self._processes = model, statistics, processes
        # A checkpoint written before the rollout holds the statistics of all.
        statistics.merge(model.env, processes)
        self._before = {name: [*getattr(model, name)] for name in EPISODES}
        for name, episodes in self._before.items():
            setattr(model, name, deque(episodes))  # Without a bound, so that it tells which ones are new.

    def end(self, going: bool, settings: Mapping[str, str]) -> bool:
        """Add the statistics that the other processes have collected.

        :param going: whether this process continues training
        :param settings: those of the next update
        :return: whether all processes do
        :raises ArgumentError: if they all do, but with different settings
        """
        model = self._model
        new = {name: [*getattr(model, name)][len(before) :] for name, before in self._before.items()}
        each = self._processes.exchange("ends a rollout", (going, model.num_timesteps, new, settings))
        all_going, steps, episodes, all_settings = zip(*each, strict=True)
        if all(all_going):
            check_same_settings(all_settings)
        # A callback may have stopped some processes early, so that each has counted another number of steps.
        model.num_timesteps = sum(steps) // len(steps)
        for name, before in self._before.items():
            in_turn = zip_longest(*(of_rank[name] for of_rank in episodes))
            all_new = [episode for turn in in_turn for episode in turn if episode is not None]
            setattr(model, name, deque([*before, *all_new], maxlen=model._stats_window_size))
        self._statistics.merge(model.env, self._processes)
        return all(all_going)
