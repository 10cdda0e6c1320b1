"""Checks the values that a model and its environments exchange during training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_ppo_variants.errors import EnvOutputError
from sb3_ppo_variants.guards.actions import CheckedActions, may_change_actions
from sb3_ppo_variants.guards.copies import owned
from sb3_ppo_variants.guards.dummy import DummySteps, can_step
from sb3_ppo_variants.guards.finite import FiniteTest, finite_test
from sb3_ppo_variants.guards.observations import observation_check
from sb3_ppo_variants.guards.outputs import EnvCheck, StackCheck
from sb3_ppo_variants.guards.stand_in import standing_in
from sb3_ppo_variants.guards.steps import Steps
from sb3_ppo_variants.guards.watch import Watch
from sb3_ppo_variants.guards.workers import check_answers, exchanging, named_workers


@contextmanager
def guarded(model: OnPolicyAlgorithm, test: FiniteTest = finite_test) -> Iterator[None]:
    """Check what a model's environments receive and return, below all wrappers, while the context is active.

    :param test: creates the tests whether observations are finite
    """

    def steps() -> int:
        return model.num_timesteps

    watch = Watch(steps)

    def make_steps(env: VecEnv) -> Steps:
        checked: Steps = DummySteps(env, watch, test) if can_step(env) else CheckedStacks(env, watch)
        return CheckedActions(checked, watch) if may_change_actions(model.env) else checked

    try:
        stand_in = standing_in(model, make_steps)
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


class CheckedStacks:
    """Steps and resets of environments that stack their outputs themselves.

    They raise a ``GuardError`` for values that are not allowed. The arrays that they return stay as they are when the
    environments write the next step to the same memory.
    """

    def __init__(self, env: VecEnv, watch: Watch):
        self._observations = observation_check(env.observation_space, watch, env.num_envs)
        self._checks = EnvCheck.of_each(env, watch)
        self._stacks = StackCheck(self._checks, watch)
        self._env = env

    def step(self, actions: np.ndarray) -> VecEnvStepReturn:
        """Take a step with the environment's own ``step``, which may be overridden, and check its results."""
        return self._checked(self._env.step, actions)

    def step_async(self, actions: np.ndarray) -> None:
        """Start a step."""
        self._env.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Finish the step, and check its results."""
        return self._checked(self._env.step_wait)

    def _checked(self, step: Callable[..., VecEnvStepReturn], *actions: np.ndarray) -> VecEnvStepReturn:
        try:
            returned = step(*actions)
            observations, rewards, dones, infos = returned
            if isinstance(rewards, list):
                rewards = np.array(rewards)
            ended = self._stacks.check(rewards, dones, infos)
            fitted = self._fitted(observations)
        except STACKING:
            check_answers(self._env, self._checks)
            raise
        self._stacks.compare_ends(ended, fitted, infos)
        return owned(fitted), rewards.copy(), dones.copy(), infos

    def reset(self) -> VecEnvObs:
        """Reset all environments, and check their observations."""
        try:
            return owned(self._fitted(self._env.reset()))
        except STACKING:
            check_answers(self._env, self._checks)
            raise

    def _fitted(self, observations: VecEnvObs) -> VecEnvObs:
        """Return the observations in the types of their space if these are integers, because backends rely on them."""
        fitted = self._observations.fitted(observations, "observation", None)
        self._observations.check_numbers(fitted, "observation", None)
        return fitted
