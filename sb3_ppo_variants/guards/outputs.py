"""Checks of the values that an environment takes and returns, and the errors and warnings that name the wrong ones.

Observations, rewards, flags and infos are refused if NumPy would silently change them when it writes them to the arrays
of a ``VecEnv``. The bounds of a ``Box`` are not checked.
"""

import ast
import inspect
import textwrap
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy, deepcopy
from functools import partial
from math import isfinite
from numbers import Real
from traceback import walk_tb
from types import CodeType
from typing import Any, NoReturn, TypeAlias, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_ppo_variants.errors import EnvOutputError, GuardError, NonFiniteError

# From here on, the square of a return overflows single precision, and so does the value loss.
HUGE_REWARD = float(np.finfo(np.float32).max) ** 0.5
# Maximum number of characters of a value in a message.
MOST_SHOWN = 500

# What the methods of an environment return.
RETURNED = {"step": ("observation", "reward", "terminated", "truncated", "info"), "reset": ("observation", "info")}
# Types that need no conversion.
INTEGERS = frozenset({int, np.int64})
NUMBERS = frozenset({float, int, np.float64, np.float32})
FLAGS = frozenset({bool, np.bool_})
IMMUTABLE = frozenset({bool, int, float, str, type(None), np.bool_, np.float32, np.float64, np.int32, np.int64})

# Errors that Python and NumPy raise for values of a wrong type.
OVER_TYPES = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError)

Info: TypeAlias = dict[str, Any]
# What an environment returns, before it is checked.
Value: TypeAlias = Any
# Creates a function that tells whether an array is finite whenever it is called.
FiniteTest: TypeAlias = Callable[[np.ndarray], Callable[[], bool]]


def is_finite(array: np.ndarray) -> bool:
    """Whether no number in a floating-point array of any shape is NaN or infinite.

    The sum of squares shows this for all but the largest numbers, in half the time of a test of each number. Among
    NumPy's products, ``vdot`` does not warn about overflow.
    """
    return isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


def finite_test(array: np.ndarray) -> Callable[[], bool]:
    """Make a function that applies :func:`is_finite` to a contiguous array whenever it is called."""
    return partial(is_finite, array)


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


class Watch:
    """Raises errors and warnings that name the environment and the step of the model.

    :param model: the model; ``None`` in a worker process, which does not know the step. The process of the model checks
        the sizes of rewards then
    """

    def __init__(self, model: BaseAlgorithm | None = None):
        self._model = model
        self._warned: set[str] = set()

    @property
    def _step(self) -> int | None:
        return None if self._model is None else self._model.num_timesteps

    def refuse(self, quantity: str, found: str, allowed: str, env_index: int | None) -> NoReturn:
        """:raises EnvOutputError: always, saying what was found and what is allowed"""
        raise EnvOutputError(quantity, f"{found}, but must be {allowed}", env_index, self._step)

    def refuse_number(self, quantity: str, value: object, env_index: int | None) -> NoReturn:
        """:raises NonFiniteError: always"""
        raise NonFiniteError(quantity, f"not finite: {value}", env_index, self._step)

    def note_reward(self, reward: float, env_index: int) -> None:
        """Warn once per run if a reward is huge.

        :raises NonFiniteError: if the reward is NaN, or infinite in single precision
        """
        if self._model is None:
            return
        with np.errstate(over="ignore"):
            size = abs(float(np.float32(reward)))
        if not size < np.inf:
            self.refuse_number("reward", reward, env_index)
        if size >= HUGE_REWARD:
            self._warn(
                "reward",
                f"The reward of environment {env_index} at step {self._step} is {reward:g}. Rewards of "
                f"{HUGE_REWARD:.2g} or more overflow the value loss in single precision: scale or normalize them.",
            )

    def note_lost_end(self, env_index: int) -> None:
        """Warn once per run that an environment may overwrite the last observation of an episode."""
        self._warn(
            "end",
            f"In environment {env_index} at step {self._step}, a time limit ended an episode whose last "
            "observation equals the first one of the next episode. If the environment writes all observations to the "
            "same array, the last one is lost, and advantages are wrong: return a copy of it, or use DummyVecEnv or "
            "SafeSubprocVecEnv, which copy it.",
        )

    def _warn(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(f"{message} This warning is shown once per run.")


def check_actions(actions: np.ndarray, watch: Watch) -> None:
    """Check the actions of all environments.

    :raises NonFiniteError: if a number is not finite
    """
    # All other actions are integers.
    if actions.dtype.kind == "f" and not is_finite(actions):
        row = int(np.argmin(np.isfinite(actions).reshape(len(actions), -1).all(axis=1)))
        watch.refuse_number("action", actions[row], row)


class ArrayCheck:
    """Checks observations that are arrays or numbers, and accepts all others; see :func:`observation_check`.

    :param part: how the observation is taken from the whole one, for messages, such as ``"['key']"``
    """

    def __init__(self, space: spaces.Space[object], watch: Watch, n_envs: int, part: str = ""):
        self._watch = watch
        self._part = part
        self._is_checked = space.shape is not None and space.dtype is not None
        self._shape = (n_envs, *(space.shape or ())) if n_envs else space.shape
        self._dtype = np.dtype(space.dtype)
        # Discrete observations are plain numbers.
        self._scalars = INTEGERS if self._shape == () else frozenset()
        self._limits = None if self._dtype.kind == "f" else _limits(space)
        if self._limits is not None:
            self._lowest, self._highest = int(np.max(self._limits[0])), int(np.min(self._limits[1]))

    def fit(self, observation: object, quantity: str, env_index: int | None) -> Value:
        """Convert an observation to a form that NumPy can write unchanged to an array of the space.

        :param env_index: index of the environment that returned it; ``None`` for the stacked observations of all
        :raises EnvOutputError: if its type, shape or keys do not match the space
        """
        if type(observation) is np.ndarray and observation.dtype is self._dtype and observation.shape == self._shape:
            return observation
        if type(observation) in self._scalars or not self._is_checked:
            return observation
        array = as_real_array(observation)
        quantity += self._part
        if array is None:
            self._watch.refuse(quantity, show(observation), f"a {self._dtype} array of shape {self._shape}", env_index)
        if array.shape != self._shape:
            self._watch.refuse(quantity, f"an array of shape {array.shape}", f"of shape {self._shape}", env_index)
        if self._dtype.kind == "f":
            return array
        with np.errstate(invalid="ignore"):  # Floats may be too large for the type, or NaN.
            fitted = array.astype(self._dtype)
        if not np.array_equal(fitted, array):
            self._watch.refuse(quantity, show(observation), f"representable as {self._dtype}", env_index)
        return fitted

    def check_numbers(self, observation: object, quantity: str, env_index: int | None) -> None:
        """Check the numbers in an observation that :meth:`fit` returned.

        :raises NonFiniteError: if a number is NaN or infinite
        :raises EnvOutputError: if an integer is not in the space
        """
        if not self._is_checked:
            return
        array = np.asarray(observation)
        if array.dtype.kind == "f":
            if array.dtype != self._dtype:
                with np.errstate(over="ignore"):  # Numbers too large for the space's dtype become infinite.
                    array = array.astype(self._dtype)
            if not is_finite(array):
                self._name_wrong(np.isfinite(array), array, quantity, env_index)
        elif self._limits is not None:
            numbers = array.ravel().tolist()  # For few numbers, comparing lists is faster than arrays.
            if min(numbers) < self._lowest or max(numbers) >= self._highest:
                low, high = self._limits
                self._name_wrong(np.asarray((low <= array) & (array < high)), array, quantity, env_index)

    def _name_wrong(self, right: np.ndarray, array: np.ndarray, quantity: str, env_index: int | None) -> None:
        """:raises GuardError: for the first wrong number, if there is one"""
        if right.all():
            return
        quantity += self._part
        where = np.unravel_index(int(np.argmin(right)), right.shape)
        if env_index is None:
            env_index = int(where[0])
        if self._limits is None:
            self._watch.refuse_number(quantity, array, env_index)
        low, high = self._limits
        self._watch.refuse(quantity, str(array), f"between {low} and {high - 1}", env_index)


class PartsCheck:
    """Checks observations of a ``Dict`` or ``Tuple`` space; see :func:`observation_check`."""

    def __init__(self, space: spaces.Dict | spaces.Tuple[object], watch: Watch, n_envs: int):
        self._watch = watch
        self._is_dict = isinstance(space, spaces.Dict)
        parts = dict(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else space.spaces
        self._checks = {key: ArrayCheck(part, watch, n_envs, f"[{key!r}]") for key, part in parts.items()}

    def fit(self, observation: Value, quantity: str, env_index: int | None) -> Value:
        """See :class:`ArrayCheck`."""
        if self._is_dict:
            if not isinstance(observation, dict) or observation.keys() != self._checks.keys():
                found = f"a dict with the keys {[*observation]}" if isinstance(observation, dict) else show(observation)
                self._watch.refuse(quantity, found, f"a dict with the keys {[*self._checks]}", env_index)
        elif not isinstance(observation, tuple | list) or len(observation) != len(self._checks):
            self._watch.refuse(quantity, show(observation), f"a tuple of length {len(self._checks)}", env_index)
        fitted = {key: check.fit(observation[key], quantity, env_index) for key, check in self._checks.items()}
        return fitted if self._is_dict else tuple(fitted.values())

    def check_numbers(self, observation: Value, quantity: str, env_index: int | None) -> None:
        """See :class:`ArrayCheck`."""
        for key, check in self._checks.items():
            check.check_numbers(observation[key], quantity, env_index)


def observation_check(space: spaces.Space[object], watch: Watch, n_envs: int = 0) -> ArrayCheck | PartsCheck:
    """Create the check of a space of arrays or numbers, or of a ``Dict`` or ``Tuple`` of such spaces.

    Observations of other spaces, such as ``Text`` and spaces that are nested more deeply, are not checked. Policies
    need wrappers for them.

    :param n_envs: number of environments whose observations are stacked; 0 for unstacked observations of one
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return PartsCheck(space, watch, n_envs)
    return ArrayCheck(space, watch, n_envs)


def _limits(space: spaces.Space[object]) -> tuple[Value, Value] | None:
    """Find the smallest integer of a space, and the largest plus one; ``None`` for a ``Box``."""
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec
    return (0, 2) if isinstance(space, spaces.MultiBinary) else None


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


class EnvCheck:
    """Checks what a single environment returns, except whether observations are finite: all at once is faster."""

    def __init__(self, observation_space: spaces.Space[object], env_index: int, watch: Watch):
        self.env_index = env_index
        self.watch = watch
        self._observation = observation_check(observation_space, watch)

    def step(self, returned: object) -> tuple[Value, Value, Value, Value, Info]:
        """Convert the values that ``env.step`` returned to forms that NumPy can write unchanged.

        :raises GuardError: if a value has a wrong type or shape, or the reward is not finite
        """
        observation, reward, terminated, truncated, info = self._values("step", returned)
        observation = self._observation.fit(observation, "observation", self.env_index)
        if type(reward) not in NUMBERS or not -HUGE_REWARD < reward < HUGE_REWARD:
            reward = self.fit("reward", reward)
        if type(terminated) not in FLAGS:
            terminated = self.fit("terminated", terminated)
        if type(truncated) not in FLAGS:
            truncated = self.fit("truncated", truncated)
        return observation, reward, terminated, truncated, self.fit("info", info)

    def reset(self, returned: object) -> tuple[Value, Info]:
        """Convert the values that ``env.reset`` returned; see :meth:`step`."""
        observation, info = self._values("reset", returned)
        return self._observation.fit(observation, "observation", self.env_index), self.fit("info", info)

    def fit(self, part: str, value: Value) -> Value:
        """Convert one of the values that ``env.step`` returned; see :meth:`step`.

        :param part: its name in ``RETURNED``, or ``"done"``
        """
        if part == "info":
            return value if isinstance(value, dict) else self._refuse(part, value, "a dict")
        if part == "observation":
            return self._observation.fit(value, part, self.env_index)
        number = _scalar(value)
        if part != "reward":
            return bool(number) if _is_real(number) and number in (0, 1) else self._refuse(part, value, "True or False")
        if not _is_real(number):
            self._refuse(part, value, "a real number")
        try:
            reward = float(number)
        except OverflowError:
            self._refuse(part, value, "a number that a float can hold")
        self.watch.note_reward(reward, self.env_index)
        return reward

    def refuse_count(self, method: str, found: str) -> NoReturn:
        """:raises EnvOutputError: always, for a ``step`` or ``reset`` that returned a wrong number of values"""
        self.watch.refuse(f"result of {method}()", found, f"({', '.join(RETURNED[method])})", self.env_index)

    def terminal(self, observation: object) -> Value:
        """Check the last observation of an episode, and convert it as :meth:`step` does.

        :raises GuardError: if it is not in the space, or not finite
        """
        fitted = self._observation.fit(observation, "terminal observation", self.env_index)
        self._observation.check_numbers(fitted, "terminal observation", self.env_index)
        return fitted

    def _values(self, method: str, returned: object) -> tuple[Value, ...] | list[Value]:
        if isinstance(returned, (tuple, list)) and len(returned) == len(RETURNED[method]):
            return returned
        self.refuse_count(method, show(returned))

    def _refuse(self, quantity: str, found: object, allowed: str) -> NoReturn:
        self.watch.refuse(quantity, show(found), allowed, self.env_index)


def _is_real(value: object) -> TypeGuard[Real]:
    # NumPy's timedelta64 is a subclass of its integers.
    return isinstance(value, Real) and not isinstance(value, np.timedelta64)


def _scalar(value: object) -> object:
    """Return a Python number for a NumPy scalar, or an array or tensor without dimensions; else the value itself."""
    if isinstance(value, str | bytes | np.timedelta64) or getattr(value, "shape", None) != ():
        return value
    return np.asarray(value).item()


def check_episode(info: Mapping[str, object], env_index: int, watch: Watch) -> None:
    """Check the statistics in the info of the last step of an episode, whose means SB3 logs.

    :raises EnvOutputError: if one is not a number, naming its key
    """
    episode, is_success = info.get("episode"), info.get("is_success")
    statistics = {} if is_success is None else {'info["is_success"]': is_success}
    if episode is not None:
        if not isinstance(episode, Mapping) or not {"r", "l"} <= episode.keys():
            watch.refuse('info["episode"]', show(episode), "a dict with the keys 'r' and 'l'", env_index)
        statistics |= {f'info["episode"][{key!r}]': episode[key] for key in ("r", "l")}
    for name, value in statistics.items():
        if as_real_array(value) is None:
            watch.refuse(name, show(value), "a number", env_index)


def call_env(check: EnvCheck, method: Callable[..., object], *args: object, **kwargs: object) -> object:
    """Call ``step`` or ``reset`` of an environment, and name the wrong output if a wrapper fails because of one."""
    try:
        return method(*args, **kwargs)
    except Exception as error:
        blame_output(error, check)
        raise


def blame_output(error: Exception, check: EnvCheck) -> None:
    """Raise an error that names the wrong output, if a wrapper failed after it received one.

    Monitor, for example, calls float() on the reward, and its error names neither the environment nor the value. The
    output of the environment is read from the frame of the wrapper that failed, so steps without an error cost nothing.

    :param check: the check of the outermost wrapper
    :raises EnvOutputError: if the wrapper received a value of a wrong type or shape
    :raises NonFiniteError: if the reward is not finite
    """
    if isinstance(error, GuardError) or not isinstance(error, OVER_TYPES):
        return
    frames = [*walk_tb(error.__traceback__)]
    inside = [frame.f_locals["self"] for frame, _ in frames if isinstance(frame.f_locals.get("self"), gym.Env)]
    if not inside or not isinstance(wrapper := inside[-1], gym.Wrapper):
        return  # The environment itself failed.
    calls = [each for each in frames if each[0].f_locals.get("self") is wrapper and each[0].f_code.co_name in RETURNED]
    if not calls:
        return
    frame, line = calls[-1]
    names, lines = _received(frame.f_code, wrapper)
    check = EnvCheck(wrapper.env.observation_space, check.env_index, check.watch)
    try:
        if frame is frames[-1][0] and line in lines and "unpack" in str(error):
            check.refuse_count(frame.f_code.co_name, f"something else ({error})")
        for name, part in names.items():
            if name in frame.f_locals:
                check.fit(part, frame.f_locals[name])
    except GuardError as named:
        raise named from error


def _received(code: CodeType, wrapper: gym.Wrapper) -> tuple[dict[str, str], set[int]]:
    """Find the assignments of the form ``obs, reward, ... = self.env.step(action)`` in a wrapper's method.

    :return: the parts of the output by the local variables that certainly hold them, and the lines of the file that
        assign them. Variables that are assigned anything else too are left out: the wrapper may have changed them
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, SyntaxError):  # There is no source, or it is not that of a whole function.
        return {}, set()
    classes = type(wrapper).__mro__
    defining = [cls for cls in classes[: classes.index(gym.Wrapper)] if code.co_name in vars(cls)]
    # In the first class to define the method, super() is gym.Wrapper, which passes on what the environment returns.
    inner = ("self.env", "super()") if len(defining) == 1 else ("self.env",)
    parts: dict[str, set[str]] = defaultdict(set)
    lines: set[int] = set()
    received: set[ast.expr] = set()
    for node in ast.walk(tree):  # It visits an assignment before the names in it.
        match node:
            case ast.Assign([ast.Tuple(targets)], ast.Call(ast.Attribute(env, method))) if (
                len(targets) == len(RETURNED.get(method, ())) and ast.unparse(env) in inner
            ):
                lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
                received.update(targets)
                for target, part in zip(targets, RETURNED[method], strict=True):
                    parts[ast.unparse(target)].add(part)
            case ast.Name(name, ast.Store()) if node not in received:
                parts[name].add("")
    names = {name: min(each) for name, each in parts.items() if len(each) == 1 and "" not in each}
    return names, {line + code.co_firstlineno - 1 for line in lines}
