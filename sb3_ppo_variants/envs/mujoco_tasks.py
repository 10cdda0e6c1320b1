"""Gymnasium's tasks of MuJoCo, version 5, as functions over all simulations.

Every number is that of gymnasium's environment, bit for bit. This needs its order of operations and its types: a
control cost has the type of the actions, and powers and norms are taken one simulation at a time where NumPy rounds
those of arrays differently.
"""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import load_env_creator

from sb3_ppo_variants.envs.simulations import MujocoTask, Simulations, Terms
from sb3_ppo_variants.errors import refuse

Generator: TypeAlias = np.random.Generator
Test: TypeAlias = Callable[[Simulations], np.ndarray]


def norms(rows: np.ndarray) -> np.ndarray:
    """Return the Euclidean norm of each row, rounded as ``np.linalg.norm`` rounds that of a single one."""
    return np.sqrt([row.dot(row) for row in np.ascontiguousarray(rows)])


def control_costs(sims: Simulations, actions: np.ndarray) -> np.ndarray:
    """Return the weighted squared norm of each action."""
    costs: np.ndarray = sims.settings.ctrl_cost_weight * np.square(actions).sum(axis=1)
    return costs


def is_within(values: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """Return which values are strictly between the bounds."""
    low, high = bounds
    return np.asarray((low < values) & (values < high))


# Where the robot is.


def positions_and_velocities(sims: Simulations, n_hidden: int, bound: float = np.inf) -> np.ndarray:
    """Return all positions, possibly without the first ones, which are those in the world, and clipped velocities."""
    first = n_hidden if sims.settings.exclude_current_positions_from_observation else 0
    velocities = sims.qvel if bound == np.inf else np.minimum(np.maximum(sims.qvel, -bound), bound)
    return np.concatenate((sims.qpos[:, first:], velocities), axis=1)


def x_position(sims: Simulations) -> Terms:
    """Report how far a robot in the plane has come."""
    return {"x_position": sims.qpos[:, 0]}


def x_and_height(sims: Simulations) -> Terms:
    """Report where a robot in the plane is."""
    return {**x_position(sims), "z_distance_from_origin": sims.qpos[:, 1] - sims.init_qpos[1]}


def xy_position(sims: Simulations) -> Terms:
    """Report where a robot in space is."""
    place = sims.qpos[:, :2]
    return {"x_position": place[:, 0], "y_position": place[:, 1], "distance_from_origin": norms(place)}


def tendons(sims: Simulations) -> Terms:
    """Report the tendons of a humanoid."""
    return {"tendon_length": sims.ten_length, "tendon_velocity": sims.ten_velocity}


# How episodes begin.


def uniform_noise(sims: Simulations, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """Begin near the initial state, with uniform noise."""
    scale = sims.settings.reset_noise_scale
    qpos = sims.init_qpos + rng.uniform(low=-scale, high=scale, size=sims.model.nq)
    return qpos, sims.init_qvel + rng.uniform(low=-scale, high=scale, size=sims.model.nv)


def normal_velocities(sims: Simulations, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """Begin near the initial state, with uniform noise in positions and Gaussian noise in velocities."""
    scale = sims.settings.reset_noise_scale
    qpos = sims.init_qpos + rng.uniform(low=-scale, high=scale, size=sims.model.nq)
    return qpos, sims.init_qvel + scale * rng.standard_normal(sims.model.nv)


# Robots in the plane, and the swimmer.


def x_of_root(sims: Simulations) -> np.ndarray:
    """Return the robots' first coordinates."""
    return sims.qpos[:, 0].copy()


def xy_of_root(sims: Simulations) -> np.ndarray:
    """Return the robots' first two coordinates."""
    return sims.qpos[:, :2].copy()


def run(sims: Simulations, actions: np.ndarray) -> tuple[np.ndarray, Terms]:
    """Reward speed."""
    velocities = (sims.qpos[:, 0] - sims.before) / sims.dt
    forward = sims.settings.forward_reward_weight * velocities
    costs = control_costs(sims, actions)
    return forward - costs, {"x_velocity": velocities, "reward_forward": forward, "reward_ctrl": -costs}


def swim(sims: Simulations, actions: np.ndarray) -> tuple[np.ndarray, Terms]:
    """Reward speed along the first axis."""
    velocities = (sims.qpos[:, :2] - sims.before) / sims.dt
    forward = sims.settings.forward_reward_weight * velocities[:, 0]
    costs = control_costs(sims, actions)
    speeds = {"x_velocity": velocities[:, 0], "y_velocity": velocities[:, 1]}
    return forward - costs, {**speeds, "reward_forward": forward, "reward_ctrl": -costs}


def is_upright(sims: Simulations) -> np.ndarray:
    """Return which walkers are healthy, by their height and angle."""
    height = is_within(sims.qpos[:, 1], sims.settings.healthy_z_range)
    return np.asarray(height & is_within(sims.qpos[:, 2], sims.settings.healthy_angle_range))


def is_hopping(sims: Simulations) -> np.ndarray:
    """Return which hoppers are healthy, by their height, angle and other coordinates."""
    others = np.concatenate((sims.qpos[:, 2:], sims.qvel), axis=1)
    return is_upright(sims) & is_within(others, sims.settings.healthy_state_range).all(axis=1)


def unless_healthy(is_healthy: Test, sims: Simulations) -> np.ndarray:
    """Terminate the simulations of unhealthy robots, if the task says so."""
    healthy = is_healthy(sims)
    return np.asarray(~healthy if sims.settings.terminate_when_unhealthy else np.zeros_like(healthy))


def healthy_ones(is_healthy: Test, sims: Simulations) -> np.ndarray:
    """Return which robots are healthy, which is known already if the others have terminated."""
    return ~sims.terminated if sims.settings.terminate_when_unhealthy else is_healthy(sims)


def walk(is_healthy: Test, sims: Simulations, actions: np.ndarray) -> tuple[np.ndarray, Terms]:
    """Reward speed and health."""
    velocities = (sims.qpos[:, 0] - sims.before) / sims.dt
    forward = sims.settings.forward_reward_weight * velocities
    survive = healthy_ones(is_healthy, sims) * sims.settings.healthy_reward
    costs = control_costs(sims, actions)
    terms = {"x_velocity": velocities, "reward_forward": forward, "reward_ctrl": -costs, "reward_survive": survive}
    return forward + survive - costs, terms


# Pendulums.


def positions_and_velocities_of_all(sims: Simulations) -> np.ndarray:
    """Return all positions and velocities."""
    return np.concatenate((sims.qpos, sims.qvel), axis=1)


def has_tipped(sims: Simulations) -> np.ndarray:
    """Return which poles have fallen."""
    finite = np.isfinite(sims.qpos).all(axis=1) & np.isfinite(sims.qvel).all(axis=1)
    return np.asarray(~finite | (np.abs(sims.qpos[:, 1]) > 0.2))


def stand(sims: Simulations, actions: np.ndarray) -> tuple[np.ndarray, Terms]:
    """Reward each step with a standing pole."""
    rewards = (~sims.terminated).astype(int)
    return rewards, {"reward_survive": rewards.tolist()}


def observe_two_poles(sims: Simulations) -> np.ndarray:
    """Return positions, sines and cosines of angles, velocities and the force on the cart."""
    angles = sims.qpos[:, 1:]
    velocities, forces = np.clip(sims.qvel, -10, 10), np.clip(sims.qfrc_constraint[:, :1], -10, 10)
    return np.concatenate((sims.qpos[:, :1], np.sin(angles), np.cos(angles), velocities, forces), axis=1)


def has_fallen(sims: Simulations) -> np.ndarray:
    """Return which double poles have fallen."""
    return np.asarray(sims.site_xpos[:, 0, 2] <= 1)


def balance(sims: Simulations, actions: np.ndarray) -> tuple[np.ndarray, Terms]:
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
    """Return cosines and sines of angles, the target, velocities and the way to the target."""
    angles = sims.qpos[:, :2]
    way = sims.body("fingertip") - sims.body("target")
    parts = (np.cos(angles), np.sin(angles), sims.qpos[:, 2:], sims.qvel[:, :2], way[:, :2])
    return np.concatenate(parts, axis=1)


def reach(sims: Simulations, actions: np.ndarray) -> tuple[np.ndarray, Terms]:
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
    """Return positions and velocities of the arm, and where its tip, the object and the goal are."""
    bodies = [sims.body(name) for name in ("tips_arm", "object", "goal")]
    return np.concatenate((sims.qpos[:, :7], sims.qvel[:, :7], *bodies), axis=1)


def push(sims: Simulations, actions: np.ndarray) -> tuple[np.ndarray, Terms]:
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
    """Return one row per simulation."""
    return rows.reshape(len(rows), -1)


def clipped_forces(sims: Simulations) -> np.ndarray:
    """Return the ant's forces from contacts, which are clipped."""
    low, high = sims.settings.contact_force_range
    return np.asarray(np.clip(sims.cfrc_ext, low, high))


def observe_ant(sims: Simulations) -> np.ndarray:
    """Return positions and velocities, and forces from contacts."""
    state = positions_and_velocities(sims, 2)
    if not sims.settings.include_cfrc_ext_in_observation:
        return state
    return np.concatenate((state, flat(clipped_forces(sims)[:, 1:])), axis=1)


def xy_of_body(sims: Simulations) -> np.ndarray:
    """Return where the ant's main body is."""
    return sims.xpos[:, sims.model.body(sims.settings.main_body).id, :2].copy()


def is_at_height(sims: Simulations) -> np.ndarray:
    """Return which ants are healthy, by their height."""
    low, high = sims.settings.healthy_z_range
    finite = np.isfinite(sims.qpos).all(axis=1) & np.isfinite(sims.qvel).all(axis=1)
    return np.asarray(finite & (low <= sims.qpos[:, 2]) & (sims.qpos[:, 2] <= high))


def crawl(sims: Simulations, actions: np.ndarray) -> tuple[np.ndarray, Terms]:
    """Reward speed and health, less the costs of torques and contacts."""
    settings = sims.settings
    velocities = (xy_of_body(sims) - sims.before) / sims.dt
    forward, survive = (
        velocities[:, 0] * settings.forward_reward_weight,
        healthy_ones(is_at_height, sims) * settings.healthy_reward,
    )
    control = control_costs(sims, actions)
    contact = settings.contact_cost_weight * np.sum(np.square(flat(clipped_forces(sims))), axis=1)
    return forward + survive - (control + contact), {
        "x_velocity": velocities[:, 0],
        "y_velocity": velocities[:, 1],
        "reward_forward": forward,
        "reward_ctrl": -control,
        "reward_contact": -contact,
        "reward_survive": survive,
    }


def observe_humanoid(sims: Simulations) -> np.ndarray:
    """Return positions and velocities, and quantities of the bodies."""
    settings = sims.settings
    parts = [positions_and_velocities(sims, 2)]
    if settings.include_cinert_in_observation is True:
        parts.append(flat(sims.cinert[:, 1:]))
    if settings.include_cvel_in_observation is True:
        parts.append(flat(sims.cvel[:, 1:]))
    if settings.include_qfrc_actuator_in_observation is True:
        parts.append(sims.qfrc_actuator[:, 6:])
    if settings.include_cfrc_ext_in_observation is True:
        parts.append(flat(sims.cfrc_ext[:, 1:]))
    return np.concatenate(parts, axis=1)


def mass_centers(sims: Simulations) -> np.ndarray:
    """Return where the humanoids' centres of mass are, seen from above."""
    masses = sims.model.body_mass
    centers: np.ndarray = (masses[:, None] * sims.xipos[:, :, :2]).sum(axis=1) / masses.sum()
    return centers


def impacts(sims: Simulations, weight: float, bounds: tuple[float, float]) -> np.ndarray:
    """Return the costs of forces from contacts, which are clipped."""
    low, high = bounds
    return np.asarray(np.clip(weight * np.sum(np.square(flat(sims.cfrc_ext)), axis=1), low, high))


def is_standing(sims: Simulations) -> np.ndarray:
    """Return which humanoids are healthy, by their height."""
    return is_within(sims.qpos[:, 2], sims.settings.healthy_z_range)


def stride(sims: Simulations, actions: np.ndarray) -> tuple[np.ndarray, Terms]:
    """Reward a humanoid's speed and health, less the costs of torques and contacts."""
    settings = sims.settings
    velocities = (mass_centers(sims) - sims.before) / sims.dt
    forward, survive = (
        settings.forward_reward_weight * velocities[:, 0],
        healthy_ones(is_standing, sims) * settings.healthy_reward,
    )
    control = control_costs(sims, sims.ctrl)
    contact = impacts(sims, settings.contact_cost_weight, settings.contact_cost_range)
    return forward + survive - (control + contact), {
        "x_velocity": velocities[:, 0],
        "y_velocity": velocities[:, 1],
        "reward_survive": survive,
        "reward_forward": forward,
        "reward_ctrl": -control,
        "reward_contact": -contact,
    }


def stand_up(sims: Simulations, actions: np.ndarray) -> tuple[np.ndarray, Terms]:
    """Reward a humanoid's height, less the costs of torques and contacts."""
    settings = sims.settings
    height = sims.qpos[:, 2] / sims.model.opt.timestep
    control = settings.ctrl_cost_weight * np.square(sims.ctrl).sum(axis=1)
    impact = impacts(sims, settings.impact_cost_weight, settings.impact_cost_range)
    terms = {"reward_linup": height, "reward_quadctrl": -control, "reward_impact": -impact}
    return height - control - impact + 1, terms


def humanoid_position(sims: Simulations) -> Terms:
    """Report where a walking humanoid is."""
    place = dict(xy_position(sims))
    distance = place.pop("distance_from_origin")
    return {**place, **tendons(sims), "distance_from_origin": distance}


def lying_position(sims: Simulations) -> Terms:
    """Report where a humanoid that stands up is."""
    x, y, z = sims.qpos[:, :3].T
    return {"x_position": x, "y_position": y, "z_distance_from_origin": z - sims.init_qpos[2], **tendons(sims)}


# The functions of each id. The rest is in the signature of gymnasium's environment.
TASKS: Mapping[str, Callable[..., MujocoTask]] = {
    "HalfCheetah-v5": partial(
        MujocoTask,
        observe=partial(positions_and_velocities, n_hidden=1),
        reward=run,
        reset=normal_velocities,
        describe=x_position,
        track=x_of_root,
    ),
    "Hopper-v5": partial(
        MujocoTask,
        observe=partial(positions_and_velocities, n_hidden=1, bound=10),
        reward=partial(walk, is_hopping),
        reset=uniform_noise,
        terminated=partial(unless_healthy, is_hopping),
        describe=x_and_height,
        track=x_of_root,
    ),
    "Walker2d-v5": partial(
        MujocoTask,
        observe=partial(positions_and_velocities, n_hidden=1, bound=10),
        reward=partial(walk, is_upright),
        reset=uniform_noise,
        terminated=partial(unless_healthy, is_upright),
        describe=x_and_height,
        track=x_of_root,
    ),
    "InvertedPendulum-v5": partial(
        MujocoTask,
        observe=positions_and_velocities_of_all,
        reward=stand,
        reset=uniform_noise,
        terminated=has_tipped,
    ),
    "InvertedDoublePendulum-v5": partial(
        MujocoTask, observe=observe_two_poles, reward=balance, reset=normal_velocities, terminated=has_fallen
    ),
    "Swimmer-v5": partial(
        MujocoTask,
        observe=partial(positions_and_velocities, n_hidden=2),
        reward=swim,
        reset=uniform_noise,
        describe=xy_position,
        track=xy_of_root,
    ),
    "Reacher-v5": partial(MujocoTask, observe=observe_reacher, reward=reach, reset=place_target),
    "Pusher-v5": partial(MujocoTask, observe=observe_pusher, reward=push, reset=place_object),
    "Ant-v5": partial(
        MujocoTask,
        observe=observe_ant,
        reward=crawl,
        reset=normal_velocities,
        terminated=partial(unless_healthy, is_at_height),
        describe=xy_position,
        track=xy_of_body,
        contact_forces=True,
    ),
    "Humanoid-v5": partial(
        MujocoTask,
        observe=observe_humanoid,
        reward=stride,
        reset=uniform_noise,
        terminated=partial(unless_healthy, is_standing),
        describe=humanoid_position,
        track=mass_centers,
        contact_forces=True,
    ),
    "HumanoidStandup-v5": partial(
        MujocoTask,
        observe=observe_humanoid,
        reward=stand_up,
        reset=uniform_noise,
        describe=lying_position,
        contact_forces=True,
    ),
}


def gymnasium_task(env_id: str) -> MujocoTask:
    """Return the task of an id, with the model, the settings and the time limit of gymnasium's environment.

    :raises ArgumentError: if the id has no functions here
    """
    if env_id not in TASKS:
        refuse("env_id", env_id, f"a MujocoTask, or one of {', '.join(TASKS)}")
    spec = gym.spec(env_id)
    assert isinstance(spec.entry_point, str)
    parameters = signature(load_env_creator(spec.entry_point)).parameters.values()
    settings = {one.name: one.default for one in parameters if one.default is not one.empty}
    settings.update(spec.kwargs)
    xml_file, frame_skip = settings.pop("xml_file"), settings.pop("frame_skip")
    return TASKS[env_id](
        xml_file=xml_file,
        frame_skip=frame_skip,
        max_episode_steps=spec.max_episode_steps,
        camera=settings.pop("default_camera_config"),
        settings=settings,
    )
