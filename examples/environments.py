"""Environments for masked and recurrent policies, and for hybrid actions, which examples and tests share.

Importing this module registers ``Scheduling-v0``, with masks, ``LowOrHigh-v0``, with masks and a hidden state, the
``NoVel`` tasks, with a hidden state, and ``MoveOrKick-v0``, with hybrid actions.

An id that names the module imports it: ``"examples.environments:Scheduling-v0"``. The ``NoVel`` tasks are gymnasium's
tasks without velocities, which can be inferred from several observations. They are named as in the RL Zoo, such as
``CartPoleNoVel-v1`` for ``CartPole-v1``.
"""

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Info = dict[str, Any]

# The choices of MoveOrKick, and how close the player must be to the ball to kick it.
MOVE, KICK = 0, 1
REACH = 0.1
# Indices of the velocities in each observation, as in the RL Zoo.
VELOCITIES = {
    "CartPole-v1": [1, 3],
    "Pendulum-v1": [2],
    "LunarLander-v3": [2, 3, 5],
    "LunarLanderContinuous-v3": [2, 3, 5],
}


class Scheduling(gym.Env[np.ndarray, np.int64]):
    """Jobs wait for one machine, and each job costs its weight per unit of time that it is late.

    Each reset samples new jobs: durations from 1 to 10, weights from 1 to 5, and due dates. An action selects the next
    job; finished jobs are masked. An episode ends when all jobs are done. The reward is the negative cost of the job,
    divided by what all jobs would cost if each of them were late by the total duration.

    Observations have one row per job: its duration, its weight and the time left until it is due, each scaled to
    [-1, 1], and 1 if it is done.

    :param n_jobs: number of jobs, >= 1
    """

    def __init__(self, n_jobs: int = 12):
        self.observation_space = spaces.Box(-1, 1, (n_jobs, 4), np.float32)
        self.action_space = spaces.Discrete(n_jobs)
        self._n_jobs = n_jobs

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Sample new jobs."""
        super().reset(seed=seed)
        self._durations = self.np_random.integers(1, 11, self._n_jobs)
        self._weights = self.np_random.integers(1, 6, self._n_jobs)
        self._total = self._durations.sum()
        self._due = self.np_random.uniform(0.1, 0.7, self._n_jobs) * self._total
        self._time = 0
        self._done = np.zeros(self._n_jobs, dtype=bool)
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Do the selected job.

        :raises ValueError: if it is already done
        """
        if self._done[action]:
            raise ValueError(f"job {action} is already done; action_masks() tells which jobs are not")
        self._time += self._durations[action]
        self._done[action] = True
        late = max(self._time - self._due[action], 0.0)
        cost = self._weights[action] * late / (self._weights.sum() * self._total)
        return self._observation(), -float(cost), bool(self._done.all()), False, {}

    def action_masks(self) -> np.ndarray:
        """Which jobs are not done yet, shape ``(n_jobs,)``."""
        return ~self._done

    def _observation(self) -> np.ndarray:
        columns = self._durations / 10, self._weights / 5, (self._due - self._time) / self._total, self._done
        jobs = np.empty((len(self._done), len(columns)), np.float32)
        for i, column in enumerate(columns):
            jobs[:, i] = column
        return jobs


class LowOrHigh(gym.Env[np.ndarray, np.int64]):
    """A sign at the beginning says whether to take the lowest or the highest allowed action at each step.

    The first observation is -1 for the lowest and 1 for the highest; all others are 0. At each step, a new mask allows
    at least two actions. The right one of them earns ``1 / n_steps``, and an action that is not allowed ends the
    episode. A policy that forgets the sign is right in half of the later steps at best, and a policy without masks does
    not know which actions are allowed.

    :param n_actions: number of actions, >= 2
    :param n_steps: number of steps in an episode, >= 1
    """

    def __init__(self, n_actions: int = 4, n_steps: int = 8):
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(n_actions)
        self._n_actions, self._n_steps = n_actions, n_steps

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Draw a sign and a mask."""
        super().reset(seed=seed)
        self._sign = int(self.np_random.choice([-1, 1]))
        self._steps = 0
        self._draw_mask()
        return np.full(1, self._sign, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Take an action, and draw another mask."""
        allowed = np.flatnonzero(self._mask)
        reward = float(action == allowed[0 if self._sign < 0 else -1]) / self._n_steps
        self._steps += 1
        ends = self._steps == self._n_steps or action not in allowed
        self._draw_mask()
        return np.zeros(1, np.float32), reward, ends, False, {}

    def action_masks(self) -> np.ndarray:
        """Which actions are allowed in this step, shape ``(n_actions,)``."""
        return self._mask

    def _draw_mask(self) -> None:
        self._mask = self.np_random.random(self._n_actions) < 0.5
        self._mask[self.np_random.choice(self._n_actions, 2, replace=False)] = True


class MoveOrKick(gym.Env[np.ndarray, Any]):
    """A player moves to a ball, or kicks it towards a goal. Each choice has an argument of its own.

    It is a small task with parameterised actions, as in robot soccer (Masson et al. 2016,
    https://arxiv.org/abs/1509.01644). An action is a dict: ``"choice"`` is 0 to move by the vector ``"move"``, or 1 to
    kick the ball by the vector ``"kick"``, both in [-1, 1] in each dimension. Observations are the ways from the player
    to the ball and from the ball to the goal. The ball lies 0.3 to 1 away, in any direction, and the goal at most 1
    from the ball.

    Each step costs 0.1. A move earns the distance by which it brings the player closer to the ball, as in Half Field
    Offense (Hausknecht and Stone 2016, https://arxiv.org/abs/1511.04143). A kick from more than 0.1 away misses. One
    that hits ends the episode and earns 1 minus the distance between ball and goal. A move to the ball and a kick into
    the goal are best, with a return of 0.8 and the first distance to the ball: 1.45 on average.

    :param n_steps: number of steps after which an episode is cut off, >= 1
    :param n_bins: cuts each dimension of the arguments for policies with discrete actions, >= 2: lengths from -1 to 1
        in equal steps. ``None`` does not cut them
    :param factorised: with ``n_bins``, an action is an array: the choice, and one bin for each dimension. Otherwise, it
        is a number: the first ``n_bins ** n_dimensions`` move, and the others kick
    :param n_dimensions: 1 for a line, 2 for a field, and so on
    """

    def __init__(self, n_steps: int = 8, n_bins: int | None = None, *, factorised: bool = False, n_dimensions: int = 2):
        farthest = n_steps + 1
        self.observation_space = spaces.Box(-farthest, farthest, (2 * n_dimensions,), np.float32)
        vector = spaces.Box(-1, 1, (n_dimensions,), np.float32)
        self.action_space: gym.Space = spaces.Dict({"choice": spaces.Discrete(2), "kick": vector, "move": vector})
        self._lengths = None if n_bins is None else np.linspace(-1, 1, n_bins)
        if n_bins is not None:
            self._bins = (2, *[n_bins] * n_dimensions)
            self.action_space = spaces.MultiDiscrete([*self._bins]) if factorised else spaces.Discrete(prod(self._bins))
        self._n_steps, self._n_dimensions = n_steps, n_dimensions

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Place the ball and the goal."""
        super().reset(seed=seed)
        self._to_ball = self.np_random.uniform(0.3, 1) * self._direction()
        self._to_goal = self.np_random.uniform(0, 1) * self._direction()
        self._steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Move or kick."""
        choice, vector = self._read(action)
        self._steps += 1
        reward, hits = -0.1, False
        if choice == MOVE:
            before = np.linalg.norm(self._to_ball)
            self._to_ball -= vector
            reward += float(before - np.linalg.norm(self._to_ball))
        elif hits := self.can_kick:
            self._to_goal -= vector
            reward += float(1 - np.linalg.norm(self._to_goal))
        return self._observation(), reward, bool(hits), not hits and self._steps >= self._n_steps, {}

    @property
    def can_kick(self) -> bool:
        """Whether the player is close enough to the ball to kick it."""
        return bool(np.linalg.norm(self._to_ball) <= REACH)

    def _read(self, action: Any) -> tuple[int, np.ndarray]:
        """Read the choice of an action, and its argument."""
        if self._lengths is None:
            return action["choice"], action["move" if action["choice"] == MOVE else "kick"]
        choice, *bins = action if np.ndim(action) else np.unravel_index(action, self._bins)
        return int(choice), self._lengths[bins]

    def _direction(self) -> np.ndarray:
        vector = self.np_random.normal(size=self._n_dimensions)
        return vector / np.linalg.norm(vector)

    def _observation(self) -> np.ndarray:
        return np.concatenate([self._to_ball, self._to_goal], dtype=np.float32)


class HiddenNumbers(gym.ObservationWrapper[np.ndarray, object, np.ndarray]):
    """Sets some entries of each observation to 0.

    :param env: an environment whose observations are vectors
    :param hidden: indices of the entries
    """

    def __init__(self, env: gym.Env, hidden: Sequence[int]):
        super().__init__(env)
        self._hidden = list(hidden)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Return the observation with the hidden entries set to 0."""
        observation = observation.copy()
        observation[self._hidden] = 0
        return observation


def without_velocities(env_id: str, **arguments: Any) -> gym.Env:
    """Create one of the tasks of ``VELOCITIES`` with the given arguments, but without its velocities."""
    # The time limit of the new task, which users may change, is the only one.
    return HiddenNumbers(gym.make(env_id, max_episode_steps=-1, **arguments), VELOCITIES[env_id])


# Register functions, because gymnasium would warn when SB3's make_vec_env requests images from a class without them.
make_scheduling, make_low_or_high, make_move_or_kick = partial(Scheduling), partial(LowOrHigh), partial(MoveOrKick)
gym.register("Scheduling-v0", f"{__name__}:make_scheduling")
gym.register("LowOrHigh-v0", f"{__name__}:make_low_or_high")
gym.register("MoveOrKick-v0", f"{__name__}:make_move_or_kick")

for _env_id in VELOCITIES:
    _name, _version = _env_id.split("-v")
    # The RL Zoo registers tasks with the same ids.
    if (_new_id := f"{_name}NoVel-v{_version}") not in gym.registry:
        gym.register(
            _new_id,
            f"{__name__}:without_velocities",
            reward_threshold=gym.spec(_env_id).reward_threshold,
            max_episode_steps=gym.spec(_env_id).max_episode_steps,
            kwargs={"env_id": _env_id},
        )
