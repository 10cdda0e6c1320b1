"""Finds the wrong output behind an error in a wrapper, which itself names neither the environment nor the value."""

import ast
import inspect
import textwrap
from collections import defaultdict
from traceback import walk_tb
from types import CodeType
from typing import Any, NamedTuple

import gymnasium as gym

from sb3_ppo_variants.errors import GuardError
from sb3_ppo_variants.guards.copies import owned
from sb3_ppo_variants.guards.observations import observation_check
from sb3_ppo_variants.guards.outputs import EnvCheck
from sb3_ppo_variants.guards.watch import TypesOnly

PARTS = {"step": ("observation", "reward", "terminated", "truncated", "info"), "reset": ("observation", "info")}

# Errors that Python and NumPy raise for values of a wrong type.
OVER_TYPES = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError)


def blame_output(error: Exception, check: EnvCheck) -> None:
    """Raise an error that names the wrong output, if a wrapper failed after it received one.

    Monitor, for example, calls float() on the reward. The output of the environment is read from the frame of the
    wrapper that failed, so steps without an error cost nothing.

    :param error: the error raised by ``step`` or ``reset`` of a wrapped environment
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
    calls = [each for each in frames if each[0].f_locals.get("self") is wrapper and each[0].f_code.co_name in PARTS]
    if not calls:
        return
    frame, line = calls[-1]
    received = _received(frame.f_code, wrapper)
    check = check.below(wrapper.env.observation_space)
    try:
        if frame is frames[-1][0] and line in received.lines and "unpack" in str(error):
            check.refuse_count(frame.f_code.co_name, f"something else ({error})")
        found = frame.f_locals
        check.parts({part: found[name] for name, part in received.names.items() if name in found})
    except GuardError as named:
        raise named from error


class Received(NamedTuple):
    """Where the method of a wrapper receives what the environment inside it returns."""

    names: dict[str, str]
    """The parts of the output by the local variables that certainly hold them."""
    lines: set[int]
    """The lines of the file that assign them."""


def _received(code: CodeType, wrapper: gym.Wrapper) -> Received:
    """Find the assignments of the form ``obs, reward, ... = self.env.step(action)``.

    Variables that are assigned anything else too are left out: their values may be those of the wrapper.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, SyntaxError):  # There is no source, or it is not that of a whole function.
        return Received({}, set())
    inner = {"self.env"} | ({"super()"} if _is_first_to_define(code.co_name, wrapper) else set())
    parts: dict[str, set[str]] = defaultdict(set)
    lines: set[int] = set()
    known: set[ast.expr] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Assign([ast.Tuple(targets)], ast.Call(ast.Attribute(env, method))) if (
                method in PARTS and ast.unparse(env) in inner and len(targets) == len(PARTS[method])
            ):
                lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
                known.update(targets)
                for target, part in zip(targets, PARTS[method], strict=True):
                    parts[ast.unparse(target)].add(part)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in known:
            parts[node.id].add("")
    names = {name: min(each) for name, each in parts.items() if len(each) == 1 and "" not in each}
    return Received(names, {line + code.co_firstlineno - 1 for line in lines})


def _is_first_to_define(method: str, wrapper: gym.Wrapper) -> bool:
    """Return whether a method's ``super()`` is ``gym.Wrapper``, which passes on what the environment returns."""
    classes = type(wrapper).__mro__
    return sum(method in vars(cls) for cls in classes[: classes.index(gym.Wrapper)]) == 1


def check_outputs(env: gym.Env, env_index: int) -> gym.Env:
    """Make ``step`` and ``reset`` of an environment in a worker process check the values that they return.

    The process of the model checks that numbers are finite, because it knows the step.
    """
    watch = TypesOnly(lambda: None)
    check = EnvCheck(observation_check(env.observation_space, watch), env_index, watch)
    step, reset = env.step, env.reset

    def checked_step(*args: Any, **kwargs: Any) -> Any:
        try:
            returned = step(*args, **kwargs)
        except Exception as error:
            blame_output(error, check)
            raise
        observation, reward, terminated, truncated, info = check.step(returned)
        # SB3's worker resets the environment before it sends the last observation.
        return owned(observation) if terminated or truncated else observation, reward, terminated, truncated, info

    def checked_reset(*args: Any, **kwargs: Any) -> Any:
        try:
            returned = reset(*args, **kwargs)
        except Exception as error:
            blame_output(error, check)
            raise
        return check.reset(returned)

    env.step, env.reset = checked_step, checked_reset  # type: ignore[method-assign]
    return env
