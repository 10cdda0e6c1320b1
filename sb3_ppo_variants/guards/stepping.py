"""Steps of environments that check what a model and its environments exchange during training."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, TypeGuard, TypeVar

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_ppo_variants.errors import EnvOutputError
from sb3_ppo_variants.guards.capabilities import inner
from sb3_ppo_variants.guards.outputs import (
    HUGE_REWARD,
    NUMBERS,
    EnvCheck,
    FiniteTest,
    Watch,
    as_real_array,
    blame_output,
    call_env,
    check_actions,
    copy_info,
    copy_observation,
    finite_test,
    is_finite,
    observation_check,
    show,
)
from sb3_ppo_variants.guards.workers import check_answers, exchange_pipes
from sb3_ppo_variants.layout import Actions, parts_of

Returned = TypeVar("Returned")
# The methods that DummySteps reimplements. An environment that overrides one of them steps by itself.
DUMMY_METHODS = ("step", "step_wait", "reset", "_save_obs", "_obs_from_buf")
# The methods of a wrapper that take actions.
TAKE_ACTIONS = ("step", "step_async")
# Errors that NumPy and SB3 raise for outputs that cannot be stacked, and errors of the checks of stacked outputs.
STACKING = (TypeError, ValueError, KeyError, AssertionError)


@contextmanager
def guard_envs(model: OnPolicyAlgorithm, test: FiniteTest = finite_test) -> Iterator[None]:
    """Check what a model's environments receive and return, below all wrappers, while the context is active.

    A stand-in replaces the environment that is innermost, so that it and its wrappers stay unchanged.

    :param test: creates the tests whether observations are finite
    """
    owners = _owners(model)
    owner, name = owners[-1]
    present = getattr(owner, name)
    # If a callback trains a second model on the environment, the stand-in of the first one is still in place.
    env = original(present)
    watch = Watch(model)
    steps = DummySteps(env, watch, test) if can_step(env) else CheckedStacks(env, watch)
    stand_in = StandIn(env, steps)
    # A wrapper that takes actions in its own way may pass on others. Actors have checked those that they drew.
    if not all(_are_those_of(VecEnvWrapper, wrapper, TAKE_ACTIONS) for wrapper, _ in owners[1:]):
        for method in TAKE_ACTIONS:
            vars(stand_in)[method] = _checking_actions(vars(stand_in)[method], watch)
    setattr(owner, name, stand_in)
    try:
        with exchange_pipes(env, model):
            yield
    except EnvOutputError as error:
        if error.step is None:  # The error comes from a worker process.
            error.step = model.num_timesteps
        raise
    finally:
        # A callback may have put another environment there, or new wrappers around the stand-in.
        for owner, name in (owners[-1], _owners(model)[-1]):
            if getattr(owner, name) is stand_in:
                setattr(owner, name, present)


def _owners(model: OnPolicyAlgorithm) -> list[tuple[OnPolicyAlgorithm | VecEnv, str]]:
    """List the model and the wrappers of its environment, each with the name of the attribute that is the next.

    A wrapper around something that is not a ``VecEnv`` is no wrapper, but the environment.
    """
    owners: list[tuple[OnPolicyAlgorithm | VecEnv, str]] = [(model, "env")]
    env = model.env
    while env is not None and (below := inner(env)) is not None:
        owners.append((env, "venv"))
        env = below
    return owners


def _checking_actions(take: Callable[[Actions], Returned], watch: Watch) -> Callable[[Actions], Returned]:
    """Make a method that takes actions in any form, as wrappers may pass them on, if their numbers are finite."""

    def checked(actions: Actions) -> Returned:
        rows = as_real_array(actions)
        if rows is not None:
            check_actions(rows, watch)
        elif isinstance(actions, Sequence):
            for i, action in enumerate(actions):
                numbers = [as_real_array(part) for _, part in parts_of(action)]
                if not all(part is None or is_finite(part) for part in numbers):
                    watch.refuse_number("action", action, i)
        return take(actions)

    return checked


def check_seen(model: OnPolicyAlgorithm) -> None:
    """Check the last observations that the policy saw, after all wrappers.

    :raises NonFiniteError: if a number is not finite
    """
    if model._last_obs is not None:
        check = observation_check(model.observation_space, Watch(model), model.n_envs)
        check.check_numbers(model._last_obs, "observation", None)


class StandIn:
    """A vectorised environment that steps and resets differently from the environment it stands in for.

    All other attributes are those of that environment, and are set on it. Copying or pickling a stand-in copies or
    pickles that environment, and ``isinstance`` finds it to be of the same classes. A stand-in is not a
    ``VecEnvWrapper``, because SB3 expects the environments for training and evaluation to have the same wrappers.
    """

    _inner: VecEnv
    __class__ = property(attrgetter("_inner.__class__"))
    num_envs = property(attrgetter("_inner.num_envs"))  # Read at every step, and faster than __getattr__().

    def __init__(self, env: VecEnv, steps: "VecEnv | DummySteps | CheckedStacks"):
        own = {"step": steps.step, "step_async": steps.step_async, "step_wait": steps.step_wait, "reset": steps.reset}
        self.__dict__.update(own, _inner=env)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._inner, name, value)

    def __reduce__(self) -> tuple[Callable[[VecEnv], VecEnv], tuple[VecEnv]]:
        return original, (self._inner,)


def original(env: VecEnv) -> VecEnv:
    """Find the environment behind a stand-in; any other environment is returned as it is."""
    return env._inner if isinstance(env, StandIn) else env


def can_step(env: VecEnv) -> TypeGuard[DummyVecEnv]:
    """Whether an environment is a ``DummyVecEnv`` that steps and resets as SB3's does, without tuples."""
    is_plain = isinstance(env, DummyVecEnv) and not isinstance(env.observation_space, spaces.Tuple)
    return is_plain and _are_those_of(DummyVecEnv, env, DUMMY_METHODS)


def _are_those_of(cls: type, env: object, methods: Sequence[str]) -> bool:
    return all(getattr(getattr(env, name), "__func__", None) is getattr(cls, name) for name in methods)


class DummySteps:
    """The steps and resets of a ``DummyVecEnv``, with checks.

    They raise a ``GuardError`` for values that are not allowed. The results are as independent of the environments as
    SB3's deep copies, which arrays and an ``info`` of numbers, strings, arrays and dicts of these do not need.
    """

    def __init__(self, env: DummyVecEnv, watch: Watch, test: FiniteTest = finite_test):
        self._env = env
        self.step_async = env.step_async
        space, arrays = env.observation_space, env.buf_obs
        self._rows = DictRows(arrays) if isinstance(space, spaces.Dict) else next(iter(arrays.values()))
        # The type and length of observations that are vectors; no observation has a length of -1.
        self._dtype = space.dtype
        self._length = space.shape[0] if space.shape is not None and len(space.shape) == 1 else -1
        self._checks = [EnvCheck(space, i, watch) for i in range(env.num_envs)]
        self._stacked = observation_check(space, watch, env.num_envs)
        tests = [test(array) for array in arrays.values() if array.dtype.kind == "f"]
        if len(tests) < len(arrays):
            self._are_finite: Callable[[], bool] = lambda: False  # Whether integers are in the space is tested in turn.
        else:
            self._are_finite = tests[0] if len(tests) == 1 else lambda: all(is_finite() for is_finite in tests)

    def step(self, actions: np.ndarray) -> VecEnvStepReturn:
        """Take a step."""
        self.step_async(actions)
        return self.step_wait()

    def step_wait(self) -> VecEnvStepReturn:
        """Step each environment, and reset it if its episode ended."""
        env, rows, checks, actions = self._env, self._rows, self._checks, self._env.actions
        rewards, dones, infos = env.buf_rews, env.buf_dones, env.buf_infos
        # Local variables, because this runs at every step and looking up others takes longer.
        array, dtype, length = np.ndarray, self._dtype, self._length
        low, high, numbers = -HUGE_REWARD, HUGE_REWARD, NUMBERS
        for i, single in enumerate(env.envs):
            try:
                returned = single.step(actions[i])
            except Exception as error:
                blame_output(error, checks[i])
                raise
            try:
                observation, reward, terminated, truncated, info = returned
            except (TypeError, ValueError):
                checks[i].step(returned)
                raise
            # Vectors and numbers of the usual types need no conversion. Recognising them here saves a call.
            is_usual = (
                type(observation) is array
                and observation.dtype is dtype
                and observation.ndim == 1
                and len(observation) == length
                and (type(reward) is float or type(reward) in numbers)
                and low < reward < high
                and (terminated is False or terminated is True)
                and (truncated is False or truncated is True)
                and type(info) is dict
            )
            if not is_usual:
                observation, reward, terminated, truncated, info = checks[i].step(returned)
            done = terminated or truncated
            rewards[i], dones[i], infos[i] = reward, done, info
            info["TimeLimit.truncated"] = truncated and not terminated
            if done:
                if is_usual:
                    rows[i] = observation
                if not (is_usual and self._are_finite()):
                    checks[i].terminal(observation)
                info["terminal_observation"] = copy_observation(observation)
                observation, env.reset_infos[i] = checks[i].reset(call_env(checks[i], single.reset))
            rows[i] = observation
        if not self._are_finite():
            self._stacked.check_numbers(rows, "observation", None)
        return rows.copy(), rewards.copy(), dones.copy(), [copy_info(info) for info in infos]

    def reset(self) -> VecEnvObs:
        """Reset each environment."""
        env = self._env
        for i, (single, check) in enumerate(zip(env.envs, self._checks, strict=True)):
            options = {"options": env._options[i]} if env._options[i] else {}
            first = call_env(check, single.reset, seed=env._seeds[i], **options)
            self._rows[i], env.reset_infos[i] = check.reset(first)
        env._reset_seeds()
        env._reset_options()
        if not self._are_finite():
            self._stacked.check_numbers(self._rows, "observation", None)
        return self._rows.copy()


class DictRows(dict[str, np.ndarray]):
    """A dict of arrays in which the same row of every array is written at once."""

    def __setitem__(self, row: Any, observation: Any) -> None:
        for key, array in self.items():
            array[row] = observation[key]

    def copy(self) -> dict[str, np.ndarray]:
        """Copy all arrays."""
        return {key: array.copy() for key, array in self.items()}


class CheckedStacks:
    """Steps and resets of environments that stack their outputs themselves, with the same checks."""

    def __init__(self, env: VecEnv, watch: Watch):
        self._env = env
        self._watch = watch
        self._observations = observation_check(env.observation_space, watch, env.num_envs)
        self._checks = [EnvCheck(env.observation_space, i, watch) for i in range(env.num_envs)]
        self.step_async = env.step_async

    def step(self, actions: np.ndarray) -> VecEnvStepReturn:
        """Take a step with the environment's own ``step``, which may be overridden, and check its results."""
        return self._check(self._env.step, actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Finish the step, and check its results."""
        return self._check(self._env.step_wait)

    def _check(self, step: Callable[..., VecEnvStepReturn], *actions: np.ndarray) -> VecEnvStepReturn:
        try:
            observations, rewards, dones, infos = step(*actions)
            if isinstance(rewards, list):
                rewards = np.array(rewards)
            self._check_rewards(rewards)
            ended = self._find_ended(dones)
            self._check_infos(infos, may_be_missing=not ended)
            for i in ended:
                terminal = infos[i].get("terminal_observation")
                if terminal is not None:
                    infos[i]["terminal_observation"] = self._checks[i].terminal(terminal)
            fitted = self._fit(observations)
        except STACKING:
            check_answers(self._env, self._checks)
            raise
        for i in ended:
            # SB3's workers, for example, send the last observation after the reset. If an environment returns the same
            # array at each step, the reset has overwritten it, and the value of another state ends the return.
            if infos[i].get("TimeLimit.truncated") and _is_row(infos[i].get("terminal_observation"), fitted, i):
                self._watch.note_lost_end(i)
        # SB3's workers pass integers on, which would cut off what a value adds to a reward at a time limit.
        kept = rewards.copy() if rewards.dtype.kind == "f" else rewards.astype(np.float32)
        return fitted, kept, dones.copy(), infos

    def reset(self) -> VecEnvObs:
        """Reset all environments, and check their observations."""
        try:
            return self._fit(self._env.reset())
        except STACKING:
            check_answers(self._env, self._checks)
            raise

    def _fit(self, observations: VecEnvObs) -> VecEnvObs:
        """Copy observations, in the types of their space if these are integers, because engines rely on them."""
        fitted: VecEnvObs = copy_observation(self._observations.fit(observations, "observation", None))
        self._observations.check_numbers(fitted, "observation", None)
        return fitted

    def _check_rewards(self, rewards: object) -> None:
        if not self._is_array(rewards, "biuf"):
            self._watch.refuse("reward", show(rewards), "an array with a real number for each environment", None)
        # Both comparisons are false for NaN.
        if not (float(rewards.min()) > -HUGE_REWARD and float(rewards.max()) < HUGE_REWARD):
            for i, reward in enumerate(rewards.tolist()):
                self._watch.note_reward(reward, i)

    def _find_ended(self, dones: object) -> list[int]:
        """Find the indices of the environments in which an episode ended."""
        if not self._is_array(dones, "biuf") or (dones.dtype.kind != "b" and not np.isin(dones, (0, 1)).all()):
            self._watch.refuse("done", show(dones), "an array with True or False for each environment", None)
        return [i for i, done in enumerate(dones.tolist()) if done]

    def _check_infos(self, infos: Sequence[object], may_be_missing: bool) -> None:
        of_all = len(infos) == len(self._checks) or (len(infos) == 0 and may_be_missing)
        # Comparing types is faster than isinstance(), and there may be many environments.
        right = {*map(type, infos)} == {dict} or all(isinstance(info, dict) for info in infos)
        if not (of_all and right):
            self._watch.refuse("info", show(infos), "a list with a dict for each environment", None)

    def _is_array(self, value: object, kinds: str) -> TypeGuard[np.ndarray]:
        return isinstance(value, np.ndarray) and value.shape == (len(self._checks),) and value.dtype.kind in kinds


def _is_row(observation: object, stacked: VecEnvObs, i: int) -> bool:
    """Whether an observation equals a row. Single numbers do not count, because they are often the same."""
    if isinstance(observation, dict) and isinstance(stacked, dict):
        return all(_is_row(observation[key], stacked[key], i) for key in observation)
    if isinstance(observation, np.ndarray) and isinstance(stacked, np.ndarray):
        return observation.size > 1 and np.array_equal(observation, stacked[i])
    return False
