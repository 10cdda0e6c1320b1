"""Checks of what environments return while a model trains, before any wrapper sees it.

The innermost vectorised environment steps and resets with checks, so ``VecNormalize`` never takes in a number that is
not finite. A ``DummyVecEnv`` steps as SB3's does, with fewer copies, and a ``SubprocVecEnv`` names the worker that has
ended.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_ppo_variants.envs.capabilities import inner
from sb3_ppo_variants.envs.outputs import (
    LARGEST,
    NUMBERS,
    OutputCheck,
    copy_info,
    copy_observation,
    is_finite,
)
from sb3_ppo_variants.envs.subproc import ended_worker, waits_for
from sb3_ppo_variants.errors import WorkerError
from sb3_ppo_variants.interrupts import HELD
from sb3_ppo_variants.layout import map_parts, structure_of

ADVICE = "; SafeSubprocVecEnv takes the same arguments and reports the traceback of a worker that raises"


@contextmanager
def checked_outputs(env: VecEnv) -> Iterator[None]:
    """Check what the environments inside all wrappers return while the context is active.

    :raises GuardError: if a value has a wrong type, shape or range, or is not finite, naming the environment
    :raises WorkerError: if a worker of SB3's ``SubprocVecEnv`` has ended
    """
    while (below := inner(env)) is not None:
        env = below
    steps: DummySteps | SubprocSteps | StackedSteps
    is_tuple = isinstance(env.observation_space, spaces.Tuple)
    if isinstance(env, DummyVecEnv) and _steps_as(DummyVecEnv, env) and not is_tuple:
        steps = DummySteps(env)
    elif isinstance(env, SubprocVecEnv) and _steps_as(SubprocVecEnv, env):
        steps = SubprocSteps(env)
    else:
        steps = StackedSteps(env)
    attributes: dict[str, Any] = vars(env)
    checked = {name: getattr(steps, name) for name in ("step_async", "step_wait", "reset") if hasattr(steps, name)}
    own: dict[str, Any] = {name: attributes[name] for name in checked if name in attributes}
    try:
        attributes.update(checked)
        yield
    finally:
        for name in checked:
            attributes.pop(name, None)
        attributes.update(own)
        if isinstance(steps, SubprocSteps):
            steps.finish()


def _steps_as(cls: type[VecEnv], env: VecEnv) -> bool:
    """Whether an environment steps and resets as those of a class of SB3, without methods of its own."""
    names = ("step_async", "step_wait", "reset", "_save_obs", "_obs_from_buf")
    return all(
        getattr(getattr(env, name), "__func__", None) is getattr(cls, name) for name in names if hasattr(cls, name)
    )


class DummySteps:
    """The steps and resets of a ``DummyVecEnv``, with checks.

    The results are as independent of the environments as SB3's deep copies, which arrays and an ``info`` of numbers,
    strings, arrays and dicts of these do not need.
    """

    def __init__(self, env: DummyVecEnv):
        self._env = env
        space, arrays = env.observation_space, env.buf_obs
        self._check = OutputCheck(space, env.num_envs)
        self._rows = DictRows(arrays) if isinstance(space, spaces.Dict) else next(iter(arrays.values()))
        # The type and length of observations that are vectors; no observation has a length of -1.
        self._dtype = space.dtype
        self._length = space.shape[0] if space.shape is not None and len(space.shape) == 1 else -1
        self._number = int if isinstance(space, spaces.Discrete) else None
        # Whether integers are in the space is checked in turn, as are the parts of a dict.
        is_float = isinstance(self._rows, np.ndarray) and self._rows.dtype.kind == "f"
        self._are_finite: Callable[..., bool] = partial(is_finite, self._rows) if is_float else bool  # type: ignore[arg-type]

    def step_wait(self) -> VecEnvStepReturn:
        """Step each environment, and reset it if its episode ended."""
        env, rows, check, actions = self._env, self._rows, self._check, self._env.actions
        rewards, dones, infos = env.buf_rews, env.buf_dones, env.buf_infos
        # Local variables, because this runs at every step and looking up others takes longer.
        array, dtype, length, number = np.ndarray, self._dtype, self._length, self._number
        low, high, numbers = -LARGEST, LARGEST, NUMBERS
        for i, single in enumerate(env.envs):
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
            # Vectors and numbers of the usual types need no conversion. Recognising them here saves calls.
            is_usual = (
                (
                    type(observation) is number
                    or (
                        type(observation) is array
                        and observation.dtype is dtype
                        and observation.ndim == 1
                        and len(observation) == length
                    )
                )
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
                info["terminal_observation"] = copy_observation(observation)
                observation, env.reset_infos[i] = check.reset(single.reset(), i)
            rows[i] = observation
        if not self._are_finite():
            check.numbers(rows)
        return rows.copy(), rewards.copy(), dones.copy(), [copy_info(info) for info in infos]

    def reset(self) -> VecEnvObs:
        """Reset each environment."""
        env, check = self._env, self._check
        for i, single in enumerate(env.envs):
            options = {"options": env._options[i]} if env._options[i] else {}
            self._rows[i], env.reset_infos[i] = check.reset(single.reset(seed=env._seeds[i], **options), i)
        env._reset_seeds()
        env._reset_options()
        check.numbers(self._rows)
        return self._rows.copy()


class DictRows(dict[str, np.ndarray]):
    """A dict of arrays in which the same row of every array is written at once."""

    def __setitem__(self, row: Any, observation: Any) -> None:
        for key, array in self.items():
            array[row] = observation[key]

    def copy(self) -> dict[str, np.ndarray]:
        """Copy all arrays."""
        return {key: array.copy() for key, array in self.items()}


class StackedSteps:
    """The steps and resets of an environment that stacks its outputs itself, with checks of the stacks."""

    def __init__(self, env: VecEnv):
        self._step_wait, self._reset = env.step_wait, env.reset
        self._check = OutputCheck(env.observation_space, env.num_envs)

    def step_wait(self) -> VecEnvStepReturn:
        """Finish the step."""
        return self._check.stacked(self._step_wait())

    def reset(self) -> VecEnvObs:
        """Reset all environments."""
        return self._check.stacked_observations(self._reset())


class SubprocSteps:
    """The steps and resets of SB3's ``SubprocVecEnv``, with checks of what each worker answers.

    A Ctrl-C during training waits for the answers to a step, so that no later step receives them.
    """

    def __init__(self, env: SubprocVecEnv):
        self._env, self._step_async, self._reset = env, env.step_async, env.reset
        self._check = OutputCheck(env.observation_space, env.num_envs)
        self._structure = structure_of(env.observation_space)
        self._answers: list[Any] = []
        self._waits = [waits_for(pipe, process) for pipe, process in zip(env.remotes, env.processes, strict=True)]

    def step_async(self, actions: np.ndarray) -> None:
        """Send each worker its action."""
        with self._named(), HELD:
            self._step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Receive what all workers answer, and stack it as SB3 does."""
        env, check = self._env, self._check
        answers = self._receive()
        steps = []
        for i, (observation, reward, done, info, _) in enumerate(answers):
            fitted = check.observation(observation, i)
            steps.append((fitted, check.reward(reward, i), check.flag("done", done, i), check.info(info, i)))
        env.reset_infos = tuple(reset_info for *_, reset_info in answers)  # type: ignore[assignment]
        observations, rewards, dones, infos = zip(*steps, strict=True)
        stacked = map_parts(lambda _, *parts: np.stack(parts), self._structure, *observations)
        return check.stacked((stacked, np.stack(rewards), np.stack(dones), [*infos]))

    def _receive(self) -> list[Any]:
        with self._named(), HELD:
            for i in range(len(self._answers), self._env.num_envs):
                self._waits[i](None)
                self._answers.append(self._env.remotes[i].recv())
            self._env.waiting = False
        answers, self._answers = self._answers, []
        return answers

    def reset(self) -> VecEnvObs:
        """Reset all environments."""
        with self._named(), HELD:
            observations = self._reset()
        return self._check.stacked_observations(observations)

    def finish(self) -> None:
        """Drop the answers to a step that an error or an interrupt has cut short."""
        if self._env.waiting:
            with suppress(WorkerError):
                self._receive()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the worker that has ended."""
        try:
            yield
        except (EOFError, ConnectionError) as error:
            self._env.waiting = False  # Otherwise close() would wait for answers.
            raise ended_worker(self._env.processes, ADVICE) from error
