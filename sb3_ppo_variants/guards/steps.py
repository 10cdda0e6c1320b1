"""Puts the checks of environments in place."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from sb3_ppo_variants.errors import EnvOutputError
from sb3_ppo_variants.guards.finite import is_finite
from sb3_ppo_variants.guards.observations import observation_check
from sb3_ppo_variants.guards.single import CheckedEnvs, can_step
from sb3_ppo_variants.guards.stacked import CheckedStacks
from sb3_ppo_variants.guards.watch import Watch
from sb3_ppo_variants.guards.workers import named_workers


@contextmanager
def checked_steps(env: VecEnv, steps_taken: Callable[[], int]) -> Iterator[None]:
    """Within it what the environments return is checked, before any wrapper of the vectorised one sees it.

    :param env: any vectorised environment
    :param steps_taken: returns the model's ``num_timesteps``
    """
    inner, watch = innermost(env), Watch(steps_taken)
    checked = CheckedEnvs(inner, watch) if can_step(inner) else CheckedStacks(inner, watch)
    try:
        with replaced(inner, step_wait=checked.step_wait, reset=checked.reset), named_workers(inner):
            yield
    except EnvOutputError as error:
        if error.step is None:  # It comes from another process.
            error.step = steps_taken()
        raise


@contextmanager
def checked_actions(env: VecEnv, steps_taken: Callable[[], int]) -> Iterator[None]:
    """Within it no action that is not finite reaches the environments.

    :param env: any vectorised environment
    :param steps_taken: returns the model's ``num_timesteps``
    """
    inner = innermost(env)
    # Actions in other spaces are integers.
    box = isinstance(inner.action_space, spaces.Box)
    checked = CheckedActions(inner, Watch(steps_taken))
    with replaced(inner, step_async=checked.step_async) if box else nullcontext():
        yield


def check_seen(env: VecEnv, observations: Any, steps_taken: Callable[[], int]) -> None:
    """Check what a policy sees, after all wrappers.

    :param env: the vectorised environment that returned them
    :param observations: stacked observations; ``None`` if there are none yet
    :param steps_taken: returns the model's ``num_timesteps``
    :raises NonFiniteError: if a number is not finite
    """
    if observations is not None:
        check = observation_check(env.observation_space, Watch(steps_taken), env.num_envs)
        check.check_numbers(observations, "observation", None)


class CheckedActions:
    """Hands actions on to the environments.

    :param env: the vectorised environment
    :param watch: names where the run is
    """

    def __init__(self, env: VecEnv, watch: Watch):
        self._watch = watch
        self._step_async = env.step_async

    def step_async(self, actions: np.ndarray) -> None:
        """Begin a step.

        :raises NonFiniteError: if an action is not finite
        """
        if not is_finite(actions):
            row = int(np.argmin(np.isfinite(actions).reshape(len(actions), -1).all(axis=1)))
            self._watch.refuse_number("action", actions[row], row)
        self._step_async(actions)


@contextmanager
def replaced(owner: object, **methods: Callable[..., Any]) -> Iterator[None]:
    """Within it an object has other methods."""
    attributes = vars(owner)
    before = {name: attributes[name] for name in methods if name in attributes}
    attributes.update(methods)
    try:
        yield
    finally:
        for name in methods:
            del attributes[name]
        attributes.update(before)


def innermost(env: VecEnv) -> VecEnv:
    """A vectorised environment without its wrappers."""
    while isinstance(env, VecEnvWrapper):
        env = env.venv
    return env
