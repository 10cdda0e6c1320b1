"""MuJoCo's environments in batches: all simulations in MuJoCo's threads, observations and rewards computed at once."""

import ctypes
import os
import timeit
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from weakref import WeakSet, proxy

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from sb3_ppo_variants.arguments import COUNT, RULES, Rule, check_arguments
from sb3_ppo_variants.envs.mujoco.tasks import TASKS, default_settings, is_gymnasiums
from sb3_ppo_variants.envs.outputs import Info
from sb3_ppo_variants.envs.subproc import count_cores
from sb3_ppo_variants.errors import ArgumentError, NonFiniteError, installation, refuse

if TYPE_CHECKING:
    from gymnasium.envs.mujoco import MujocoEnv
    from mujoco.batch import Batch

MUJOCO_RULES = {
    "n_envs": COUNT,
    "seed": RULES["seed"],
    "n_threads": Rule("an integer >= 1, or 'auto'", lambda value: value == "auto" or COUNT.accepts(value)),
    "frame_skip": COUNT,
    "max_episode_steps": Rule(
        "an integer >= 1, or -1 or None for no limit", lambda value: value in (-1, None) or COUNT.accepts(value)
    ),
}
# After these warnings, MuJoCo has replaced the state or the controls.
UNSTABLE = ("mjWARN_BADQPOS", "mjWARN_BADQVEL", "mjWARN_BADQACC", "mjWARN_BADCTRL")
# Waking up a thread and waiting for it costs about a tenth of a millisecond, and more while other processes need its
# core: the step waits for the last thread. It must have more work than that.
SECONDS_WORTH_A_THREAD = 2e-4
# What a simulation's step returns, without the observation.
Outcome: TypeAlias = tuple[None, float, bool, bool, Info]


def make_mujoco_vec_env(
    env_id: str,
    n_envs: int = 1,
    seed: int | None = None,
    monitor_dir: str | None = None,
    env_kwargs: Mapping[str, object] | None = None,
    monitor_kwargs: Mapping[str, object] | None = None,
    n_threads: int | str = "auto",
) -> "MujocoVecEnv":
    """Create MuJoCo's environments as SB3's ``make_vec_env`` does, but step them in a batch, in threads.

    Observations, rewards, ends of episodes, infos and resets are those of gymnasium's environments in a
    ``DummyVecEnv``, bit for bit, for any number of threads.

    :param env_id: id of one of gymnasium's environments of version 5, such as ``"HalfCheetah-v5"``
    :param n_envs: number of environments, >= 1
    :param seed: seed of the first environment, incremented for each further one
    :param monitor_dir: folder for monitor files; ``None`` writes none. In either case, infos contain episode statistics
    :param env_kwargs: arguments that ``gym.make`` takes for the id, except those of models and pictures
    :param monitor_kwargs: arguments of SB3's ``Monitor``
    :param n_threads: number of threads, >= 1; ``"auto"`` for as many as a step is worth, which it measures, but not
        more than cores or environments
    :raises ArgumentError: if an argument has a value that is not allowed
    :raises ImportError: if MuJoCo 4, which needs Python 3.11, is not installed
    """
    check_arguments({"n_envs": n_envs, "seed": seed, "n_threads": n_threads}, MUJOCO_RULES)
    try:
        import mujoco.batch  # noqa: F401
    except ImportError as error:
        problem = "make_mujoco_vec_env needs MuJoCo >= 4, which needs Python >= 3.11"
        raise ImportError(f"{problem}: {installation('environments')}") from error
    if env_id not in TASKS:
        refuse("env_id", env_id, f"one of {', '.join(TASKS)}")
    spec = gym.spec(env_id)
    if not is_gymnasiums(spec):
        raise ArgumentError(
            f"env_id={env_id!r} was registered again, with {spec.entry_point}, which is not the task that batches "
            "simulate: use make_vec_env, or register it under another id"
        )
    venv = MujocoVecEnv(spec, n_envs, env_kwargs or {}, n_threads, monitor_dir, monitor_kwargs or {})
    venv.seed(seed)
    if seed is not None:
        venv.action_space.seed(seed)
    return venv


_batches: "WeakSet[Batch]" = WeakSet()


def _keep_batches() -> None:
    # MuJoCo would wait for the threads of a batch that it destroys, and they do not exist in a forked process. No list
    # of ours would do, because Python empties modules when it ends.
    for batch in _batches:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(batch))


if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(after_in_child=_keep_batches)


class OneSimulation(gym.Env):
    """One simulation of a :class:`MujocoVecEnv`, for SB3's ``Monitor`` and those who ask for its attributes."""

    def __init__(self, venv: "MujocoVecEnv", index: int, env: "MujocoEnv", settings: Mapping[str, object]):
        vars(self).update(settings)
        # Without a cycle of references, MuJoCo's threads end with the last reference to the environments.
        self._venv: MujocoVecEnv = proxy(venv)
        self._index, self._env_type = index, type(env)
        self.spec, self.observation_space, self.action_space = venv.spec, env.observation_space, env.action_space
        self.model, self.init_qpos, self.init_qvel = env.model, env.init_qpos, env.init_qvel
        self._reset_noise_scale = getattr(env, "_reset_noise_scale", None)

    def step(self, action: Outcome) -> Outcome:
        """Return what the batch has computed."""
        return action

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[None, Info]:
        """Write the state in which the next episode begins, which gymnasium's own method draws."""
        super().reset(seed=seed)
        self._env_type.reset_model(self)  # type: ignore[arg-type]
        return None, {}

    def set_state(self, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Write the state to the batch."""
        task = self._venv.task
        task.qpos[self._index], task.qvel[self._index] = qpos, qvel

    def _get_obs(self) -> None:
        """Observe nothing: the batch observes all simulations at once."""


class MujocoVecEnv(DummyVecEnv):
    """The simulations of a task. Create it with :func:`make_mujoco_vec_env`.

    Its single environments have the settings of the task as attributes, but are not stepped. A reset replaces the whole
    state of a simulation, so an exact resume only needs seeds. Threads end with the last reference to the environments.

    :param spec: gymnasium's description of the task
    :param arguments: arguments of ``gym.make`` other than the defaults
    :param folder: folder for monitor files
    :param monitoring: arguments of ``Monitor``
    """

    def __init__(
        self,
        spec: EnvSpec,
        n_envs: int,
        arguments: Mapping[str, object],
        n_threads: int | str,
        folder: str | None,
        monitoring: Mapping[str, Any],
    ):
        import mujoco
        from mujoco.batch import Batch

        self.spec, self._mujoco = spec, mujoco
        settings = default_settings(spec)
        given = {name: value for name, value in arguments.items() if value is not None}  # None stands for the default.
        if unknown := {name: value for name, value in given.items() if name not in settings}:
            refuse("env_kwargs", unknown, f"{', '.join(settings)}; for pictures and other models, use make_vec_env")
        settings.update(given)
        check_arguments(settings, MUJOCO_RULES)
        limit = settings.pop("max_episode_steps")
        env = cast("MujocoEnv", load_env_creator(str(spec.entry_point))(**settings))
        model, self._data = env.model, env.data
        if isinstance(n_threads, str):
            # Other processes have hardly any influence on the shortest of some steps.
            seconds = min(
                timeit.repeat(lambda: mujoco.mj_step(model, self._data, nstep=env.frame_skip), number=1, repeat=20)
            )
            n_threads = max(1, min(count_cores(), n_envs, int(n_envs * seconds / SECONDS_WORTH_A_THREAD)))
        # Only a persistent batch keeps the contacts.
        batch = Batch(model, n_envs, n_threads, persistent=TASKS[spec.id].contact_forces)
        _batches.add(batch)
        batch.reset(stage=0)
        self._initial: np.ndarray = batch.state[0].copy()
        self._unstable = [int(getattr(mujoco.mjtWarning, name)) for name in UNSTABLE]
        self._limit = np.inf if limit in (-1, None) else limit
        self._n_steps = np.zeros(n_envs, np.int64)
        self.task = TASKS[spec.id](batch, env, settings)
        files = [folder and os.path.join(folder, str(i)) for i in range(n_envs)]
        ones = (OneSimulation(self, i, env, settings) for i in range(n_envs))
        self._monitors = [Monitor(one, file, **monitoring) for one, file in zip(ones, files, strict=True)]
        super().__init__([partial(self._monitors.__getitem__, i) for i in range(n_envs)])

    def reset(self) -> VecEnvObs:
        """Begin new episodes in all simulations, with the seeds that were set since the last reset.

        :raises ArgumentError: if options were set
        """
        if any(self._options):
            refuse("options", self._options, "none: MuJoCo's tasks have no options")
        self._begin(np.arange(self.num_envs), self._seeds)
        self._reset_seeds()
        self._reset_options()
        return self.task.observe()

    def _begin(self, indices: np.ndarray, seeds: Sequence[int | None]) -> None:
        """Begin new episodes in some of the simulations."""
        batch = self.task.batch
        # The same as batch.reset, in a fraction of the time.
        batch.state[indices], batch.warning[indices] = self._initial, 0
        for i in indices.tolist():
            self._monitors[i].reset(seed=seeds[i])
        batch.forward(indices)
        self.task.cfrc_ext[indices] = 0
        self._n_steps[indices] = 0
        terms = self.task.describe()
        for i in indices.tolist():
            self.reset_infos[i] = {key: column[i] for key, column in terms.items()}

    def step_async(self, actions: np.ndarray) -> None:
        """Store the actions for the next step.

        :raises ArgumentError: if they have the wrong shape
        """
        # NumPy would add numbers that are not contiguous in another order.
        self.actions = np.ascontiguousarray(actions)
        if self.actions.shape != (expected := (self.num_envs, self.task.model.nu)):
            raise ArgumentError(f"actions have the shape {self.actions.shape}, but must have {expected}")

    def step_wait(self) -> VecEnvStepReturn:
        """Step all simulations and reset those that are done.

        :raises NonFiniteError: if a simulation is unstable
        """
        self._simulate()
        task = self.task
        observations = task.observe()
        task.terminated = terminated = task.terminates()
        rewards, terms = task.reward(self.actions)
        self._n_steps += 1
        truncated = self._n_steps >= self._limit
        cut_off = (truncated & ~terminated).tolist()
        columns = {**task.describe(), **terms, "TimeLimit.truncated": cut_off}
        infos: list[Info] = [*map(dict, map(zip, repeat((*columns,)), zip(*columns.values(), strict=True)))]
        for monitor, reward in zip(self._monitors, rewards.tolist(), strict=True):
            # What Monitor.step does within an episode.
            monitor.rewards.append(reward)
            monitor.total_steps += 1
        dones = terminated | truncated
        if dones.any():
            indices = np.flatnonzero(dones)
            for i in indices.tolist():
                infos[i]["terminal_observation"] = observations[i].copy()
                # The Monitor takes the last step, which it has counted already.
                monitor = self._monitors[i]
                monitor.total_steps -= 1
                outcome: Outcome = None, monitor.rewards.pop(), True, False, infos[i]
                monitor.step(outcome)
            self._begin(indices, [None] * self.num_envs)
            observations = task.observe()
        return observations, rewards.astype(np.float32), dones, infos

    def _simulate(self) -> None:
        if self._monitors[0].needs_reset:
            raise RuntimeError("reset() must come before the first step()")
        task, batch = self.task, self.task.batch
        task.before = task.track()
        task.ctrl[:] = self.actions
        batch.step(nstep=task.frame_skip)
        if batch.warning[..., 1].any():
            for index, counts in enumerate(batch.warning):
                for kind in self._unstable:
                    place, number = counts[kind].tolist()
                    if number:
                        text = self._mujoco.mju_warningText(kind, place)
                        raise NonFiniteError("simulation", f"unstable: {text}", index)
        if task.contact_forces:
            for i in range(self.num_envs):
                batch.get_data(i, self._data)
                self._mujoco.mj_rnePostConstraint(task.model, self._data)
                task.cfrc_ext[i] = self._data.cfrc_ext

    def env_method(
        self, method_name: str, *method_args: object, indices: VecEnvIndices = None, **method_kwargs: object
    ) -> list[Any]:
        """Call a method of ``Monitor``, such as ``get_episode_rewards``.

        :raises NotImplementedError: if the method would step or reset a single simulation
        """
        if method_name in ("step", "reset"):
            raise NotImplementedError(f"MuJoCo's batches have no single {method_name}(): use SB3's make_vec_env")
        return super().env_method(method_name, *method_args, indices=indices, **method_kwargs)

    def set_attr(self, attr_name: str, value: object, indices: VecEnvIndices = None) -> None:
        """:raises NotImplementedError: always"""
        raise NotImplementedError("MuJoCo's batches have no set_attr(): pass env_kwargs, or use SB3's make_vec_env")
