"""The side of the workers of a ``SafeSubprocVecEnv``: a process that steps some of the environments."""

import mmap
import multiprocessing as mp
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from ctypes import c_int
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler, recv_handle
from tempfile import TemporaryFile
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper, VecEnvIndices
from stable_baselines3.common.vec_env.util import obs_space_info

from sb3_ppo_variants.envs.outputs import DummySteps, Info
from sb3_ppo_variants.errors import GuardError
from sb3_ppo_variants.layout import Actions, AnySpace

if sys.platform == "linux":
    import fcntl


# The type of what each environment shares, with a field for each array.
RowType: TypeAlias = np.dtype[np.void]


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
STEP_MESSAGE = bytes(ForkingPickler.dumps(("advance", (), {})))
NONE_MESSAGE = bytes(ForkingPickler.dumps(None))


def shared_type(observation_space: AnySpace, action_space: AnySpace) -> RowType | None:
    """Find out what each environment shares: an action, a reward, whether its episode has ended, and an observation.

    :return: a structured type; ``None`` if actions have no fixed shape and type
    """
    if action_space.shape is None or action_space.dtype is None:
        return None
    keys, shapes, dtypes = obs_space_info(observation_space)
    results = [("reward", np.float32), ("done", bool), *((f"part {key}", dtypes[key], shapes[key]) for key in keys)]
    return np.dtype([("action", action_space.dtype, action_space.shape), *results], align=True)


def open_memory(size: int) -> int:
    """Open memory that several processes can share.

    The memory has no name, and is freed with the last process that uses it, however that ends. Where possible it is not
    in ``/dev/shm``, which is small in containers.
    """
    if hasattr(os, "memfd_create"):
        memory = os.memfd_create(__name__)
    else:
        with TemporaryFile() as file:
            memory = os.dup(file.fileno())
    os.ftruncate(memory, size)
    return memory


def rows_in(memory: int, dtype: RowType, n_envs: int) -> list[np.ndarray]:
    """Return the actions of all environments, and what they returned, in memory that may be closed afterwards."""
    rows: np.ndarray = np.ndarray(n_envs, dtype, mmap.mmap(memory, 0))
    return [rows[name] for name in dtype.names or ()]


class WorkerEnvs(DummyVecEnv):
    """The environments of a worker, one after the other, with checks of what they return.

    A worker answers calls of the methods below, and of those of ``DummyVecEnv`` that ask single environments.

    :param env_fns: functions that create the environments
    :param first: index of the first one
    :param current: index of the environment at work, in memory that the parent process reads when the worker fails
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]], first: int, current: c_int):
        self.first, self._current = first, current
        self._shared_actions: np.ndarray | None = None
        super().__init__([partial(self._make, i, env_fn) for i, env_fn in enumerate(env_fns)])
        self._steps = _StepsAtWork(self)

    def _make(self, i: int, env_fn: Callable[[], gym.Env]) -> gym.Env:
        self._current.value = self.first + i
        return env_fn()

    def _get_target_envs(self, indices: VecEnvIndices) -> Any:
        for i in self._get_indices(indices):
            self._current.value = self.first + i
            yield self.envs[i]

    def describe(self) -> tuple[AnySpace, AnySpace]:
        """Return the spaces of observations and actions."""
        return self.observation_space, self.action_space

    def share(self, memory: int, dtype: RowType, n_envs: int) -> None:
        """Take actions from shared memory if a command has none, and write the results of steps there."""
        own = slice(self.first, self.first + self.num_envs)
        self._shared_actions, *results = [rows[own] for rows in rows_in(memory, dtype, n_envs)]
        os.close(memory)
        self.buf_rews, self.buf_dones, *observations = results
        self.buf_obs.update(zip(self.keys, observations, strict=True))
        self._steps = _StepsAtWork(self)

    def advance(self, actions: Actions = None) -> Stepped | None:
        """Step each environment, and reset it if its episode ended."""
        if actions is None:
            assert self._shared_actions is not None
            actions = self._shared_actions.copy()  # The environments may keep them.
        self.actions = actions
        self._steps.advance()
        infos = {i: info for i, info in enumerate(self.buf_infos, self.first) if info != NO_INFO}
        begun = {self.first + i: self.reset_infos[i] for i in np.flatnonzero(self.buf_dones).tolist()}
        if self._shared_actions is None:
            return Stepped([self.buf_rews, self.buf_dones, *self.buf_obs.values()], infos, begun)
        return Stepped(None, infos, begun) if infos or begun else None

    def begin(self, seeds: Sequence[int | None], options: Sequence[Info]) -> tuple[list[np.ndarray], list[Info]]:
        """Reset each environment, and return the parts of observations, and infos."""
        self._seeds, self._options = [*seeds], [*options]
        self._steps.reset()
        return [*self.buf_obs.values()], self.reset_infos

    def close(self) -> None:
        """Close all environments."""
        for env in self._get_target_envs(None):
            env.close()


class _StepsAtWork(DummySteps):
    """The steps of a worker's environments, which note which one is at work."""

    def each(self) -> Iterator[tuple[int, gym.Env]]:
        return enumerate(self._env._get_target_envs(None))


def work(
    child: Connection, parent: Connection, env_fns: Sequence[CloudpickleWrapper], first: int, current: c_int
) -> None:
    """Answer calls until the last one, of ``close``, and report errors."""
    parent.close()
    _end_with_parent()
    _wake_quietly()
    # Ctrl-C interrupts all processes of a terminal, but the parent decides whether training continues.
    signal.signal(signal.SIGINT, lambda *_: None)
    try:
        envs = WorkerEnvs([env_fn.var for env_fn in env_fns], first, current)
        _answer_all(child, envs)
        envs.close()
    except BaseException:
        with suppress(OSError):  # The parent may have closed the pipe.
            child.send(Failure(traceback.format_exc(), None))
        sys.exit(1)


def _answer_all(child: Connection, envs: WorkerEnvs) -> None:
    while True:
        try:
            method, args, kwargs = child.recv()
        except EOFError:
            return
        if method == "close":
            return
        if method == "share":
            args = recv_handle(child), *args
        try:
            answer = getattr(envs, method)(*args, **kwargs)
        except GuardError as error:
            error.env_index = envs.first + (error.env_index or 0)
            answer = Failure(traceback.format_exc(), error)
        child.send_bytes(NONE_MESSAGE if answer is None else ForkingPickler.dumps(answer))


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
