"""What a task of MuJoCo is made of: functions over all simulations of a model at once."""

import ctypes
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakSet

import numpy as np

if TYPE_CHECKING:
    from mujoco.batch import Batch

# Parts of infos: for each key, one value per simulation.
InfoParts: TypeAlias = Mapping[str, Iterable[object]]
_batches: "WeakSet[Batch]" = WeakSet()


class Simulations:
    """The simulations of one model, as the functions of a :class:`MujocoTask` see them.

    Each field of MuJoCo's ``MjData`` is an attribute, with one row per simulation: ``qpos`` has the shape
    ``(n_envs, nq)``, ``xpos`` ``(n_envs, nbody, 3)``. As after ``mj_step``, ``qpos`` and ``qvel`` are those after the
    step, and fields that MuJoCo derives from them one substep older. The arrays change with the next step. MuJoCo only
    returns the fields that were read before the first step.

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
        _batches.add(batch)

    def __getattr__(self, name: str) -> np.ndarray:
        if name.startswith("_"):
            raise AttributeError(name)
        array: np.ndarray = self.batch.bind(name)
        setattr(self, name, array)
        return array

    def body(self, name: str) -> np.ndarray:
        """Return the positions of a body's frame, of shape ``(n_envs, 3)``."""
        return self.xpos[:, self.model.body(name).id]


def _keep_batches() -> None:
    # MuJoCo would wait for the threads of a batch that it destroys, and they do not exist in a forked process. No list
    # of ours would do, because Python empties modules when it ends.
    for batch in _batches:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(batch))


if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(after_in_child=_keep_batches)


@dataclass(frozen=True)
class MujocoTask:
    """The functions of a task over all of its simulations at once.

    :param observe: returns the observations, of shape ``(n_envs, n)``
    :param reward: takes the simulations after a step and the actions, of shape ``(n_envs, nu)``, and returns the
        rewards, of shape ``(n_envs,)``, and parts of the infos. ``sims.terminated`` is up to date
    :param reset: takes the random generator of one simulation, and returns the ``qpos`` and ``qvel`` with which its
        next episode begins, of shapes ``(nq,)`` and ``(nv,)``
    :param terminated: returns which simulations have terminated, of shape ``(n_envs,)``
    :param describe: returns parts of the infos of both steps and resets
    :param track: returns what ``reward`` needs from before the step, in a new array. It is in ``sims.before`` then
    :param contact_forces: whether ``cfrc_ext`` is computed after each step, which costs time
    """

    observe: Callable[[Simulations], np.ndarray]
    reward: Callable[[Simulations, np.ndarray], tuple[np.ndarray, InfoParts]]
    reset: Callable[[Simulations, np.random.Generator], tuple[np.ndarray, np.ndarray]]
    terminated: Callable[[Simulations], np.ndarray] = lambda sims: np.zeros(sims.batch.nsim, bool)
    describe: Callable[[Simulations], InfoParts] = lambda sims: {}
    track: Callable[[Simulations], np.ndarray] = lambda sims: sims.before
    contact_forces: bool = False
