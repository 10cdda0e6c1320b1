"""Gymnasium's tasks of MuJoCo, version 5, as functions over all simulations.

Every number is that of gymnasium's environment, bit for bit. This needs its order of operations and its types: a
control cost has the type of the actions, and powers and norms are taken one simulation at a time where NumPy rounds
those of arrays differently.
"""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator

from sb3_ppo_variants.envs.mujoco.simulations import InfoParts, MujocoTask, Simulations
from sb3_ppo_variants.errors import ArgumentError, refuse

Generator: TypeAlias = np.random.Generator
Quantity: TypeAlias = Callable[[Simulations], np.ndarray]
Costs: TypeAlias = Callable[[Simulations, np.ndarray], np.ndarray]


def norms(rows: np.ndarray) -> np.ndarray:
    """Compute the Euclidean norm of each row, rounded as ``np.linalg.norm`` rounds that of a single one."""
    return np.sqrt([row.dot(row) for row in np.ascontiguousarray(rows)])


def control_costs(sims: Simulations, actions: np.ndarray) -> np.ndarray:
    """Compute the weighted squared norm of each action."""
    costs: np.ndarray = sims.settings.ctrl_cost_weight * np.square(actions).sum(axis=1)
    return costs


def is_within(values: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """Which values are strictly between the bounds."""
    low, high = bounds
    return np.asarray((low < values) & (values < high))


def have_finite_states(sims: Simulations) -> np.ndarray:
    """Which simulations have finite positions and velocities."""
    return np.asarray(np.isfinite(sims.qpos).all(axis=1) & np.isfinite(sims.qvel).all(axis=1))


# Where the robot is.


def positions_and_velocities(sims: Simulations, n_hidden: int = 0, bound: float = np.inf) -> np.ndarray:
    """Read all positions, possibly without the first ones, which are those in the world, and clipped velocities."""
    first = n_hidden if n_hidden and sims.settings.exclude_current_positions_from_observation else 0
    velocities = sims.qvel if bound == np.inf else np.minimum(np.maximum(sims.qvel, -bound), bound)
    return np.concatenate((sims.qpos[:, first:], velocities), axis=1)


def xy_position(sims: Simulations) -> InfoParts:
    """Report where a robot in space is."""
    place = sims.qpos[:, :2]
    return {"x_position": place[:, 0], "y_position": place[:, 1], "distance_from_origin": norms(place)}


def tendons(sims: Simulations) -> InfoParts:
    """Report the tendons of a humanoid."""
    return {"tendon_length": sims.ten_length, "tendon_velocity": sims.ten_velocity}


def lying_position(sims: Simulations) -> InfoParts:
    """Report where a humanoid that stands up is."""
    x, y, z = sims.qpos[:, :3].T
    return {"x_position": x, "y_position": y, "z_distance_from_origin": z - sims.init_qpos[2], **tendons(sims)}


def begin_nearby(sims: Simulations, rng: Generator, gaussian: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Begin near the initial state, with uniform noise, or Gaussian noise in velocities."""
    scale = sims.settings.reset_noise_scale
    qpos = sims.init_qpos + rng.uniform(low=-scale, high=scale, size=sims.model.nq)
    if gaussian:
        return qpos, sims.init_qvel + scale * rng.standard_normal(sims.model.nv)
    return qpos, sims.init_qvel + rng.uniform(low=-scale, high=scale, size=sims.model.nv)


# Robots that run, swim and walk.


def root(sims: Simulations, n_axes: int = 2) -> np.ndarray:
    """Where the roots of robots are, along their first axes."""
    return sims.qpos[:, :n_axes].copy()


def is_upright(sims: Simulations) -> np.ndarray:
    """Which walkers are healthy, by their height and angle."""
    height = is_within(sims.qpos[:, 1], sims.settings.healthy_z_range)
    return np.asarray(height & is_within(sims.qpos[:, 2], sims.settings.healthy_angle_range))


def is_hopping(sims: Simulations) -> np.ndarray:
    """Which hoppers are healthy, by their height, angle and other coordinates."""
    others = np.concatenate((sims.qpos[:, 2:], sims.qvel), axis=1)
    return is_upright(sims) & is_within(others, sims.settings.healthy_state_range).all(axis=1)


def unless_healthy(is_healthy: Quantity, sims: Simulations) -> np.ndarray:
    """Terminate the simulations of unhealthy robots, if the task says so."""
    healthy = is_healthy(sims)
    return np.asarray(~healthy if sims.settings.terminate_when_unhealthy else np.zeros_like(healthy))


def move(
    place: Quantity,
    is_healthy: Quantity | None,
    control_costs: Costs,
    contact_costs: Costs | None,
    sims: Simulations,
    actions: np.ndarray,
) -> tuple[np.ndarray, InfoParts]:
    """Reward speed along the first axis and any health, less the costs of torques and any contacts.

    :param place: returns where robots are, of shape ``(n_envs, n_axes)``
    :param is_healthy: returns which robots are healthy, if that is rewarded
    """
    settings = sims.settings
    velocities = (place(sims) - sims.before) / sims.dt
    terms = {"x_velocity": velocities[:, 0]}
    if velocities.shape[1] > 1:
        terms["y_velocity"] = velocities[:, 1]
    rewards = terms["reward_forward"] = settings.forward_reward_weight * velocities[:, 0]
    if is_healthy is not None:
        # It is known already if the others have terminated.
        healthy = ~sims.terminated if settings.terminate_when_unhealthy else is_healthy(sims)
        terms["reward_survive"] = healthy * settings.healthy_reward
        rewards = rewards + terms["reward_survive"]
    costs = control_costs(sims, actions)
    terms["reward_ctrl"] = -costs
    if contact_costs is not None:
        of_contacts = contact_costs(sims, actions)
        terms["reward_contact"] = -of_contacts
        costs = costs + of_contacts
    return rewards - costs, terms


def robot(
    place: Quantity,
    is_healthy: Quantity | None = None,
    control_costs: Costs = control_costs,
    contact_costs: Costs | None = None,
    **functions: Any,
) -> MujocoTask:
    """Make the task of a robot that is to :func:`move`, whose episodes end when it is not healthy."""
    if is_healthy is not None:
        functions["terminated"] = partial(unless_healthy, is_healthy)
    reward = partial(move, place, is_healthy, control_costs, contact_costs)
    return MujocoTask(reward=reward, track=place, **functions)


# Pendulums.


def stand(sims: Simulations, actions: np.ndarray) -> tuple[np.ndarray, InfoParts]:
    """Reward each step with a standing pole."""
    rewards = (~sims.terminated).astype(int)
    return rewards, {"reward_survive": rewards.tolist()}


def observe_two_poles(sims: Simulations) -> np.ndarray:
    """Observe positions, sines and cosines of angles, velocities and the force on the cart."""
    angles = sims.qpos[:, 1:]
    velocities, forces = np.clip(sims.qvel, -10, 10), np.clip(sims.qfrc_constraint[:, :1], -10, 10)
    return np.concatenate((sims.qpos[:, :1], np.sin(angles), np.cos(angles), velocities, forces), axis=1)


def balance(sims: Simulations, actions: np.ndarray) -> tuple[np.ndarray, InfoParts]:
    """Reward a tip that is high and still."""
    bonuses = [sims.settings.healthy_reward * int(not fallen) for fallen in sims.terminated]
    tips = sims.site_xpos[:, 0]
    distances = [0.01 * x**2 + (y - 2) ** 2 for x, y in zip(tips[:, 0], tips[:, 2], strict=True)]
    speeds = [1e-3 * first**2 + 5e-3 * second**2 for first, second in sims.qvel[:, 1:3]]
    rewards = np.subtract(np.subtract(bonuses, distances), speeds)
    return rewards, {
        "reward_survive": bonuses,
        "distance_penalty": np.negative(distances),
        "velocity_penalty": np.negative(speeds),
    }


# Arms.


def observe_reacher(sims: Simulations) -> np.ndarray:
    """Observe cosines and sines of angles, the target, velocities and the way to the target."""
    angles = sims.qpos[:, :2]
    way = sims.body("fingertip") - sims.body("target")
    parts = (np.cos(angles), np.sin(angles), sims.qpos[:, 2:], sims.qvel[:, :2], way[:, :2])
    return np.concatenate(parts, axis=1)


def reach(sims: Simulations, actions: np.ndarray) -> tuple[np.ndarray, InfoParts]:
    """Reward a finger near the target."""
    settings = sims.settings
    near = -norms(sims.body("fingertip") - sims.body("target")) * settings.reward_dist_weight
    control = -np.square(actions).sum(axis=1) * settings.reward_control_weight
    return near + control, {"reward_dist": near, "reward_ctrl": control}


def place_target(sims: Simulations, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """Begin near the initial state, with a target within reach."""
    qpos = rng.uniform(low=-0.1, high=0.1, size=sims.model.nq) + sims.init_qpos
    while True:
        goal = rng.uniform(low=-0.2, high=0.2, size=2)
        if np.linalg.norm(goal) < 0.2:
            break
    qpos[-2:] = goal
    qvel = sims.init_qvel + rng.uniform(low=-0.005, high=0.005, size=sims.model.nv)
    qvel[-2:] = 0
    return qpos, qvel


def observe_pusher(sims: Simulations) -> np.ndarray:
    """Observe positions and velocities of the arm, and where its tip, the object and the goal are."""
    bodies = [sims.body(name) for name in ("tips_arm", "object", "goal")]
    return np.concatenate((sims.qpos[:, :7], sims.qvel[:, :7], *bodies), axis=1)


def push(sims: Simulations, actions: np.ndarray) -> tuple[np.ndarray, InfoParts]:
    """Reward an object near its goal, and an arm near the object."""
    settings = sims.settings
    near = -norms(sims.body("object") - sims.body("tips_arm")) * settings.reward_near_weight
    there = -norms(sims.body("object") - sims.body("goal")) * settings.reward_dist_weight
    control = -np.square(actions).sum(axis=1) * settings.reward_control_weight
    return there + control + near, {"reward_dist": there, "reward_ctrl": control, "reward_near": near}


def place_object(sims: Simulations, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """Begin in the initial state, with the object away from its goal."""
    qpos = sims.init_qpos.copy()
    while True:
        place = np.concatenate([rng.uniform(low=-0.3, high=0, size=1), rng.uniform(low=-0.2, high=0.2, size=1)])
        if np.linalg.norm(place) > 0.17:
            break
    qpos[-4:-2], qpos[-2:] = place, 0
    qvel = sims.init_qvel + rng.uniform(low=-0.005, high=0.005, size=sims.model.nv)
    qvel[-4:] = 0
    return qpos, qvel


# Robots in space, which feel their contacts.


def flat(rows: np.ndarray) -> np.ndarray:
    """Flatten to one row per simulation."""
    return rows.reshape(len(rows), -1)


def clipped_forces(sims: Simulations) -> np.ndarray:
    """Clip the ant's forces from contacts."""
    low, high = sims.settings.contact_force_range
    return np.asarray(np.clip(sims.cfrc_ext, low, high))


def observe_ant(sims: Simulations) -> np.ndarray:
    """Observe positions and velocities, and forces from contacts."""
    state = positions_and_velocities(sims, 2)
    if not sims.settings.include_cfrc_ext_in_observation:
        return state
    return np.concatenate((state, flat(clipped_forces(sims)[:, 1:])), axis=1)


def xy_of_body(sims: Simulations) -> np.ndarray:
    """Where the ant's main body is."""
    return sims.xpos[:, sims.model.body(sims.settings.main_body).id, :2].copy()


def is_at_height(sims: Simulations) -> np.ndarray:
    """Which ants are healthy, by their height."""
    low, high = sims.settings.healthy_z_range
    return np.asarray(have_finite_states(sims) & (low <= sims.qpos[:, 2]) & (sims.qpos[:, 2] <= high))


def contact_costs(sims: Simulations, actions: np.ndarray) -> np.ndarray:
    """Compute the costs of an ant's contacts."""
    costs = sims.settings.contact_cost_weight * np.sum(np.square(flat(clipped_forces(sims))), axis=1)
    return np.asarray(costs)


def observe_humanoid(sims: Simulations) -> np.ndarray:
    """Observe positions and velocities, and quantities of the bodies, of which the first are those of the world."""
    parts = [positions_and_velocities(sims, 2)]
    for name, first in {"cinert": 1, "cvel": 1, "qfrc_actuator": 6, "cfrc_ext": 1}.items():
        if getattr(sims.settings, f"include_{name}_in_observation") is True:
            parts.append(flat(getattr(sims, name)[:, first:]))
    return np.concatenate(parts, axis=1)


def mass_centers(sims: Simulations) -> np.ndarray:
    """Where the humanoids' centres of mass are, seen from above."""
    masses = sims.model.body_mass
    centers: np.ndarray = (masses[:, None] * sims.xipos[:, :, :2]).sum(axis=1) / masses.sum()
    return centers


def torque_costs(sims: Simulations, actions: np.ndarray) -> np.ndarray:
    """Compute the weighted squared norm of the controls of each humanoid."""
    return control_costs(sims, sims.ctrl)


def impact_costs(name: str, sims: Simulations, actions: np.ndarray) -> np.ndarray:
    """Compute the costs of forces from contacts, which are clipped; the settings call them ``name``."""
    weight: float = getattr(sims.settings, f"{name}_cost_weight")
    low, high = getattr(sims.settings, f"{name}_cost_range")
    return np.asarray(np.clip(weight * np.sum(np.square(flat(sims.cfrc_ext)), axis=1), low, high))


def stand_up(sims: Simulations, actions: np.ndarray) -> tuple[np.ndarray, InfoParts]:
    """Reward a humanoid's height, less the costs of torques and contacts."""
    height = sims.qpos[:, 2] / sims.model.opt.timestep
    control, impact = torque_costs(sims, actions), impact_costs("impact", sims, actions)
    terms = {"reward_linup": height, "reward_quadctrl": -control, "reward_impact": -impact}
    return height - control - impact + 1, terms


gaussian = partial(begin_nearby, gaussian=True)
x_of_root = partial(root, n_axes=1)
# The functions of each id. The rest is in the signature of gymnasium's environment.
TASKS: Mapping[str, MujocoTask] = {
    "HalfCheetah-v5": robot(
        x_of_root,
        observe=partial(positions_and_velocities, n_hidden=1),
        reset=gaussian,
        describe=lambda sims: {"x_position": sims.qpos[:, 0]},
    ),
    **{
        env_id: robot(
            x_of_root,
            is_healthy,
            observe=partial(positions_and_velocities, n_hidden=1, bound=10),
            reset=begin_nearby,
            describe=lambda sims: {
                "x_position": sims.qpos[:, 0],
                "z_distance_from_origin": sims.qpos[:, 1] - sims.init_qpos[1],
            },
        )
        for env_id, is_healthy in {"Hopper-v5": is_hopping, "Walker2d-v5": is_upright}.items()
    },
    "InvertedPendulum-v5": MujocoTask(
        observe=positions_and_velocities,
        reward=stand,
        reset=begin_nearby,
        terminated=lambda sims: ~have_finite_states(sims) | (np.abs(sims.qpos[:, 1]) > 0.2),
    ),
    "InvertedDoublePendulum-v5": MujocoTask(
        observe=observe_two_poles,
        reward=balance,
        reset=gaussian,
        terminated=lambda sims: np.asarray(sims.site_xpos[:, 0, 2] <= 1),
    ),
    "Swimmer-v5": robot(
        root, observe=partial(positions_and_velocities, n_hidden=2), reset=begin_nearby, describe=xy_position
    ),
    "Reacher-v5": MujocoTask(observe=observe_reacher, reward=reach, reset=place_target),
    "Pusher-v5": MujocoTask(observe=observe_pusher, reward=push, reset=place_object),
    "Ant-v5": robot(
        xy_of_body,
        is_at_height,
        contact_costs=contact_costs,
        observe=observe_ant,
        reset=gaussian,
        describe=xy_position,
        contact_forces=True,
    ),
    "Humanoid-v5": robot(
        mass_centers,
        lambda sims: is_within(sims.qpos[:, 2], sims.settings.healthy_z_range),
        torque_costs,
        partial(impact_costs, "contact"),
        observe=observe_humanoid,
        reset=begin_nearby,
        describe=lambda sims: {**xy_position(sims), **tendons(sims)},
        contact_forces=True,
    ),
    "HumanoidStandup-v5": MujocoTask(
        observe=observe_humanoid,
        reward=stand_up,
        reset=begin_nearby,
        describe=lying_position,
        contact_forces=True,
    ),
}


def is_registered_by(spec: EnvSpec, *packages: str) -> bool:
    """Whether an environment comes from one of these packages, and not from another that took over the id."""
    entry = spec.entry_point
    return isinstance(entry, str) and entry.partition(".")[0] in packages and not spec.additional_wrappers


def spec_of_task(env_id: str) -> EnvSpec:
    """Find gymnasium's description of a task.

    :raises ArgumentError: if the id has no functions here, or another environment is registered under it
    """
    if env_id not in TASKS:
        refuse("env_id", env_id, f"one of {', '.join(TASKS)}")
    spec = gym.spec(env_id)
    if not is_registered_by(spec, "gymnasium"):
        raise ArgumentError(
            f"env_id={env_id!r} was registered again, with {spec.entry_point}, which is not the task that batches "
            "simulate: use make_vec_env, or register it under another id"
        )
    return spec


def arguments_of(spec: EnvSpec) -> tuple[str, dict[str, Any]]:
    """Find the model of a task, and the arguments of ``gym.make`` that a batch takes, with their defaults."""
    assert isinstance(spec.entry_point, str)
    parameters = signature(load_env_creator(spec.entry_point)).parameters.values()
    arguments = {one.name: one.default for one in parameters if one.default is not one.empty}
    del arguments["default_camera_config"]
    arguments.update(spec.kwargs, max_episode_steps=spec.max_episode_steps)
    return arguments.pop("xml_file"), arguments
