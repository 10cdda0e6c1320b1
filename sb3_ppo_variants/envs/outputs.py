"""Checks of what environments return, with errors that name the environment, the quantity and what is allowed.

Observations, rewards and flags are refused if NumPy would silently change them when it writes them to the arrays of a
``VecEnv``, and numbers if they are not finite. The bounds of a ``Box`` are not checked. The errors have no step:
``learn`` adds it.
"""

from contextlib import suppress
from copy import copy, deepcopy
from math import isfinite
from traceback import walk_tb
from typing import Any, NoReturn, TypeAlias

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_ppo_variants.errors import EnvOutputError, NonFiniteError
from sb3_ppo_variants.layout import AnySpace

# The largest number in single precision, which rollout buffers have.
LARGEST = float(np.finfo(np.float32).max)
# Maximum number of characters of a value in a message.
MOST_SHOWN = 500
# What the methods of an environment return.
RETURNED = {"step": ("observation", "reward", "terminated", "truncated", "info"), "reset": ("observation", "info")}
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
    """Format any value for a message, shortened if it is too long."""
    try:
        text = repr(value)
    except Exception:  # For example, for an integer of more than 4300 digits.
        return f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


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


def check_actions(actions: np.ndarray) -> None:
    """Check the actions of all environments.

    :raises NonFiniteError: if a number is not finite
    """
    # All other actions are integers.
    if actions.dtype.kind == "f" and not is_finite(actions):
        row = int(np.argmin(np.isfinite(actions).reshape(len(actions), -1).all(axis=1)))
        raise NonFiniteError("action", f"not finite: {actions[row]}", row)


def copy_info(info: Info) -> Info:
    """Copy an info. The copy is as independent as a deep copy, but costs less if the info has no nested objects."""
    if type(info) is not dict:
        return deepcopy(info)
    copied = info.copy()
    for key, value in info.items():
        if type(value) not in IMMUTABLE:
            if type(value) is np.ndarray:
                is_flat = not value.dtype.hasobject
            else:
                is_flat = type(value) is dict and IMMUTABLE.issuperset(map(type, value.values()))
            if not is_flat:
                return deepcopy(info)
            copied[key] = copy(value)
    return copied


def copy_observation(observation: Value) -> Value:
    """Copy an observation, because its environment or another one may write the next one to the same memory."""
    if type(observation) is dict:
        return {key: copy_observation(part) for key, part in observation.items()}
    is_plain = type(observation) is np.ndarray and not observation.dtype.hasobject
    return observation.copy() if is_plain else deepcopy(observation)


class OutputCheck:
    """Checks what environments return, one environment's values or the stacked ones of all.

    Observations of arrays and numbers are checked, also in ``Dict`` and ``Tuple`` spaces; others, such as ``Text``, are
    not, because policies need wrappers for them.

    :param space: the space of the observations of one environment
    :param n_envs: number of environments
    """

    def __init__(self, space: AnySpace, n_envs: int):
        self._space, self._n_envs = space, n_envs

    # One environment

    def step(self, returned: object, env_index: int) -> tuple[Value, float, bool, bool, Info]:
        """Convert the values that ``env.step`` returned to forms that NumPy can write unchanged.

        It does not check whether the numbers of the observation are finite: :meth:`numbers` does, for all at once.

        :raises GuardError: if a value has a wrong type or shape, or the reward is not finite
        """
        if not isinstance(returned, tuple | list) or len(returned) != 5:
            self.refuse_result("step", show(returned), env_index)
        observation, reward, terminated, truncated, info = returned
        return (
            self.observation(observation, env_index),
            self.reward(reward, env_index),
            self.flag("terminated", terminated, env_index),
            self.flag("truncated", truncated, env_index),
            self.info(info, env_index),
        )

    def reset(self, returned: object, env_index: int) -> tuple[Value, Info]:
        """Convert the values that ``env.reset`` returned; see :meth:`step`."""
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            self.refuse_result("reset", show(returned), env_index)
        return self.observation(returned[0], env_index), self.info(returned[1], env_index)

    def refuse_result(self, method: str, found: str, env_index: int) -> NoReturn:
        """:raises EnvOutputError: always, for a method that returned a wrong number of values"""
        refuse_output(f"result of {method}()", found, f"({', '.join(RETURNED[method])})", env_index)

    def observation(self, observation: Value, env_index: int | None) -> Value:
        """Convert an observation to a form that NumPy can write unchanged to an array of the space.

        :param env_index: index of the environment that returned it; ``None`` for the stacked observations of all
        :raises EnvOutputError: if its type, shape or keys do not match the space
        """
        return self._fit(self._space, observation, "observation", env_index)

    def terminal(self, observation: Value, env_index: int) -> Value:
        """Convert the last observation of an episode, and check its numbers.

        :raises GuardError: if it is not in the space, or not finite
        """
        fitted = self._fit(self._space, observation, "terminal observation", env_index)
        self._check_numbers(self._space, fitted, "terminal observation", env_index)
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

    def flag(self, quantity: str, flag: Value, env_index: int) -> bool:
        """Convert a flag to a boolean.

        :raises EnvOutputError: if it is neither true nor false
        """
        if flag is True or flag is False:
            return flag
        array = as_real_array(flag)
        if array is None or array.shape != () or array not in (0, 1):
            refuse_output(quantity, show(flag), "True or False", env_index)
        return bool(array)

    def info(self, info: Value, env_index: int) -> Info:
        """Return an info.

        :raises EnvOutputError: if it is not a dict
        """
        if not isinstance(info, dict):
            refuse_output("info", show(info), "a dict", env_index)
        return info

    def name_failure(self, error: Exception, env_index: int) -> None:
        """Raise an error that names the wrong output at which SB3's ``Monitor`` failed, if it did.

        ``make_vec_env`` puts a ``Monitor`` around each environment, so it meets a wrong output first, and its own error
        tells neither the environment nor the value.

        :param error: the error that the step of the environment raised
        """
        *_, (frame, _) = walk_tb(error.__traceback__)
        if frame.f_code is not Monitor.step.__code__ or not isinstance(error, (TypeError, ValueError, OverflowError)):
            return
        if "reward" not in frame.f_locals:
            self.refuse_result("step", f"something else ({error})", env_index)
        self.step([frame.f_locals[name] for name in RETURNED["step"]], env_index)

    # All environments

    def stacked(self, returned: VecEnvStepReturn) -> VecEnvStepReturn:
        """Copy what a step of all environments returned, with observations in the types of their space if integers.

        :raises GuardError: if a value has a wrong type or shape, or a number is not finite
        """
        observations, rewards, dones, infos = returned
        numbers = self._of_each("reward", rewards, "a real number")
        if not (float(numbers.min()) >= -LARGEST and float(numbers.max()) <= LARGEST):  # Also if one is NaN.
            for i, reward in enumerate(numbers.tolist()):
                self.reward(reward, i)
        flags = self._of_each("done", dones, "True or False")
        if flags.dtype != bool and not np.isin(flags, (0, 1)).all():
            refuse_output("done", show(dones), "an array with True or False for each environment", None)
        ended = np.flatnonzero(flags).tolist()
        are_missing = len(infos) == 0 and not ended
        are_dicts = all(issubclass(cls, dict) for cls in {*map(type, infos)})
        if not are_dicts or not (are_missing or len(infos) == self._n_envs):
            refuse_output("info", show(infos), "a list with a dict for each environment", None)
        for i in ended:
            if infos[i].get("terminal_observation") is not None:
                infos[i]["terminal_observation"] = self.terminal(infos[i]["terminal_observation"], i)
        # Integers would cut off what a value adds to a reward at a time limit.
        kept = numbers.copy() if numbers.dtype.kind == "f" else numbers.astype(np.float32)
        return self.stacked_observations(observations), kept, flags.copy(), infos

    def stacked_observations(self, observations: VecEnvObs) -> VecEnvObs:
        """Copy the observations of all environments; see :meth:`stacked`."""
        fitted: VecEnvObs = copy_observation(self.observation(observations, None))
        self.numbers(fitted)
        return fitted

    def numbers(self, observations: VecEnvObs) -> None:
        """Check the numbers in the observations of all environments.

        :raises NonFiniteError: if a number is NaN or infinite, naming its environment
        :raises EnvOutputError: if an integer is not in the space, naming its environment
        """
        self._check_numbers(self._space, observations, "observation", None)

    def _of_each(self, quantity: str, values: object, what: str) -> np.ndarray:
        array = as_real_array(values)
        if array is None or array.shape != (self._n_envs,):
            refuse_output(quantity, show(values), f"an array with {what} for each environment", None)
        return array

    def _fit(self, space: AnySpace, observation: Value, quantity: str, env_index: int | None) -> Value:
        if isinstance(space, spaces.Dict):
            if not isinstance(observation, dict) or observation.keys() != space.spaces.keys():
                found = f"a dict with the keys {[*observation]}" if isinstance(observation, dict) else show(observation)
                refuse_output(quantity, found, f"a dict with the keys {[*space.spaces]}", env_index)
            return {
                key: self._fit(part, observation[key], f"{quantity}[{key!r}]", env_index) for key, part in space.items()
            }
        if isinstance(space, spaces.Tuple):
            if not isinstance(observation, tuple | list) or len(observation) != len(space):
                refuse_output(quantity, show(observation), f"a tuple of length {len(space)}", env_index)
            parts = enumerate(zip(space, observation, strict=True))
            return tuple([self._fit(part, value, f"{quantity}[{i}]", env_index) for i, (part, value) in parts])
        return self._fit_array(space, observation, quantity, env_index)

    def _fit_array(self, space: AnySpace, observation: Value, quantity: str, env_index: int | None) -> Value:
        if space.shape is None or space.dtype is None or (space.shape == () and type(observation) is int):
            return observation
        shape = space.shape if env_index is not None else (self._n_envs, *space.shape)
        if type(observation) is np.ndarray and observation.dtype == space.dtype and observation.shape == shape:
            return observation
        array = as_real_array(observation)
        if array is None:
            refuse_output(quantity, show(observation), f"a {space.dtype} array of shape {shape}", env_index)
        if array.shape != shape:
            refuse_output(quantity, f"an array of shape {array.shape}", f"of shape {shape}", env_index)
        if space.dtype.kind == "f":
            return array
        with np.errstate(invalid="ignore"):  # Floats may be too large for the type, or NaN.
            fitted = array.astype(space.dtype)
        if not np.array_equal(fitted, array):
            refuse_output(quantity, show(observation), f"representable as {space.dtype}", env_index)
        return fitted

    def _check_numbers(self, space: AnySpace, observation: Value, quantity: str, env_index: int | None) -> None:
        if isinstance(space, spaces.Dict | spaces.Tuple):
            for key, part in space.items() if isinstance(space, spaces.Dict) else enumerate(space):
                self._check_numbers(part, observation[key], f"{quantity}[{key!r}]", env_index)
            return
        if space.shape is None or space.dtype is None:
            return
        array = np.asarray(observation)
        limits = _limits(space)
        if array.dtype.kind == "f":
            with np.errstate(over="ignore"):  # Numbers too large for the space's dtype become infinite.
                array = array.astype(space.dtype, copy=False)
            right = np.True_ if is_finite(array) else np.isfinite(array)
        else:
            right = np.True_ if limits is None else (limits[0] <= array) & (array < limits[1])
        if not right.all():
            if env_index is None:
                env_index = int(np.unravel_index(int(np.argmin(right)), right.shape)[0])
            if limits is None:
                raise NonFiniteError(quantity, f"not finite: {array}", env_index)
            refuse_output(quantity, str(array), f"between {limits[0]} and {limits[1] - 1}", env_index)


def _limits(space: AnySpace) -> tuple[Value, Value] | None:
    """Find the smallest integer of a space, and the largest plus one; ``None`` for a ``Box``."""
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec
    return (0, 2) if isinstance(space, spaces.MultiBinary) else None
