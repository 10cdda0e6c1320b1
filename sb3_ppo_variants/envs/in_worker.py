"""The side of the workers of a ``SafeSubprocVecEnv``: a process that steps some of the environments."""

import mmap
import multiprocessing as mp
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ctypes import c_int
from functools import reduce
from itertools import accumulate
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler, recv_handle
from operator import getitem
from tempfile import TemporaryFile
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper
from stable_baselines3.common.vec_env.patch_gym import _patch_env

from sb3_ppo_variants.envs.outputs import Info, OutputCheck, copy_observation
from sb3_ppo_variants.errors import GuardError
from sb3_ppo_variants.layout import AnySpace, parts_of

if sys.platform == "linux":
    import fcntl


class Failure(NamedTuple):
    """A worker's message in place of an answer when it fails."""

    traceback: str
    wrong_output: GuardError | None


class Stepped(NamedTuple):
    """The answer to a step of a worker's environments; ``None`` stands for one without results and infos."""

    results: list[np.ndarray] | None
    """Rewards, ends and the parts of observations; ``None`` if they are in shared memory."""
    infos: dict[int, Info]
    """Infos by index of the environment, without those that are :data:`NO_INFO`."""
    begun: dict[int, Info]
    """Infos of the resets, by index of the environment."""


# The info of a step in an environment that tells nothing.
NO_INFO: Info = {"TimeLimit.truncated": False}
# The messages of most steps if memory is shared. Pickling takes longer than sending.
STEP_MESSAGE, NONE_MESSAGE = (bytes(ForkingPickler.dumps(message)) for message in (("step", None), None))

# What commands do with a single environment, as in SB3's workers.
ASKED: Mapping[str, Callable[[gym.Env, Any], object]] = {
    "get_attr": lambda env, name: env.get_wrapper_attr(name),
    "has_attr": lambda env, name: env.has_wrapper_attr(name),
    "set_attr": lambda env, name_and_value: setattr(env, *name_and_value),
    "env_method": lambda env, call: env.get_wrapper_attr(call[0])(*call[1], **call[2]),
    "render": lambda env, _: env.render(),
    "is_wrapped": is_wrapped,
}


# Memory that the processes share, so that the numbers of a step need no messages.

# Processors exchange memory in lines of this many bytes, so that arrays which begin at a line disturb no others.
CACHE_LINE = 64
# The types, with their shapes, of what each environment shares: an action, a reward, whether an episode has ended, and
# the parts of an observation.
SharedTypes: TypeAlias = Sequence[np.dtype[Any]]


def shared_types(observation_space: AnySpace, action_space: AnySpace) -> SharedTypes | None:
    """Find out what environments with these spaces share; ``None`` if their values have no fixed shape and type."""
    spaces = [action_space, *(part for _, part in parts_of(observation_space))]
    if any(space.shape is None or space.dtype is None or space.dtype.kind not in "biuf" for space in spaces):
        return None
    action, *observation = [np.dtype((space.dtype, space.shape)) for space in spaces]
    return [action, np.dtype(np.float32), np.dtype(bool), *observation]


class Block:
    """Actions, and the results of steps, with a row for each environment, in memory that several processes share.

    :param memory: what :func:`open_memory` returned, in this process or in another; it may be closed afterwards
    """

    def __init__(self, memory: int, types: SharedTypes, n_envs: int):
        sizes = _sizes(types, n_envs)
        shared, offsets = mmap.mmap(memory, sum(sizes)), accumulate(sizes, initial=0)
        arrays = [np.ndarray(n_envs, dtype, shared, offset) for dtype, offset in zip(types, offsets, strict=False)]
        self.actions, *self.results = arrays


def _sizes(types: SharedTypes, n_envs: int) -> list[int]:
    """Compute the number of bytes of each array, in whole lines."""
    return [-(-n_envs * dtype.itemsize // CACHE_LINE) * CACHE_LINE for dtype in types]


def open_memory(types: SharedTypes, n_envs: int) -> int:
    """Open memory for a :class:`Block`.

    The memory has no name, and is freed with the last process that uses it, however that ends. Where possible it is not
    in ``/dev/shm``, which is small in containers.
    """
    if hasattr(os, "memfd_create"):
        memory = os.memfd_create(__name__)
    else:
        with TemporaryFile() as file:
            memory = os.dup(file.fileno())
    os.ftruncate(memory, sum(_sizes(types, n_envs)))
    return memory


class WorkerEnvs:
    """The environments of a worker, one after the other, with checks of what their steps and resets return.

    The process of the model checks whether observations are finite, because all at once is faster.

    :param env_fns: functions that create the environments
    :param first: index of the first one
    :param current: index of the environment at work, in memory that the parent process reads when the worker fails
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]], first: int, current: c_int):
        self._first, self._current = first, current
        self._envs: list[gym.Env] = []
        for i, env_fn in enumerate(env_fns, start=first):
            current.value = i
            self._envs.append(_patch_env(env_fn()))
        self.spaces = self._envs[0].observation_space, self._envs[0].action_space
        self._check = OutputCheck(self.spaces[0], len(self._envs))
        self._rows = slice(first, first + len(self._envs))
        self.block: Block | None = None
        """Where actions come from if a command has none, and where the numbers of steps go."""

    def answer(self, command: str, data: Any) -> object:
        """Do what a command says, and return the answer."""
        if command == "step":
            return self._step(data)
        if command == "reset":
            return self._reset(*data)
        if command == "describe":
            return self.spaces
        indices, arguments = data
        answers = []
        for i in indices:
            self._current.value = i
            answers.append(ASKED[command](self._envs[i - self._first], arguments))
        return answers

    def _step(self, actions: Sequence[object] | None) -> Stepped | None:
        """Step each environment, and reset it if its episode ended."""
        observations, rewards, dones = [], [], []
        infos: dict[int, Info] = {}
        begun: dict[int, Info] = {}
        taken: Any = actions
        if actions is None:
            assert self.block is not None
            taken = self.block.actions[self._rows].copy()  # The environments may keep them.
        for i, (env, action) in enumerate(zip(self._envs, taken, strict=True), start=self._first):
            self._current.value = i
            try:
                returned = env.step(action)
            except Exception as error:
                self._check.name_failure(error, i)
                raise
            observation, reward, terminated, truncated, info = self._check.step(returned, i)
            observation = copy_observation(observation)
            info["TimeLimit.truncated"] = truncated and not terminated
            if terminated or truncated:
                info["terminal_observation"] = observation
                observation, begun[i] = self._begin(env, i)
            observations.append(observation)
            rewards.append(reward)
            dones.append(bool(terminated or truncated))
            if len(info) > 1 or info["TimeLimit.truncated"]:
                infos[i] = info
        results = [np.array(rewards, np.float32), np.array(dones), *self._stack(observations)]
        if self.block is None:
            return Stepped(results, infos, begun)
        for array, new in zip(self.block.results, results, strict=True):
            array[self._rows] = new
        return Stepped(None, infos, begun) if infos or begun else None

    def _begin(self, env: gym.Env, env_index: int, **arguments: Any) -> tuple[Any, Info]:
        observation, info = self._check.reset(env.reset(**arguments), env_index)
        return copy_observation(observation), info

    def _reset(self, seeds: Sequence[int | None], options: Sequence[Info]) -> tuple[list[np.ndarray], list[Info]]:
        results = []
        for i, (env, seed, option) in enumerate(zip(self._envs, seeds, options, strict=True), start=self._first):
            self._current.value = i
            results.append(self._begin(env, i, seed=seed, **({"options": option} if option else {})))
        observations, infos = zip(*results, strict=True)
        return self._stack(observations), [*infos]

    def _stack(self, observations: Sequence[Any]) -> list[np.ndarray]:
        """Stack each part of observations, in the type of its space, as ``DummyVecEnv`` does."""
        stacked = []
        for path, space in parts_of(self.spaces[0]):
            parts = [reduce(getitem, path, observation) for observation in observations]
            with np.errstate(over="ignore"):  # The process of the model finds numbers that become infinite.
                stacked.append(np.stack(parts) if space.shape is None else np.array(parts, space.dtype))
        return stacked

    def close(self) -> None:
        """Close all environments."""
        for i, env in enumerate(self._envs, start=self._first):
            self._current.value = i
            env.close()


def work(
    child: Connection, parent: Connection, env_fns: Sequence[CloudpickleWrapper], first: int, current: c_int
) -> None:
    """Answer commands until the last one, ``"close"``, and report errors."""
    parent.close()
    _end_with_parent()
    _wake_quietly()
    # Ctrl-C interrupts all processes of a terminal, but the parent decides whether training continues.
    signal.signal(signal.SIGINT, lambda *_: None)
    try:
        _answer_all(child, WorkerEnvs([env_fn.var for env_fn in env_fns], first, current))
    except BaseException as error:
        with suppress(OSError):  # The parent may have closed the pipe.
            child.send(Failure(traceback.format_exc(), error if isinstance(error, GuardError) else None))
        sys.exit(1)


def _answer_all(child: Connection, group: WorkerEnvs) -> None:
    with suppress(EOFError):
        while True:
            command, data = child.recv()
            if command == "close":
                break
            if command == "share":
                memory = recv_handle(child)
                group.block = Block(memory, *data)
                os.close(memory)
            answer = None if command == "share" else group.answer(command, data)
            child.send_bytes(NONE_MESSAGE if answer is None else ForkingPickler.dumps(answer))
    group.close()
    child.close()


def _end_with_parent() -> None:
    """Exit when the parent process ends, even if the environment hangs."""
    parent = mp.parent_process()
    assert parent is not None
    if sys.platform == "linux":
        # A thread could not run while C code holds the interpreter's lock. The sentinel is a pipe that the parent's end
        # closes, at which Linux then sends SIGKILL.
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(parent.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, fcntl.fcntl(parent.sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    else:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _wake_quietly() -> None:
    """Let this process not interrupt the parent when it wakes up, because the parent still has to wake others."""
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):  # A sandbox may forbid it.
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
