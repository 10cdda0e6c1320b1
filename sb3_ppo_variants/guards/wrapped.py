"""Finds the wrong output behind an error in a wrapper, which itself names neither the environment nor the value."""

from types import FrameType
from typing import Any

import gymnasium as gym

from sb3_ppo_variants.errors import GuardError
from sb3_ppo_variants.guards.observations import observation_check
from sb3_ppo_variants.guards.outputs import RESULTS, EnvCheck
from sb3_ppo_variants.guards.watch import TypesOnly

# Names of local variables for the results of a step in SB3's and gymnasium's wrappers.
NAMES = {
    "observation": ("observation", "obs"),
    "reward": ("reward", "rew"),
    "terminated": ("terminated",),
    "truncated": ("truncated",),
    "info": ("info",),
}

# Errors that Python and NumPy raise for values of a wrong type.
OVER_TYPES = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError)


def blame_output(error: Exception, check: EnvCheck) -> None:
    """Raise an error that names the wrong output, if a wrapper failed because of one.

    Monitor, for example, calls float() on the reward. The output of the environment is read from the frame of the
    wrapper that failed, so steps without an error cost nothing.

    :param error: the error raised by ``step`` or ``reset`` of a wrapped environment
    :param check: the check of the outermost wrapper
    :raises EnvOutputError: if the wrapper received a value of a wrong type or shape
    :raises NonFiniteError: if the reward is not finite
    """
    if isinstance(error, GuardError) or not isinstance(error, OVER_TYPES):
        return
    frames = _frames(error)
    inside = [frame for frame in frames if isinstance(frame.f_locals.get("self"), gym.Env)]
    if not inside or not isinstance(wrapper := inside[-1].f_locals["self"], gym.Wrapper):
        return  # The environment itself failed.
    found = inside[-1].f_locals
    check = check.below(wrapper.env.observation_space)
    try:
        method = inside[-1].f_code.co_name
        if inside[-1] is frames[-1] and method in RESULTS and "unpack" in str(error):
            check.refuse_count(method, f"something else ({error})")
        check.parts({part: found[name] for part, names in NAMES.items() for name in names if name in found})
    except GuardError as named:
        raise named from error


def _frames(error: Exception) -> list[FrameType]:
    """Return the frames of an error, from the outermost to the one that raised it."""
    frames, traceback = [], error.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return frames


def check_outputs(env: gym.Env, env_index: int) -> gym.Env:
    """Make ``step`` and ``reset`` of an environment in a worker process check the values that they return.

    The process of the model checks that numbers are finite, because it knows the step.
    """
    watch = TypesOnly(lambda: None)
    check = EnvCheck(observation_check(env.observation_space, watch), env_index, watch)
    step, reset = env.step, env.reset

    def checked_step(action: Any) -> Any:
        try:
            returned = step(action)
        except Exception as error:
            blame_output(error, check)
            raise
        return check.step(returned)

    def checked_reset(**arguments: Any) -> Any:
        try:
            returned = reset(**arguments)
        except Exception as error:
            blame_output(error, check)
            raise
        return check.reset(returned)

    env.step, env.reset = checked_step, checked_reset  # type: ignore[method-assign]
    return env
