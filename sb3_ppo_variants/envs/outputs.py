"""Checks of what environments return, with errors that name the environment, the quantity and what is allowed.

Observations, rewards and flags are refused if NumPy would silently change them when it writes them to the arrays of a
``VecEnv``, and numbers if they are not finite. The bounds of a ``Box`` are not checked. ``learn`` adds the step to
errors. While a model trains, the innermost vectorised environment steps and resets with these checks, so
``VecNormalize`` never takes in a number that is not finite. A ``DummyVecEnv`` steps as SB3's does, with fewer copies.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from math import isfinite
from traceback import walk_tb
from typing import Any, NoReturn, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_ppo_variants.errors import ArgumentError, EnvOutputError, NonFiniteError
from sb3_ppo_variants.interrupts import HELD
from sb3_ppo_variants.layout import Actions, AnySpace, parts_of

# The largest number in single precision, which rollout buffers have.
LARGEST = float(np.finfo(np.float32).max)
# What a step returns.
RETURNED = ("observation", "reward", "terminated", "truncated", "info")
# The undivided spaces of which SB3's policies and buffers take observations.
OBSERVABLE = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
# Types of rewards that need no conversion.
NUMBERS = frozenset({float, int, np.float64, np.float32})
IMMUTABLE = frozenset({bool, int, float, str, type(None), np.bool_, np.float32, np.float64, np.int32, np.int64})

Info: TypeAlias = dict[str, Any]
# What an environment returns, before it is checked.
Value: TypeAlias = Any


def refuse_output(quantity: str, found: str, allowed: str, env_index: int | None) -> NoReturn:
    """:raises EnvOutputError: always, saying what was found and what is allowed"""
    raise EnvOutputError(quantity, f"{found}, but must be {allowed}", env_index)


def show(value: object) -> str:
    """Format a value for a message, in at most 500 characters."""
    return f"{value!r:.500}"


def as_real_array(value: object) -> np.ndarray | None:
    """Convert a value to an array of real numbers, or return ``None`` if it cannot be converted to one."""
    with suppress(TypeError, ValueError):
        array = np.asarray(value)
        return array if array.dtype.kind in "biuf" else None
    return None


def is_finite(array: np.ndarray) -> bool:
    """Whether no number in a floating-point array of any shape is NaN or infinite.

    The sum of squares shows this for all but the largest numbers, in half the time of a test of each number. Among
    NumPy's products, ``vdot`` does not warn about overflow.
    """
    return isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


def check_finite(array: np.ndarray, quantity: str, env_index: int | None = None) -> None:
    """:raises NonFiniteError: if a number of one environment, or in one of the rows of all, is NaN or infinite"""
    if not is_finite(array):
        wrapper = "gymnasium.wrappers.TransformObservation(env, numpy.nan_to_num, env.observation_space)"
        remedy = f". Replace missing data in each environment, as with {wrapper}" if "observation" in quantity else ""
        row = int(np.argwhere(~np.isfinite(array))[0][0]) if env_index is None else env_index
        raise NonFiniteError(quantity, f"not finite: {array[row] if env_index is None else array}{remedy}", row)


def copy_value(value: Value) -> Value:
    """Copy what an environment may change later, as deeply as SB3 does, whose ``deepcopy`` takes longer."""
    if type(value) is dict:
        return {key: part if type(part) in IMMUTABLE else copy_value(part) for key, part in value.items()}
    return value.copy() if type(value) is np.ndarray and not value.dtype.hasobject else deepcopy(value)


def check_observables(space: object) -> None:
    """Check that observations in a space of gymnasium are arrays or numbers, alone or in one ``Dict`` or ``Tuple``.

    :raises ArgumentError: if they have a part of another space, naming it
    :raises NotImplementedError: if they have a ``Dict`` or ``Tuple`` inside another one, as in SB3
    """
    for path, part in parts_of(space) if isinstance(space, spaces.Space) else ():
        name = "env.observation_space" + "".join(f"[{key!r}]" for key in path)
        if not isinstance(part, OBSERVABLE):
            raise ArgumentError(
                f"{name}={part} is not one of the spaces that policies observe, which are "
                f"{', '.join(cls.__name__ for cls in OBSERVABLE)}: leave it out of a Dict with gymnasium.wrappers."
                "FilterObservation, or make an array of it with FlattenObservation (of Text) or TransformObservation"
            )
        if len(path) > 1:
            raise NotImplementedError(
                f"{name}={part} is in a space inside another one, which no policy observes: wrap the environment in "
                "gymnasium.wrappers.FlattenObservation(env), and use 'MlpPolicy'"
            )


class OutputCheck:
    """Checks what environments return, one environment's values or the stacked ones of all.

    Observations of arrays and numbers are checked, also in a ``Dict``. Policies take no others.

    :param space: the space of the observations of one environment
    """

    def __init__(self, space: AnySpace, n_envs: int):
        self._space, self._n_envs = space, n_envs

    # One environment

    def step(self, returned: object, env_index: int) -> tuple[Value, float, bool, bool, Info]:
        """Convert the values that ``env.step`` returned to forms that NumPy can write unchanged.

        It does not check whether the numbers of the observation are finite: :meth:`numbers` does, for all at once.

        :raises GuardError: if a value has a wrong type or shape, or the reward is not finite
        """
        if not isinstance(returned, tuple | list) or len(returned) != len(RETURNED):
            refuse_output("result of step()", show(returned), f"({', '.join(RETURNED)})", env_index)
        observation, reward, terminated, truncated, info = returned
        if not isinstance(info, dict):
            refuse_output("info", show(info), "a dict", env_index)
        flags = [self._flag(*flag, env_index) for flag in (("terminated", terminated), ("truncated", truncated))]
        return self.observation(observation, env_index), self.reward(reward, env_index), *flags, info

    def reset(self, returned: object, env_index: int) -> tuple[Value, Info]:
        """Convert the values that ``env.reset`` returned; see :meth:`step`."""
        if not isinstance(returned, tuple | list) or len(returned) != 2 or not isinstance(returned[1], dict):
            refuse_output("result of reset()", show(returned), "(observation, info), with a dict", env_index)
        return self.observation(returned[0], env_index), returned[1]

    def observation(self, observation: Value, env_index: int | None, quantity: str = "observation") -> Value:
        """Convert an observation to a form that NumPy can write unchanged to an array of the space.

        :param env_index: index of the environment that returned it; ``None`` for the stacked observations of all
        :raises EnvOutputError: if its type, shape or keys do not match the space
        """
        space = self._space
        if not isinstance(space, spaces.Dict):
            return self._fit(space, observation, quantity, env_index)
        if not isinstance(observation, dict) or observation.keys() != space.spaces.keys():
            refuse_output(quantity, show(observation), f"a dict with the keys {[*space.spaces]}", env_index)
        return {
            key: self._fit(part, observation[key], f"{quantity}[{key!r}]", env_index) for key, part in space.items()
        }

    def _fit(self, space: AnySpace, observation: Value, quantity: str, env_index: int | None) -> Value:
        if space.shape is None or space.dtype is None or (space.shape == () and type(observation) is int):
            return observation
        shape = space.shape if env_index is not None else (self._n_envs, *space.shape)
        if type(observation) is np.ndarray and observation.dtype == space.dtype and observation.shape == shape:
            return observation
        array = as_real_array(observation)
        if array is None or array.shape != shape:
            found = show(observation) if array is None else f"an array of shape {array.shape}"
            refuse_output(quantity, found, f"a {space.dtype} array of shape {shape}", env_index)
        if space.dtype.kind == "f":
            return array
        with np.errstate(invalid="ignore"):  # Floats may be too large for the type, or NaN.
            fitted = array.astype(space.dtype)
        if not np.array_equal(fitted, array):
            refuse_output(quantity, show(observation), f"representable as {space.dtype}", env_index)
        return fitted

    def terminal(self, observation: Value, env_index: int) -> Value:
        """Convert the last observation of an episode, and check its numbers.

        :raises GuardError: if it is not in the space, or not finite
        """
        fitted = self.observation(observation, env_index, "terminal observation")
        self.numbers(fitted, env_index, "terminal observation")
        return fitted

    def reward(self, reward: Value, env_index: int) -> Value:
        """Convert a reward to a float.

        :raises GuardError: if it is not a number, or not finite in single precision
        """
        if type(reward) not in NUMBERS:
            array = as_real_array(reward)
            if array is None or array.shape != ():
                refuse_output("reward", show(reward), "a real number", env_index)
            reward = float(array)
        if not -LARGEST <= reward <= LARGEST:
            raise NonFiniteError("reward", f"not finite: {show(reward)}", env_index)
        return reward

    def _flag(self, quantity: str, flag: Value, env_index: int) -> bool:
        if flag is True or flag is False:
            return flag
        array = as_real_array(flag)
        if array is None or array.shape != () or array not in (0, 1):
            refuse_output(quantity, show(flag), "True or False", env_index)
        return bool(array)

    def name_failure(self, error: Exception, env_index: int) -> None:
        """Raise an error that names the wrong output at which SB3's ``Monitor`` failed, if a step raised that error.

        The one that ``make_vec_env`` puts around each environment tells neither the environment nor the value.
        """
        *_, (frame, _) = walk_tb(error.__traceback__)
        by_output = isinstance(error, (TypeError, ValueError, IndexError, OverflowError))
        if frame.f_code is Monitor.step.__code__ and by_output:
            seen = [frame.f_locals[name] for name in RETURNED if name in frame.f_locals]
            self.step(seen or error, env_index)

    # All environments

    def stacked(self, returned: VecEnvStepReturn) -> VecEnvStepReturn:
        """Copy what a step of all environments returned, with observations in the types of their space if integers.

        :raises GuardError: if a value has a wrong type or shape, or a number is not finite
        """
        observations, rewards, dones, infos = returned
        numbers = self._of_each("reward", rewards, "a real number")
        if not np.vdot(numbers, numbers) <= LARGEST:  # One may be NaN or too large.
            for i, reward in enumerate(numbers.tolist()):
                self.reward(reward, i)
        flags = self._of_each("done", dones, "True or False")
        if flags.dtype != bool and not np.isin(flags, (0, 1)).all():
            refuse_output("done", show(dones), "an array with True or False for each environment", None)
        # SB3's own tests have an environment without infos.
        are_complete = len(infos) == self._n_envs or not (len(infos) or flags.any())
        if not are_complete or not all(issubclass(cls, dict) for cls in {*map(type, infos)}):
            refuse_output("info", show(infos), "a list with a dict for each environment", None)
        for i in np.flatnonzero(flags).tolist():
            if infos[i].get("terminal_observation") is not None:
                infos[i]["terminal_observation"] = self.terminal(infos[i]["terminal_observation"], i)
        # Integers would cut off what a value adds to a reward at a time limit.
        kept = numbers.copy() if numbers.dtype.kind == "f" else numbers.astype(np.float32)
        return self.stacked_observations(observations), kept, flags.copy(), infos

    def _of_each(self, quantity: str, values: object, what: str) -> np.ndarray:
        array = values if type(values) is np.ndarray and values.dtype.kind in "bf" else as_real_array(values)
        if array is None or array.shape != (self._n_envs,):
            refuse_output(quantity, show(values), f"an array with {what} for each environment", None)
        return array

    def stacked_observations(self, observations: VecEnvObs) -> VecEnvObs:
        """Copy the observations of all environments; see :meth:`stacked`."""
        fitted: VecEnvObs = copy_value(self.observation(observations, None))
        self.numbers(fitted)
        return fitted

    def numbers(self, observations: Value, env_index: int | None = None, quantity: str = "observation") -> None:
        """Check the numbers in the observations of all environments, or of one.

        :raises NonFiniteError: if a number is NaN or infinite, naming its environment
        :raises EnvOutputError: if an integer is not in the space, naming its environment
        """
        if isinstance(self._space, spaces.Dict):
            for key, part in self._space.items():
                _check_numbers(part, observations[key], f"{quantity}[{key!r}]", env_index)
        else:
            _check_numbers(self._space, observations, quantity, env_index)


def _check_numbers(space: AnySpace, observation: Value, quantity: str, env_index: int | None) -> None:
    if space.shape is None or space.dtype is None:
        return
    array = np.asarray(observation)
    if array.dtype.kind == "f":
        if array.dtype != space.dtype:
            with np.errstate(over="ignore"):  # Numbers too large for the space's dtype become infinite.
                array = array.astype(space.dtype)
        check_finite(array, quantity, env_index)
    elif limits := _limits(space):
        right = (limits[0] <= array) & (array < limits[1])
        if not right.all():
            row = int(np.argwhere(~right)[0][0]) if env_index is None else env_index
            refuse_output(quantity, str(array), f"between {limits[0]} and {limits[1] - 1}", row)


def _limits(space: AnySpace) -> tuple[Value, Value] | None:
    """Find the smallest integer of a space, and the largest plus one; ``None`` for a ``Box``."""
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec
    return (0, 2) if isinstance(space, spaces.MultiBinary) else None


def innermost(env: VecEnv) -> VecEnv:
    """Return the vectorised environment inside all wrappers."""
    while isinstance(env, VecEnvWrapper) and isinstance(env.venv, VecEnv):  # Some wrap what is no VecEnv.
        env = env.venv
    return env


@contextmanager
def checked_outputs(env: VecEnv) -> Iterator[None]:
    """Check what the environments inside all wrappers return while the context is active.

    :raises GuardError: if a value has a wrong type, shape or range, or is not finite, naming the environment
    """
    env, names = innermost(env), ("step_async", "step_wait", "reset")
    attributes = vars(env)
    for name in names:  # A Ctrl-C at the end of another call may have left them.
        if isinstance(getattr(attributes.get(name), "__self__", None), DummySteps | StackedSteps):
            del attributes[name]
    before = {name: attributes[name] for name in names if name in attributes}
    try:
        if not getattr(type(env), "checks_outputs", False):
            steps = DummySteps(env) if type(env) is DummyVecEnv and not before else StackedSteps(env)
            attributes.update({name: getattr(steps, name) for name in names if hasattr(steps, name)})
        yield
    finally:
        for name in names:
            attributes.pop(name, None)
        attributes.update(before)


class DummySteps:
    """The steps and resets of a ``DummyVecEnv``, with checks.

    :param each: iterates over the environments and their indices
    """

    def __init__(self, env: DummyVecEnv, each: Callable[[], Iterable[tuple[int, gym.Env]]] | None = None):
        self._env, self._each = env, each or partial(enumerate, env.envs)
        space, arrays = env.observation_space, env.buf_obs
        self._check = OutputCheck(space, env.num_envs)
        self._rows = next(iter(arrays.values())) if None in arrays else PartRows(arrays)
        self._number = int if isinstance(space, spaces.Discrete) else None
        # Whether integers are in the space is checked in turn, as are the parts of a dict.
        is_float = isinstance(self._rows, np.ndarray) and self._rows.dtype.kind == "f"
        self._are_finite: Callable[..., bool] = partial(is_finite, self._rows) if is_float else bool  # type: ignore[arg-type]

    def advance(self) -> None:
        """Step each environment, and reset it if its episode ended. The results are in the buffers of the env."""
        env, rows, check, actions = self._env, self._rows, self._check, self._env.actions
        rewards, dones, infos = env.buf_rews, env.buf_dones, env.buf_infos
        # Local variables, because this runs at every step and looking up others takes longer.
        array, dtype, shape, number = np.ndarray, env.observation_space.dtype, env.observation_space.shape, self._number
        low, high, numbers = -LARGEST, LARGEST, NUMBERS
        for i, single in self._each():
            try:
                returned = single.step(actions[i])
            except Exception as error:
                check.name_failure(error, i)
                raise
            try:
                observation, reward, terminated, truncated, info = returned
            except (TypeError, ValueError):
                check.step(returned, i)
                raise
            # Values of the usual types need no conversion. Recognising them here saves calls.
            kind = type(observation)
            is_usual = (
                ((kind is array and observation.dtype is dtype and observation.shape == shape) or kind is number)
                and (type(reward) is float or type(reward) in numbers)
                and low <= reward <= high  # type: ignore[operator]
                and (terminated is False or terminated is True)
                and (truncated is False or truncated is True)
                and type(info) is dict
            )
            if not is_usual:
                observation, reward, terminated, truncated, info = check.step(returned, i)
            done = terminated or truncated
            rewards[i], dones[i], infos[i] = reward, done, info
            info["TimeLimit.truncated"] = truncated and not terminated
            if done:
                if is_usual:
                    rows[i] = observation
                if not (is_usual and self._are_finite()):
                    check.terminal(observation, i)
                info["terminal_observation"] = copy_value(observation)
                observation, env.reset_infos[i] = check.reset(single.reset(), i)
            rows[i] = observation
        if not self._are_finite():
            check.numbers(rows)

    def step_wait(self) -> VecEnvStepReturn:
        """Step each environment, and copy the results."""
        self.advance()
        env = self._env
        # Most infos have nothing but TimeLimit.truncated.
        infos = [info.copy() if len(info) == 1 else copy_value(info) for info in env.buf_infos]
        return self._rows.copy(), env.buf_rews.copy(), env.buf_dones.copy(), infos

    def reset(self) -> VecEnvObs:
        """Reset each environment."""
        env, check = self._env, self._check
        for i, single in self._each():
            options = {"options": env._options[i]} if env._options[i] else {}
            self._rows[i], env.reset_infos[i] = check.reset(single.reset(seed=env._seeds[i], **options), i)
        env._reset_seeds()
        env._reset_options()
        check.numbers(self._rows)
        return self._rows.copy()


class PartRows(dict[str, np.ndarray]):
    """The arrays of the parts of observations, of which the same row is written at once."""

    def __setitem__(self, row: Value, observation: Value) -> None:
        for key, array in self.items():
            array[row] = observation[key]

    def copy(self) -> dict[str, np.ndarray]:
        """Copy all arrays."""
        return {key: array.copy() for key, array in self.items()}


class StackedSteps:
    """The steps and resets of an environment that stacks its outputs itself, with checks of the stacks.

    A Ctrl-C waits for the end of a step: a worker of SB3's would give its answer to a later one.
    """

    def __init__(self, env: VecEnv):
        self._attributes = vars(env)
        self._step_async, self._step_wait, self._reset = env.step_async, env.step_wait, env.reset
        self._check = OutputCheck(env.observation_space, env.num_envs)
        self._actions: Actions = None

    def step_async(self, actions: Actions) -> None:
        """Store the actions, also where the loop sees that somebody else takes a step."""
        self._actions = self._attributes["taken_actions"] = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Take the step."""
        with HELD:
            self._step_async(self._actions)
            returned = self._step_wait()
        return self._check.stacked(returned)

    def reset(self) -> VecEnvObs:
        """Reset all environments."""
        with HELD:
            observations = self._reset()
        return self._check.stacked_observations(observations)
