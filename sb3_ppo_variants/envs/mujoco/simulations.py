"""What a task of MuJoCo is made of: a model, and functions over all of its simulations at once."""

import ctypes
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakSet

import numpy as np

from sb3_ppo_variants.errors import ArgumentError

if TYPE_CHECKING:
    from mujoco.batch import Batch

# Parts of infos: for each key, one value per simulation.
InfoParts: TypeAlias = Mapping[str, Iterable[object]]


class Simulations:
    """The simulations of one model, as the functions of a :class:`MujocoTask` see them.

    Each field of MuJoCo's ``MjData`` is an attribute, with one row per simulation: ``qpos`` has the shape
    ``(n_envs, nq)``, ``xpos`` ``(n_envs, nbody, 3)``. As after ``mj_step``, ``qpos``, ``qvel``, ``act`` and ``time``
    are those after the step, and fields that MuJoCo derives from them one substep older. The arrays change with the
    next step. Functions must read the fields that they need in every call, because MuJoCo only returns those that were
    asked for before the first step.

    :param batch: MuJoCo's batch
    :param settings: the settings of the task, which become the attributes of ``settings``
    :param frame_skip: simulated steps per action
    """

    def __init__(self, batch: "Batch", settings: Mapping[str, object], frame_skip: int):
        self.batch = batch
        self.model = batch.model
        self.settings = SimpleNamespace(**settings)
        self.frame_skip = frame_skip
        #: simulated seconds per action
        self.dt = float(batch.model.opt.timestep) * frame_skip
        #: what ``track`` returned before the step
        self.before = np.empty(0)
        #: which simulations have terminated in this step
        self.terminated = np.zeros(batch.nsim, bool)
        self.init_qpos: np.ndarray = batch.model.qpos0.copy()
        self.init_qvel = np.zeros(batch.model.nv)
        #: forces and torques on each body from outside, such as contacts; of tasks with ``contact_forces``
        self.cfrc_ext = np.zeros((batch.nsim, batch.model.nbody, 6))
        self._is_complete = False
        self._process = os.getpid()
        _batches.add(batch)

    def __getattr__(self, name: str) -> np.ndarray:
        if name.startswith("_"):
            raise AttributeError(name)
        array: np.ndarray = self.batch.bind(name)
        if self._is_complete and not array.flags.writeable:  # Only the state can be written.
            raise AttributeError(f"{name} of the simulations must be read in every call of a task's function")
        setattr(self, name, array)
        return array

    def body(self, name: str) -> np.ndarray:
        """Return the positions of a body's frame, of shape ``(n_envs, 3)``."""
        return self.xpos[:, self.model.body(name).id]

    def check_process(self) -> None:
        """:raises RuntimeError: in a process that was forked, which has no threads"""
        if self.batch.nthread > 1 and os.getpid() != self._process:
            raise RuntimeError(
                "MuJoCo's threads do not exist in a forked process: create the environments after the fork, or with"
                " n_threads=1"
            )

    def complete(self) -> None:
        """Refuse further fields, which would be zero until the next step."""
        self._is_complete = True


_batches: "WeakSet[Batch]" = WeakSet()


def _keep_batches() -> None:
    # MuJoCo would wait for the threads of a batch that it destroys, and they do not exist in a forked process. No list
    # of ours would do, because Python empties modules when it ends.
    for batch in _batches:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(batch))


if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(after_in_child=_keep_batches)


def never(sims: Simulations) -> np.ndarray:
    """No simulation terminates."""
    return np.zeros(sims.batch.nsim, bool)


def no_terms(sims: Simulations) -> InfoParts:
    """Nothing about the state is reported."""
    return {}


def nothing(sims: Simulations) -> np.ndarray:
    """Nothing is kept from before a step."""
    return sims.before


@dataclass(frozen=True)
class MujocoTask:
    """A task for a robot: a model of MuJoCo, and functions over all of its simulations at once.

    :param xml_file: path of the model; a relative one that does not begin with a dot is among gymnasium's models
    :param observe: returns the observations, of shape ``(n_envs, n)``
    :param reward: takes the simulations after a step and the actions, of shape ``(n_envs, nu)``, and returns the
        rewards, of shape ``(n_envs,)``, and parts of the infos. ``sims.terminated`` is up to date
    :param reset: takes the random generator of one simulation, and returns the ``qpos`` and ``qvel`` with which its
        next episode begins, of shapes ``(nq,)`` and ``(nv,)``
    :param terminated: returns which simulations have terminated, of shape ``(n_envs,)``
    :param describe: returns parts of the infos of both steps and resets
    :param track: returns what ``reward`` needs from before the step, in a new array. It is in ``sims.before`` then
    :param frame_skip: simulated steps per action, >= 1
    :param max_episode_steps: steps after which an episode is truncated; ``None`` for no limit
    :param settings: names and defaults of the task's own arguments
    :param contact_forces: whether ``cfrc_ext`` is computed after each step, which costs time
    :param camera: attributes of MuJoCo's ``MjvCamera`` for pictures, such as ``distance``
    """

    xml_file: str
    observe: Callable[[Simulations], np.ndarray]
    reward: Callable[[Simulations, np.ndarray], tuple[np.ndarray, InfoParts]]
    reset: Callable[[Simulations, np.random.Generator], tuple[np.ndarray, np.ndarray]]
    terminated: Callable[[Simulations], np.ndarray] = never
    describe: Callable[[Simulations], InfoParts] = no_terms
    track: Callable[[Simulations], np.ndarray] = nothing
    frame_skip: int = 1
    max_episode_steps: int | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    contact_forces: bool = False
    camera: Mapping[str, object] | None = None


def try_out(task: MujocoTask, sims: Simulations) -> int:
    """Call each function of a task once, so that MuJoCo computes the fields that it reads.

    :return: the size of an observation
    :raises ArgumentError: if a function returns another shape than it should
    """
    model, n_envs = sims.model, sims.batch.nsim
    sims.before, sims.terminated = task.track(sims), task.terminated(sims)
    rewards, terms = task.reward(sims, np.zeros((n_envs, model.nu), np.float32))
    qpos, qvel = task.reset(sims, np.random.default_rng(0))
    observations = task.observe(sims)
    terms = {**task.describe(sims), **terms}
    sims.complete()
    shapes = {
        "reward": (np.shape(rewards), (n_envs,)),
        "terminated": (np.shape(sims.terminated), (n_envs,)),
        "reset's qpos": (np.shape(qpos), (model.nq,)),
        "reset's qvel": (np.shape(qvel), (model.nv,)),
        "observe": (np.shape(observations), (n_envs, *np.shape(observations)[1:2])),
        **{f"{key!r} of the infos": ((len([*column]),), (n_envs,)) for key, column in terms.items()},
    }
    for name, (shape, expected) in shapes.items():
        if shape != expected:
            raise ArgumentError(f"{name} has the shape {shape}, but must have {expected}")
    return int(observations.shape[1])
