"""Checks of the actions that environments receive."""

import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from sb3_ppo_variants.guards.finite import is_finite
from sb3_ppo_variants.guards.steps import Steps
from sb3_ppo_variants.guards.watch import Watch

# The methods of a wrapper that take actions.
TAKE_ACTIONS = ("step", "step_async")


def check_actions(actions: np.ndarray, watch: Watch) -> None:
    """Check the actions of all environments.

    :raises NonFiniteError: if a number is not finite
    """
    # All other actions are integers.
    if actions.dtype.kind == "f" and not is_finite(actions):
        row = int(np.argmin(np.isfinite(actions).reshape(len(actions), -1).all(axis=1)))
        watch.refuse_number("action", actions[row], row)


def may_change_actions(env: VecEnv | None) -> bool:
    """Return whether an environment has a wrapper that may pass on other actions than it receives."""
    while isinstance(env, VecEnvWrapper):
        methods = ((getattr(getattr(env, name), "__func__", None), name) for name in TAKE_ACTIONS)
        if any(method is not getattr(VecEnvWrapper, name) for method, name in methods):
            return True
        env = env.venv
    return False


class CheckedActions:
    """Steps below a wrapper that may change the actions. Actors have checked those that they drew."""

    def __init__(self, steps: Steps, watch: Watch):
        self._steps, self._watch = steps, watch
        self.step_wait, self.reset = steps.step_wait, steps.reset

    def step(self, actions: np.ndarray) -> VecEnvStepReturn:
        """Take a step; the actions must be finite."""
        check_actions(actions, self._watch)
        return self._steps.step(actions)

    def step_async(self, actions: np.ndarray) -> None:
        """Start a step; the actions must be finite."""
        check_actions(actions, self._watch)
        self._steps.step_async(actions)
