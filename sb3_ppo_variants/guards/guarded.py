"""Checks the values that a model and its environments exchange during training."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_ppo_variants.errors import EnvOutputError
from sb3_ppo_variants.guards.dummy import DummySteps, can_step
from sb3_ppo_variants.guards.finite import is_finite
from sb3_ppo_variants.guards.observations import observation_check
from sb3_ppo_variants.guards.outputs import EnvCheck, StackCheck
from sb3_ppo_variants.guards.stand_in import standing_in
from sb3_ppo_variants.guards.watch import Watch
from sb3_ppo_variants.guards.workers import check_answers, exchanging, named_workers


@contextmanager
def guarded(model: OnPolicyAlgorithm) -> Iterator[None]:
    """Check what a model's environments receive and return, below all wrappers, while the context is active."""

    def steps() -> int:
        return model.num_timesteps

    watch = Watch(steps)
    try:
        stand_in = standing_in(model, lambda env: CheckedSteps(env, watch))
        with stand_in as env, named_workers(env, steps), exchanging(env):
            yield
    except EnvOutputError as error:
        if error.step is None:  # The error comes from a worker process.
            error.step = model.num_timesteps
        raise


def check_seen(model: OnPolicyAlgorithm) -> None:
    """Check the last observations that the policy saw, after all wrappers.

    :raises NonFiniteError: if a number is not finite
    """
    if model._last_obs is not None:
        check = observation_check(model.observation_space, Watch(lambda: model.num_timesteps), model.n_envs)
        check.check_numbers(model._last_obs, "observation", None)


# Errors that NumPy and SB3 raise for outputs that cannot be stacked, and errors of the checks of stacked outputs.
STACKING = (TypeError, ValueError, KeyError, AssertionError)


class CheckedSteps:
    """Steps and resets of a vectorised environment, which raise a ``GuardError`` for values that are not allowed."""

    def __init__(self, env: VecEnv, watch: Watch):
        self._watch = watch
        # Actions in other spaces are integers, which are always finite.
        self._checks_actions = isinstance(env.action_space, spaces.Box)
        self._observations = observation_check(env.observation_space, watch, env.num_envs)
        checks = [EnvCheck(env.observation_space, i, watch) for i in range(env.num_envs)]
        self._steps = DummySteps(env, checks) if can_step(env) else env
        self._stacks = None if can_step(env) else StackCheck(checks, watch)
        self._env, self._checks = env, checks

    def step_async(self, actions: np.ndarray) -> None:
        """Start a step; the actions must be finite."""
        if self._checks_actions and not is_finite(actions):
            row = int(np.argmin(np.isfinite(actions).reshape(len(actions), -1).all(axis=1)))
            self._watch.refuse_number("action", actions[row], row)
        self._steps.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Finish the step, and check its results."""
        try:
            returned = self._steps.step_wait()
            if self._stacks is not None:
                self._stacks.check(*returned)
            self._check_observations(returned[0])
        except STACKING:
            check_answers(self._env, self._checks)
            raise
        return returned

    def reset(self) -> VecEnvObs:
        """Reset all environments, and check their observations."""
        try:
            observations = self._steps.reset()
            self._check_observations(observations)
        except STACKING:
            check_answers(self._env, self._checks)
            raise
        return observations

    def _check_observations(self, observations: VecEnvObs) -> None:
        if self._stacks is not None:
            observations = self._observations.fitted(observations, "observation", None)
        self._observations.check_numbers(observations, "observation", None)
