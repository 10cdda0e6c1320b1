"""Gymnasium's tasks of MuJoCo, version 5, over all simulations at once.

Every number is that of gymnasium's environment, bit for bit. This needs its order of operations and its types: a
control cost has the type of the actions, and powers and norms are taken one simulation at a time where NumPy rounds
those of arrays differently.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator

if TYPE_CHECKING:
    from gymnasium.envs.mujoco import MujocoEnv
    from mujoco.batch import Batch

# Parts of infos: for each key, one value per simulation.
InfoParts: TypeAlias = Mapping[str, np.ndarray | list[Any]]


class Task:
    """The simulations of a task.

    Each field of MuJoCo's ``MjData`` is an attribute, with one row per simulation: ``qpos`` has the shape
    ``(n_envs, nq)``, ``xpos`` ``(n_envs, nbody, 3)``. As after ``mj_step``, ``qpos`` and ``qvel`` are those after the
    step, and fields that MuJoCo derives from them one substep older. The arrays change with the next step. MuJoCo only
    returns the fields that were read before the first step.

    :param env: gymnasium's environment, which is not stepped
    :param settings: its arguments, which become the attributes of ``settings``
    """

    contact_forces = False
    """Whether ``cfrc_ext`` is computed after each step, which costs time."""

    def __init__(self, batch: "Batch", env: "MujocoEnv", settings: Mapping[str, object]):
        self.batch, self.model, self.settings = batch, batch.model, SimpleNamespace(**settings)
        self.frame_skip, self.dt, self.init_qpos = env.frame_skip, env.dt, env.init_qpos
        #: how many positions are not observed, the first ones
        self.n_hidden: int = getattr(env, "observation_structure", {}).get("skipped_qpos", 0)
        #: forces and torques on each body from outside, such as contacts
        self.cfrc_ext = np.zeros((batch.nsim, batch.model.nbody, 6))
        # What these read, MuJoCo computes from now on.
        #: what track() returned before the step
        self.before = self.track()
        #: which simulations have terminated in this step
        self.terminated = self.terminates()
        self.reward(np.zeros((batch.nsim, batch.model.nu), np.float32))
        self.describe()
        self.observe()

    def __getattr__(self, name: str) -> np.ndarray:
        if name.startswith("_"):
            raise AttributeError(name)
        array: np.ndarray = self.batch.bind(name)
        setattr(self, name, array)
        return array

    def body(self, name: str) -> np.ndarray:
        """Return the positions of a body's frame, of shape ``(n_envs, 3)``."""
        return self.xpos[:, self.model.body(name).id]

    def observe(self) -> np.ndarray:
        """Return the observations, of shape ``(n_envs, size)``: by default, positions and velocities."""
        return np.concatenate((self.qpos[:, self.n_hidden :], self.qvel), axis=1)

    def reward(self, actions: np.ndarray) -> tuple[np.ndarray, InfoParts]:
        """Return the rewards after a step, of shape ``(n_envs,)``, and parts of the infos.

        :param actions: of shape ``(n_envs, nu)``
        """
        raise NotImplementedError

    def terminates(self) -> np.ndarray:
        """Return which simulations have terminated, of shape ``(n_envs,)``."""
        return np.zeros(self.batch.nsim, bool)

    def describe(self) -> InfoParts:
        """Return parts of the infos of both steps and resets."""
        return {}

    def track(self) -> np.ndarray:
        """Return what :meth:`reward` needs from before the step, in a new array."""
        return np.empty(0)


def norms(rows: np.ndarray) -> np.ndarray:
    """Compute the Euclidean norm of each row, rounded as ``np.linalg.norm`` rounds that of a single one."""
    return np.sqrt([row.dot(row) for row in np.ascontiguousarray(rows)])


def squares(actions: np.ndarray) -> np.ndarray:
    """Compute the squared norm of each action."""
    return np.asarray(np.square(actions).sum(axis=1))


def is_within(values: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """Which values are strictly between the bounds."""
    low, high = bounds
    return np.asarray((low < values) & (values < high))


def flat(rows: np.ndarray) -> np.ndarray:
    """Flatten to one row per simulation."""
    return rows.reshape(len(rows), -1)


class Robot(Task):
    """A robot that is to move along the first axis and, in some tasks, to stay healthy."""

    n_axes = 1

    def place(self) -> np.ndarray:
        """Return where robots are, of shape ``(n_envs, n_axes)``."""
        return self.qpos[:, : self.n_axes].copy()

    def is_healthy(self) -> np.ndarray | None:
        """Return which robots are healthy, if that is rewarded."""
        return None

    def control_costs(self, actions: np.ndarray) -> np.ndarray:
        return np.asarray(self.settings.ctrl_cost_weight * squares(actions))

    def contact_costs(self) -> np.ndarray | None:
        return None

    def track(self) -> np.ndarray:
        return self.place()

    def terminates(self) -> np.ndarray:
        self.healthy = self.is_healthy()
        if self.healthy is None or not self.settings.terminate_when_unhealthy:
            return super().terminates()
        return ~self.healthy

    def reward(self, actions: np.ndarray) -> tuple[np.ndarray, InfoParts]:
        settings = self.settings
        velocities = (self.place() - self.before) / self.dt
        terms = {f"{axis}_velocity": column for axis, column in zip("xy", velocities.T, strict=False)}
        rewards = terms["reward_forward"] = settings.forward_reward_weight * velocities[:, 0]
        if self.healthy is not None:
            terms["reward_survive"] = self.healthy * settings.healthy_reward
            rewards = rewards + terms["reward_survive"]
        costs = self.control_costs(actions)
        terms["reward_ctrl"] = -costs
        if (of_contacts := self.contact_costs()) is not None:
            terms["reward_contact"] = -of_contacts
            costs = costs + of_contacts
        return rewards - costs, terms


class HalfCheetah(Robot):
    """A cheetah that runs in a plane."""

    def describe(self) -> InfoParts:
        return {"x_position": self.qpos[:, 0]}


class Walker2d(Robot):
    """A robot that walks in a plane, and must keep its height and angle."""

    def observe(self) -> np.ndarray:
        velocities = np.minimum(np.maximum(self.qvel, -10), 10)  # np.clip() takes longer.
        return np.concatenate((self.qpos[:, self.n_hidden :], velocities), axis=1)

    def is_healthy(self) -> np.ndarray:
        height = is_within(self.qpos[:, 1], self.settings.healthy_z_range)
        return np.asarray(height & is_within(self.qpos[:, 2], self.settings.healthy_angle_range))

    def describe(self) -> InfoParts:
        return {"x_position": self.qpos[:, 0], "z_distance_from_origin": self.qpos[:, 1] - self.init_qpos[1]}


class Hopper(Walker2d):
    """A robot that hops in a plane, and must keep its other coordinates too."""

    def is_healthy(self) -> np.ndarray:
        others = np.concatenate((self.qpos[:, 2:], self.qvel), axis=1)
        return super().is_healthy() & is_within(others, self.settings.healthy_state_range).all(axis=1)


class Swimmer(Robot):
    """A robot that swims in a plane."""

    n_axes = 2

    def describe(self) -> InfoParts:
        place = self.qpos[:, :2]
        return {"x_position": place[:, 0], "y_position": place[:, 1], "distance_from_origin": norms(place)}


class Ant(Swimmer):
    """An ant, which feels its contacts."""

    contact_forces = True

    def place(self) -> np.ndarray:
        return self.xpos[:, self.model.body(self.settings.main_body).id, :2].copy()

    def observe(self) -> np.ndarray:
        state = super().observe()
        if not self.settings.include_cfrc_ext_in_observation:
            return state
        return np.concatenate((state, flat(self._forces()[:, 1:])), axis=1)

    def is_healthy(self) -> np.ndarray:
        low, high = self.settings.healthy_z_range
        is_high = (low <= self.qpos[:, 2]) & (self.qpos[:, 2] <= high)
        return np.asarray(have_finite_states(self) & is_high)

    def contact_costs(self) -> np.ndarray:
        return np.asarray(self.settings.contact_cost_weight * np.sum(np.square(flat(self._forces())), axis=1))

    def _forces(self) -> np.ndarray:
        return np.asarray(np.clip(self.cfrc_ext, *self.settings.contact_force_range))


class Humanoid(Swimmer):
    """A humanoid that walks."""

    contact_forces = True

    def place(self) -> np.ndarray:
        """Where the centres of mass are, seen from above."""
        masses = self.model.body_mass
        centers: np.ndarray = (masses[:, None] * self.xipos[:, :, :2]).sum(axis=1) / masses.sum()
        return centers

    def observe(self) -> np.ndarray:
        """Read quantities of the bodies too, of which the first are those of the world."""
        parts = [super().observe()]
        for name, first in {"cinert": 1, "cvel": 1, "qfrc_actuator": 6, "cfrc_ext": 1}.items():
            if getattr(self.settings, f"include_{name}_in_observation") is True:
                parts.append(flat(getattr(self, name)[:, first:]))
        return np.concatenate(parts, axis=1)

    def is_healthy(self) -> np.ndarray | None:
        return is_within(self.qpos[:, 2], self.settings.healthy_z_range)

    def control_costs(self, actions: np.ndarray) -> np.ndarray:
        return super().control_costs(self.ctrl)

    def contact_costs(self, name: str = "contact") -> np.ndarray:
        weight, bounds = (getattr(self.settings, f"{name}_cost_{what}") for what in ("weight", "range"))
        return np.asarray(np.clip(weight * np.sum(np.square(flat(self.cfrc_ext)), axis=1), *bounds))

    def describe(self) -> InfoParts:
        return {
            **super().describe(),
            "tendon_length": self.ten_length.copy(),
            "tendon_velocity": self.ten_velocity.copy(),
        }


class HumanoidStandup(Humanoid):
    """A humanoid that stands up."""

    def track(self) -> np.ndarray:
        return Task.track(self)

    def is_healthy(self) -> None:
        return None

    def reward(self, actions: np.ndarray) -> tuple[np.ndarray, InfoParts]:
        height = self.qpos[:, 2] / self.model.opt.timestep
        control, impact = self.control_costs(actions), self.contact_costs("impact")
        terms = {"reward_linup": height, "reward_quadctrl": -control, "reward_impact": -impact}
        return height - control - impact + 1, terms

    def describe(self) -> InfoParts:
        x, y, z = self.qpos[:, :3].T
        place = {"x_position": x, "y_position": y, "z_distance_from_origin": z - self.init_qpos[2]}
        return {**place, "tendon_length": self.ten_length.copy(), "tendon_velocity": self.ten_velocity.copy()}


def have_finite_states(sims: Task) -> np.ndarray:
    """Which simulations have finite positions and velocities."""
    return np.asarray(np.isfinite(sims.qpos).all(axis=1) & np.isfinite(sims.qvel).all(axis=1))


class InvertedPendulum(Task):
    """A pole on a cart."""

    def terminates(self) -> np.ndarray:
        return np.asarray(~have_finite_states(self) | (np.abs(self.qpos[:, 1]) > 0.2))

    def reward(self, actions: np.ndarray) -> tuple[np.ndarray, InfoParts]:
        rewards = (~self.terminated).astype(int)
        return rewards, {"reward_survive": rewards.tolist()}


class InvertedDoublePendulum(Task):
    """Two poles on a cart, whose tip should be high and still."""

    def observe(self) -> np.ndarray:
        angles = self.qpos[:, 1:]
        velocities, forces = np.clip(self.qvel, -10, 10), np.clip(self.qfrc_constraint[:, :1], -10, 10)
        return np.concatenate((self.qpos[:, :1], np.sin(angles), np.cos(angles), velocities, forces), axis=1)

    def terminates(self) -> np.ndarray:
        return np.asarray(self.site_xpos[:, 0, 2] <= 1)

    def reward(self, actions: np.ndarray) -> tuple[np.ndarray, InfoParts]:
        bonuses = [self.settings.healthy_reward * int(not fallen) for fallen in self.terminated]
        tips = self.site_xpos[:, 0]
        distances = [0.01 * x**2 + (y - 2) ** 2 for x, y in zip(tips[:, 0], tips[:, 2], strict=True)]
        speeds = [1e-3 * first**2 + 5e-3 * second**2 for first, second in self.qvel[:, 1:3]]
        rewards = np.subtract(np.subtract(bonuses, distances), speeds)
        penalties = {"distance_penalty": np.negative(distances), "velocity_penalty": np.negative(speeds)}
        return rewards, {"reward_survive": bonuses, **penalties}


class Reacher(Task):
    """An arm that moves its finger to a target."""

    def observe(self) -> np.ndarray:
        angles, way = self.qpos[:, :2], self.body("fingertip") - self.body("target")
        parts = (np.cos(angles), np.sin(angles), self.qpos[:, 2:], self.qvel[:, :2], way[:, :2])
        return np.concatenate(parts, axis=1)

    def reward(self, actions: np.ndarray) -> tuple[np.ndarray, InfoParts]:
        near = -norms(self.body("fingertip") - self.body("target")) * self.settings.reward_dist_weight
        control = -squares(actions) * self.settings.reward_control_weight
        return near + control, {"reward_dist": near, "reward_ctrl": control}


class Pusher(Task):
    """An arm that pushes an object to a goal."""

    def observe(self) -> np.ndarray:
        bodies = [self.body(name) for name in ("tips_arm", "object", "goal")]
        return np.concatenate((self.qpos[:, :7], self.qvel[:, :7], *bodies), axis=1)

    def reward(self, actions: np.ndarray) -> tuple[np.ndarray, InfoParts]:
        settings = self.settings
        near = -norms(self.body("object") - self.body("tips_arm")) * settings.reward_near_weight
        there = -norms(self.body("object") - self.body("goal")) * settings.reward_dist_weight
        control = -squares(actions) * settings.reward_control_weight
        return there + control + near, {"reward_dist": there, "reward_ctrl": control, "reward_near": near}


# What is not in these classes is in the signatures of gymnasium's environments.
TASKS: Mapping[str, type[Task]] = {
    f"{task.__name__}-v5": task
    for task in (
        *(HalfCheetah, Hopper, Walker2d, InvertedPendulum, InvertedDoublePendulum, Swimmer, Reacher, Pusher),
        *(Ant, Humanoid, HumanoidStandup),
    )
}


def is_gymnasiums(spec: EnvSpec) -> bool:
    """Whether an environment comes from gymnasium, and not from something else that took over the id."""
    return str(spec.entry_point).startswith("gymnasium.") and not spec.additional_wrappers


def has_batches(spec: EnvSpec, env_kwargs: Mapping[str, object]) -> bool:
    """Whether MuJoCo's batches are installed and can simulate an environment."""
    installed = find_spec("mujoco") is not None and find_spec("mujoco.batch") is not None
    if not installed or spec.id not in TASKS or not is_gymnasiums(spec):
        return False
    given = {name for name, value in env_kwargs.items() if (name, value) != ("render_mode", None)}
    return given <= default_settings(spec).keys()


def default_settings(spec: EnvSpec) -> dict[str, Any]:
    """Find the arguments of ``gym.make`` that a batch takes, with their defaults."""
    assert isinstance(spec.entry_point, str)
    parameters = signature(load_env_creator(spec.entry_point)).parameters.values()
    settings = {one.name: one.default for one in parameters if one.default is not one.empty}
    del settings["default_camera_config"], settings["xml_file"]
    return {**settings, **spec.kwargs, "max_episode_steps": spec.max_episode_steps}
