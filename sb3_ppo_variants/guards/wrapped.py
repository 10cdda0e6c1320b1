"""Errors of wrappers over what an environment returned to them, which name neither the environment nor the value."""

from types import FrameType
from typing import Any

import gymnasium as gym

from sb3_ppo_variants.errors import GuardError
from sb3_ppo_variants.guards.outputs import RESULTS, EnvCheck
from sb3_ppo_variants.guards.watch import TypesOnly

# What SB3's and gymnasium's wrappers call the parts of a step.
NAMES = {
    "observation": ("observation", "obs"),
    "reward": ("reward", "rew"),
    "terminated": ("terminated",),
    "truncated": ("truncated",),
    "info": ("info",),
}

# What Python and NumPy raise over something of a wrong type.
OVER_TYPES = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError)


def blame_output(error: Exception, check: EnvCheck) -> None:
    """Raise an error that names a wrong output, if that is what a wrapper failed over.

    Monitor, for example, takes float() of the reward. What an environment returned is found in the frame of the wrapper
    that failed, so that steps without an error cost nothing.

    :param error: what ``step`` or ``reset`` of an environment under wrappers raised
    :param check: the check of what the outermost wrapper returns
    :raises EnvOutputError: if the wrapper was given something of a wrong type or shape
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
            check.refuse_count(method, f"of another form ({error})")
        check.parts({part: found[name] for part, names in NAMES.items() for name in names if name in found})
    except GuardError as named:
        raise named from error


def _frames(error: Exception) -> list[FrameType]:
    """From the outermost to the one that raised."""
    frames, traceback = [], error.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return frames


def check_outputs(env: gym.Env, env_index: int) -> gym.Env:
    """Make the ``step`` and ``reset`` of an environment in a worker process check what they return.

    Whether numbers are finite is checked in the process of the model, which knows the step.
    """
    check = EnvCheck(env.observation_space, env_index, TypesOnly(lambda: None))
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
