"""MuJoCo's environments in batches: all simulations in MuJoCo's threads, observations and rewards computed at once."""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from itertools import repeat
from typing import TYPE_CHECKING, Any
from weakref import proxy

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from sb3_ppo_variants.arguments import COUNT, RULES, Rule, check_arguments
from sb3_ppo_variants.envs.cores import shortest, threads_worth
from sb3_ppo_variants.envs.mujoco.simulations import InfoParts, MujocoTask, Simulations, try_out
from sb3_ppo_variants.envs.mujoco.tasks import gymnasium_task
from sb3_ppo_variants.envs.outputs import Info
from sb3_ppo_variants.errors import ArgumentError, NonFiniteError, installation, refuse

if TYPE_CHECKING:
    import mujoco

# Those of gymnasium's environments that concern pictures.
CAMERA = ("width", "height", "camera_id", "camera_name", "default_camera_config", "max_geom", "visual_options")
MUJOCO_RULES = {
    "n_envs": COUNT,
    "seed": RULES["seed"],
    "n_threads": Rule("an integer >= 1, or 'auto'", lambda value: value == "auto" or COUNT.accepts(value)),
    "frame_skip": COUNT,
    "max_episode_steps": Rule(
        "an integer >= 1, or -1 or None for no limit", lambda value: value in (-1, None) or COUNT.accepts(value)
    ),
    "render_mode": Rule("'rgb_array' or None", lambda value: value in ("rgb_array", None)),
}
# After these warnings, MuJoCo has replaced the state or the controls.
UNSTABLE = ("mjWARN_BADQPOS", "mjWARN_BADQVEL", "mjWARN_BADQACC", "mjWARN_BADCTRL")
NOT_ALONE = ("step", "reset", "close", "set_wrapper_attr")
NO_LIMIT = np.iinfo(np.int64).max


def make_mujoco_vec_env(
    env_id: str | MujocoTask,
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

    :param env_id: id of one of gymnasium's environments of version 5, such as ``"HalfCheetah-v5"``, or a task
    :param n_envs: number of environments, >= 1
    :param seed: seed of the first environment, incremented for each further one
    :param monitor_dir: folder for monitor files; ``None`` writes none. In either case, infos contain episode statistics
    :param env_kwargs: arguments that ``gym.make`` takes for the id, or settings of the task, including ``xml_file``,
        ``frame_skip``, ``max_episode_steps`` (-1 for no limit), ``render_mode`` (``"rgb_array"``) and the camera's
    :param monitor_kwargs: arguments of SB3's ``Monitor``
    :param n_threads: number of threads, >= 1; ``"auto"`` for as many as a step is worth, which it measures, but not
        more than cores or environments
    :raises ArgumentError: if an argument has a value that is not allowed, or a function of a task returns another shape
        than it should
    :raises ImportError: if MuJoCo 4, which needs Python 3.11, is not installed
    """
    check_arguments({"n_envs": n_envs, "seed": seed, "n_threads": n_threads}, MUJOCO_RULES)
    import_mujoco()
    task = env_id if isinstance(env_id, MujocoTask) else gymnasium_task(env_id)
    spec = gym.spec(env_id) if isinstance(env_id, str) else None
    arguments = dict(env_kwargs or {})
    arguments.pop("disable_env_checker", None)  # There is no such checker here.
    render_mode: Any = arguments.pop("render_mode", None)
    check_arguments({"render_mode": render_mode}, MUJOCO_RULES)
    camera = {name: arguments.pop(name) for name in CAMERA if name in arguments}
    venv = MujocoVecEnv(_with_arguments(task, arguments), n_envs, n_threads, spec, render_mode, camera)
    venv.monitor(monitor_dir, monitor_kwargs or {})
    venv.seed(seed)
    if seed is not None:
        venv.action_space.seed(seed)
    return venv


def import_mujoco() -> None:
    """:raises ImportError: if MuJoCo 4, which has batches, is not installed"""
    try:
        import mujoco.batch  # noqa: F401
    except ImportError as error:
        problem = "make_mujoco_vec_env needs MuJoCo >= 4, which needs Python >= 3.11"
        raise ImportError(f"{problem}: {installation('environments')}") from error


def _with_arguments(task: MujocoTask, arguments: dict[str, Any]) -> MujocoTask:
    """Return the task with other settings."""
    of_task = {
        name: arguments.pop(name) for name in ("xml_file", "frame_skip", "max_episode_steps") if name in arguments
    }
    if of_task.get("max_episode_steps", -1) is None:  # As in gym.make, the task's own.
        del of_task["max_episode_steps"]
    if unknown := arguments.keys() - task.settings.keys():
        allowed = ", ".join(("xml_file", "frame_skip", "max_episode_steps", "render_mode", *CAMERA, *task.settings))
        refuse("env_kwargs", {name: arguments[name] for name in unknown}, allowed)
    return replace(task, **of_task, settings={**task.settings, **arguments})


def _count_threads(n_threads: int | str, n_envs: int, model: "mujoco.MjModel", frame_skip: int) -> int:
    if not isinstance(n_threads, str):
        return int(n_threads)
    import mujoco

    data = mujoco.MjData(model)
    return threads_worth(n_envs * shortest(lambda: mujoco.mj_step(model, data, nstep=frame_skip)), n_envs)


def load_model(task: MujocoTask) -> "mujoco.MjModel":
    """Load the model of a task.

    :raises ArgumentError: if it cannot be simulated in a batch
    """
    import mujoco
    from gymnasium.envs.mujoco.mujoco_env import expand_model_path

    model = mujoco.MjModel.from_xml_path(expand_model_path(task.xml_file))
    if mujoco.__version__ == "4.0.0" and mujoco.mj_isSparse(model):
        problem = "has sparse Jacobians, with which MuJoCo 4.0.0 computes wrong accelerations (its issue 3767)"
        raise ArgumentError(f"xml_file={task.xml_file!r} {problem}: install MuJoCo >= 4.0.1")
    if not model.nu or not (model.actuator_ctrlrange[:, 0] < model.actuator_ctrlrange[:, 1]).all():
        raise ArgumentError(f"xml_file={task.xml_file!r} needs actuators with a ctrlrange")
    return model


def _fixed(terms: InfoParts) -> InfoParts:
    """Return parts of infos that the next step does not change: rows of an array would be views of it."""
    return {
        key: value.copy() if isinstance(value, np.ndarray) and value.ndim > 1 else value for key, value in terms.items()
    }


class OneSimulation(gym.Env):
    """One simulation of a :class:`MujocoVecEnv`, for SB3's ``Monitor`` and those who ask for its attributes."""

    def __init__(self, venv: "MujocoVecEnv", index: int):
        # Without a cycle of references, MuJoCo's threads end with the last reference to the environments.
        self._venv: MujocoVecEnv = proxy(venv)
        self._index = index
        self.render_mode, self.spec, self.metadata = venv.mode, venv.spec, venv.metadata
        self.observation_space, self.action_space = venv.spaces
        self.outcome: tuple[Any, float, bool, bool, Info] = (None, 0.0, False, False, {})

    @property
    def dt(self) -> float:
        """Simulated seconds per step."""
        return self._venv.simulations.dt

    @property
    def model(self) -> "mujoco.MjModel":
        """A copy of the model."""
        return self._venv.simulations.batch.get_model(self._index)

    @property
    def data(self) -> "mujoco.MjData":
        """A copy of the state, and what follows from it."""
        import mujoco

        data = self._venv.simulations.batch.get_data(self._index)
        mujoco.mj_forward(self._venv.simulations.model, data)
        return data

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, Info]:
        """Return what the batch has computed."""
        return self.outcome

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Write the state in which the next episode begins."""
        super().reset(seed=seed)
        simulations = self._venv.simulations
        qpos, qvel = self._venv.task.reset(simulations, self.np_random)
        simulations.qpos[self._index], simulations.qvel[self._index] = qpos, qvel
        return None, {}

    def render(self) -> Any:
        """Draw a picture, or ``None`` without ``render_mode="rgb_array"``."""
        return self._venv.picture(self._index) if self.render_mode == "rgb_array" else None


class MujocoVecEnv(VecEnv):
    """The simulations of a task. Create it with :func:`make_mujoco_vec_env`.

    A reset replaces the whole state of a simulation, so an exact resume only needs seeds, as with other environments.

    :param task: the task
    :param n_envs: number of simulations
    :param n_threads: number of threads, or ``"auto"``
    :param spec: gymnasium's description of the task
    :param render_mode: ``"rgb_array"`` or ``None``
    :param camera: arguments of gymnasium's ``MujocoRenderer``
    """

    def __init__(
        self,
        task: MujocoTask,
        n_envs: int,
        n_threads: int | str,
        spec: EnvSpec | None = None,
        render_mode: str | None = None,
        camera: Mapping[str, object] | None = None,
    ):
        import mujoco
        from mujoco.batch import Batch

        check_arguments({"frame_skip": task.frame_skip, "max_episode_steps": task.max_episode_steps}, MUJOCO_RULES)
        self.task, self.spec, self.mode = task, spec, render_mode
        model = load_model(task)
        threads = _count_threads(n_threads, n_envs, model, task.frame_skip)
        # Only a persistent batch keeps the contacts.
        batch = Batch(model, n_envs, threads, persistent=task.contact_forces)
        self.simulations = Simulations(batch, task.settings, task.frame_skip)
        batch.reset(stage=0)
        self._initial: np.ndarray = batch.state[0].copy()
        self._unstable = [int(getattr(mujoco.mjtWarning, name)) for name in UNSTABLE]
        self._data = mujoco.MjData(model)
        self._camera = {"default_camera_config": task.camera, **(camera or {})}
        self._renderer: Any = None
        self._limit = task.max_episode_steps if task.max_episode_steps not in (-1, None) else NO_LIMIT
        self._n_steps = np.zeros(n_envs, np.int64)
        size = try_out(task, self.simulations)
        low, high = model.actuator_ctrlrange.astype(np.float32).T
        self.spaces = spaces.Box(-np.inf, np.inf, (size,), np.float64), spaces.Box(low, high, dtype=np.float32)
        self.metadata: Info = {"render_modes": ["rgb_array"], "render_fps": int(np.round(1 / self.simulations.dt))}
        metadata = self.metadata
        self._singles = [OneSimulation(self, i) for i in range(n_envs)]
        self.monitor(None, {})
        self._actions = np.zeros((n_envs, model.nu), np.float32)
        super().__init__(n_envs, *self.spaces)
        self.metadata = metadata

    def monitor(self, folder: str | None, arguments: Mapping[str, Any]) -> None:
        """Put each simulation into a ``Monitor``, which writes ``<index>.monitor.csv`` if there is a folder."""
        files = [folder and os.path.join(folder, str(i)) for i in range(len(self._singles))]
        self._monitors = [Monitor(one, file, **arguments) for one, file in zip(self._singles, files, strict=True)]

    def reset(self) -> VecEnvObs:
        """Begin new episodes in all simulations, with the seeds that were set since the last reset.

        :raises ArgumentError: if options were set
        :raises RuntimeError: in a process that was forked, if there are several threads
        """
        self.simulations.check_process()
        if any(self._options):
            refuse("options", self._options, "none: MuJoCo's tasks have no options")
        self._begin(np.arange(self.num_envs), self._seeds)
        self._reset_seeds()
        self._reset_options()
        return self._observe()

    def _begin(self, indices: np.ndarray, seeds: Sequence[int | None]) -> None:
        """Begin new episodes in some of the simulations."""
        batch = self.simulations.batch
        # The same as batch.reset, in a fraction of the time.
        batch.state[indices], batch.warning[indices] = self._initial, 0
        for i in indices.tolist():
            self._monitors[i].reset(seed=seeds[i])
        batch.forward(indices)
        self.simulations.cfrc_ext[indices] = 0
        self._n_steps[indices] = 0
        columns = {key: [*column] for key, column in _fixed(self.task.describe(self.simulations)).items()}
        for i in indices.tolist():
            self.reset_infos[i] = {key: column[i] for key, column in columns.items()}

    def _observe(self) -> np.ndarray:
        return np.array(self.task.observe(self.simulations), dtype=np.float64)

    def step_async(self, actions: np.ndarray) -> None:
        """Store the actions for the next step.

        :raises ArgumentError: if they have the wrong shape
        """
        # NumPy would add numbers that are not contiguous in another order.
        self._actions = np.ascontiguousarray(actions)
        if self._actions.shape != (expected := (self.num_envs, self.simulations.model.nu)):
            raise ArgumentError(f"actions have the shape {self._actions.shape}, but must have {expected}")

    def step_wait(self) -> VecEnvStepReturn:
        """Step all simulations and reset those that are done.

        :raises NonFiniteError: if a simulation is unstable
        :raises RuntimeError: in a process that was forked, if there are several threads
        """
        self.simulations.check_process()
        self._simulate()
        task, simulations = self.task, self.simulations
        observations = self._observe()
        simulations.terminated = terminated = task.terminated(simulations)
        rewards, terms = task.reward(simulations, self._actions)
        self._n_steps += 1
        truncated = self._n_steps >= self._limit
        cut_off = (truncated & ~terminated).tolist()
        columns = {**_fixed(task.describe(simulations)), **_fixed(terms), "TimeLimit.truncated": cut_off}
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
                self._end_episode(i, infos[i])
            self._begin(indices, [None] * self.num_envs)
            observations = self._observe()
        return observations, rewards.astype(np.float32), dones, infos

    def _end_episode(self, index: int, info: Info) -> None:
        """Let the ``Monitor`` take the last step of an episode, which it has counted already."""
        monitor = self._monitors[index]
        monitor.total_steps -= 1
        self._singles[index].outcome = None, monitor.rewards.pop(), True, False, info
        monitor.step(None)

    def _simulate(self) -> None:
        if self._monitors[0].needs_reset:
            raise RuntimeError("reset() must come before the first step()")
        simulations = self.simulations
        batch = simulations.batch
        simulations.before = self.task.track(simulations)
        simulations.ctrl[:] = self._actions
        batch.step(nstep=simulations.frame_skip)
        if batch.warning[..., 1].any():
            self._check_stability()
        if self.task.contact_forces:
            import mujoco

            for i in range(self.num_envs):
                batch.get_data(i, self._data)
                mujoco.mj_rnePostConstraint(simulations.model, self._data)
                simulations.cfrc_ext[i] = self._data.cfrc_ext

    def _check_stability(self) -> None:
        import mujoco

        for index, counts in enumerate(self.simulations.batch.warning):
            for kind in self._unstable:
                place, number = counts[kind].tolist()
                if number:
                    text = mujoco.mju_warningText(kind, place)
                    raise NonFiniteError("simulation", f"unstable: {text}", index)

    def close(self) -> None:
        """Close monitor files and the renderer; a second call does nothing. Threads end with the last reference."""
        for monitor in self._monitors:
            if monitor.results_writer is not None:
                monitor.results_writer.close()
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Get an RGB image of each simulation; all are ``None`` unless ``render_mode="rgb_array"``."""
        if self.render_mode != "rgb_array":
            warnings.warn(f"render_mode={self.render_mode!r} does not return images: create it with 'rgb_array'")
        return [one.render() for one in self._singles]

    def picture(self, index: int) -> np.ndarray:
        """Draw an RGB image of a simulation."""
        import mujoco
        from gymnasium.envs.mujoco.mujoco_env import MujocoEnv
        from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer

        model = self.simulations.model
        if self._renderer is None:
            camera = {name: signature(MujocoEnv).parameters[name].default for name in CAMERA} | self._camera
            size = model.vis.global_
            size.offwidth, size.offheight = max(size.offwidth, camera["width"]), max(size.offheight, camera["height"])
            default = camera.pop("default_camera_config")
            self._renderer = MujocoRenderer(model, self._data, default, **camera)
        self.simulations.batch.get_data(index, self._data)
        mujoco.mj_forward(model, self._data)
        image: np.ndarray = self._renderer.render("rgb_array")
        return image

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Get an attribute or a setting of the simulations. ``model`` and ``data`` are copies."""
        where = self._get_indices(indices)
        if hasattr(self.simulations.settings, attr_name):
            return [getattr(self.simulations.settings, attr_name) for _ in where]
        return [self._monitors[i].get_wrapper_attr(attr_name) for i in where]

    def set_attr(self, attr_name: str, value: object, indices: VecEnvIndices = None) -> None:
        """Change a setting of the task, such as ``ctrl_cost_weight``, for all simulations.

        :raises ArgumentError: if there is no such setting, it would change the observation space, or only some of the
            simulations are meant
        """
        if not hasattr(self.simulations.settings, attr_name):
            allowed = ", ".join(vars(self.simulations.settings))
            refuse("attr_name", attr_name, f"a setting of the task: {allowed}")
        if len(set(self._get_indices(indices))) < self.num_envs:
            refuse("indices", indices, "None: the simulations share their settings")
        old = getattr(self.simulations.settings, attr_name)
        setattr(self.simulations.settings, attr_name, value)
        if self._observe().shape[1:] != self.observation_space.shape:
            setattr(self.simulations.settings, attr_name, old)
            refuse(attr_name, value, "a value that leaves the observation space as it is")

    def env_method(
        self, method_name: str, *method_args: object, indices: VecEnvIndices = None, **method_kwargs: object
    ) -> list[Any]:
        """Call a method of some of the simulations, such as ``render``.

        :raises NotImplementedError: if the method would step or change a single simulation
        """
        if method_name in NOT_ALONE:
            raise NotImplementedError(f"{method_name}() cannot be called on single simulations of a batch")
        return [method(*method_args, **method_kwargs) for method in self.get_attr(method_name, indices)]

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """Check which simulations are wrapped with the class. Each has a ``Monitor``."""
        return [is_wrapped(self._monitors[i], wrapper_class) for i in self._get_indices(indices)]
