"""The arguments of the algorithms: a table of their allowed values, schedules, and how their signatures are shared.

The rules are checked when a model is created, and again when a saved model is loaded. They do not use ``assert``.

Each algorithm writes its whole signature, which editors and type checkers read. It passes its arguments on by
:func:`given_in`.
"""

import inspect
import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from numbers import Integral, Real
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, get_device

from sb3_ppo_variants.errors import ArgumentError, refuse

Values: TypeAlias = dict[str, Any]
"""Values by their names, such as arguments, the attributes of a model, or a JSON object."""
Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class Rule:
    """The allowed values of an argument, in words and as a predicate.

    :param of_schedule: the allowed values of a schedule; ``None`` if the argument takes no schedule
    """

    allowed: str
    accepts: Callable[[object], bool]
    of_schedule: "Rule | None" = None

    def check(self, name: str, value: object) -> None:
        """:raises ArgumentError: if the value is not allowed"""
        if not self.accepts(value):
            refuse(name, value, self.allowed)

    def or_schedule(self, values: "Rule | None" = None) -> "Rule":
        """Allow a schedule too; its values are checked when they are used. SB3's constant schedule stands for a number.

        :param values: the allowed values of a schedule; by default numbers >= 0, since many schedules end at 0
        """

        def accepts(value: object) -> bool:
            if isinstance(value, FloatSchedule):
                value = value.value_schedule
            return is_schedule(value) or self.accepts(value.val if isinstance(value, ConstantSchedule) else value)

        return Rule(f"{self.allowed}, or a schedule", accepts, values or NON_NEGATIVE)

    def or_none(self) -> "Rule":
        """Allow ``None`` too."""
        return Rule(f"{self.allowed}, or None", lambda value: value is None or self.accepts(value), self.of_schedule)


def number(allowed: str, at_least: float = -math.inf, at_most: float = math.inf, above: float | None = None) -> Rule:
    """Make a rule for finite numbers within bounds, except bool and NaN.

    :param above: the bound that they must exceed, instead of ``at_least``
    """

    def accepts(value: object) -> bool:
        if not isinstance(value, Real) or isinstance(value, bool):
            return False
        with suppress(OverflowError):  # An integer may be too large for a float.
            value = float(value)
            return math.isfinite(value) and at_least <= value <= at_most and (above is None or value > above)
        return False

    return Rule(allowed, accepts)


def integer(at_least: int) -> Rule:
    """Make a rule for integers from a bound on, except bool."""

    def accepts(value: object) -> bool:
        return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= at_least

    return Rule(f"an integer >= {at_least}", accepts)


def instance(allowed: str, *types: type) -> Rule:
    """Make a rule for instances of one of the types."""
    return Rule(allowed, lambda value: isinstance(value, types))


def one_of(*texts: str) -> Rule:
    """Make a rule for a choice among texts."""
    return Rule(" or ".join(map(repr, texts)), lambda value: isinstance(value, str) and value in texts)


FINITE = number("a finite number")
ABOVE_ONE = number("a finite number > 1", above=1)
POSITIVE = number("a finite number > 0", above=0)
NON_NEGATIVE = number("a finite number >= 0", at_least=0)
FRACTION = number("a number in [0, 1]", at_least=0, at_most=1)
COUNT = integer(1)
FLAG = instance("True or False", bool, np.bool_)
AUTO = Rule("True, False or 'auto'", lambda value: isinstance(value, bool | str) and value in (True, False, "auto"))
NORM = Rule("a number >= 0, inf for no clipping", lambda value: value == math.inf or NON_NEGATIVE.accepts(value))


def _is_env(value: object) -> bool:
    # Environments of the old gym are not instances of a class that this package imports.
    return isinstance(value, str) or (not isinstance(value, type) and hasattr(value, "step"))


def _is_policy(value: object) -> bool:
    # The policies of other algorithms, which SB3 also calls MlpPolicy, cannot evaluate the actions of a rollout.
    return isinstance(value, type) and issubclass(value, BasePolicy) and hasattr(value, "evaluate_actions")


def _is_device(value: Any) -> bool:
    try:
        th.device("cpu" if value == "auto" else value)
    except (RuntimeError, TypeError):
        return False
    return True


def _is_callback(value: object) -> bool:
    # A class of callbacks can be called too, but would only create an object at each step.
    return isinstance(value, BaseCallback) or (callable(value) and not isinstance(value, type))


# Arguments that are read only when a model is made.
FIXED: Mapping[str, Rule] = {
    "policy": Rule(
        "the alias or the class of a policy with an actor and a critic",
        lambda value: isinstance(value, str) or _is_policy(value),
    ),
    "env": Rule("an environment or the id of one", _is_env).or_none(),
    "n_steps": COUNT,
    "use_sde": FLAG,
    "sde_sample_freq": Rule(
        "an integer >= 1, or -1 for once per rollout", lambda value: value == -1 or COUNT.accepts(value)
    ),
    "rollout_buffer_class": Rule(
        "a subclass of RolloutBuffer", lambda value: isinstance(value, type) and issubclass(value, RolloutBuffer)
    ).or_none(),
    "rollout_buffer_kwargs": instance("a dict", dict).or_none(),
    "stats_window_size": COUNT,
    "tensorboard_log": instance("a path", str, os.PathLike).or_none(),
    "policy_kwargs": instance("a dict", dict).or_none(),
    "verbose": Rule("an integer >= 0", lambda value: isinstance(value, Integral) and int(value) >= 0),
    # Python's own generator does not accept other types of integers.
    "seed": Rule("an int in [0, 2**32 - 1]", lambda value: type(value) is int and 0 <= value < 2**32).or_none(),
    "device": Rule("'auto', or what torch.device takes", _is_device),
    "_init_setup_model": FLAG,
}
RULES: Mapping[str, Rule] = {
    **FIXED,
    "batch_size": COUNT,
    "n_epochs": COUNT,
    "gamma": FRACTION,
    "gae_lambda": FRACTION.or_schedule(FRACTION),
    "clip_range_vf": POSITIVE.or_schedule().or_none(),
    "normalize_advantage": Rule(
        "True, False, 'minibatch' or 'rollout'",
        lambda value: FLAG.accepts(value) or (isinstance(value, str) and value in ("minibatch", "rollout")),
    ),
    "ent_coef": FINITE.or_schedule(FINITE),
    "vf_coef": NON_NEGATIVE.or_schedule(),
    "max_grad_norm": Rule("a number >= 0, or None for no clipping", NORM.or_none().accepts),
    "target_kl": POSITIVE.or_schedule().or_none(),
}
# Rules for the arguments of learn().
LEARN_RULES: Mapping[str, Rule] = {
    "total_timesteps": Rule("a number >= 0", NORM.accepts),
    "log_interval": COUNT.or_none(),
    "callback": Rule(
        "a callback object, a function or a list of these",
        lambda value: all(map(_is_callback, value)) if isinstance(value, list) else _is_callback(value),
    ).or_none(),
}


def check_arguments(values: Mapping[str, object], rules: Mapping[str, Rule]) -> None:
    """Check every value that has a rule.

    :raises ArgumentError: for the first value that is not allowed
    """
    for name, rule in rules.items():
        if name in values:
            rule.check(name, values[name])


def check_settings(values: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Check the current values of the arguments that updates read, since loading, callbacks and users may change them.

    :param values: the model's attributes
    :raises ArgumentError: for the first value that is not allowed, or if advantages are normalised over one sample
    """
    for name, rule in rules.items():
        if name in values and name not in FIXED:
            rule.check(name, values[name])
    normalize = values["normalize_advantage"]
    if normalize and values["n_steps"] * values["n_envs"] == 1:
        refuse("n_steps", values["n_steps"], "n_steps * n_envs > 1, unless normalize_advantage=False")
    if normalize and normalize != "rollout" and values["batch_size"] == 1:
        refuse("batch_size", 1, "an integer > 1, unless normalize_advantage is False or 'rollout'")


def warn_of_truncated_minibatch(n_steps: int, n_envs: int, batch_size: int) -> None:
    """Warn, as SB3 does, if the last minibatch of a rollout is smaller than the others."""
    n_samples = n_steps * n_envs
    whole, rest = divmod(n_samples, batch_size)
    if rest > 0:
        warnings.warn(
            f"You have specified a mini-batch size of {batch_size}, but because the `RolloutBuffer` is of size "
            f"`n_steps * n_envs = {n_samples}`, after every {whole} untruncated mini-batches, there will be a "
            f"truncated mini-batch of size {rest}\nWe recommend using a `batch_size` that is a factor of "
            f"`n_steps * n_envs`.\nInfo: (n_steps={n_steps} and n_envs={n_envs})"
        )


def is_schedule(value: object) -> bool:
    """Whether a value is a schedule, and not a number or SB3's constant schedule of one."""
    inner = value.value_schedule if isinstance(value, FloatSchedule) else value
    return callable(inner) and not isinstance(inner, ConstantSchedule)


def as_schedule(value: float | Schedule) -> FloatSchedule:
    """Convert a number or a schedule to SB3's class, which itself takes no number of NumPy but ``float64``."""
    return FloatSchedule(value if callable(value) else float(value))


def current_value(
    name: str, schedule: float | Schedule, progress_remaining: float, values: Rule = NON_NEGATIVE
) -> float:
    """Evaluate a schedule in the current update.

    The last rollout may take more steps than requested. SB3's remaining progress is then negative, where a schedule may
    be negative or undefined. The value at 0, where the schedule should have ended, is then used instead.

    :param name: name of the argument, for the error message
    :param schedule: a schedule, or a number for a constant schedule
    :param progress_remaining: from 1 to 0, or slightly less
    :param values: the allowed values
    :return: an allowed value
    :raises ArgumentError: if the schedule returns anything else
    """
    # SB3's class would convert what its schedule returns.
    given = schedule.value_schedule if isinstance(schedule, FloatSchedule) else schedule
    undefined = (ArithmeticError, LookupError, TypeError, ValueError) if progress_remaining < 0 else ()
    with suppress(*undefined):
        value: Any = given(progress_remaining) if callable(given) else given
        with suppress(TypeError, ValueError):  # If it is not a number, refuse() names it below.
            if values.accepts(float(value)):
                return float(value)
        refuse(f"{name}({progress_remaining:g})", value, f"a schedule that returns {values.allowed} at any progress")
    return current_value(name, schedule, 0.0, values)


def describe(value: object, *progress_remaining: float) -> str:
    """Describe an argument with words that are the same in every process.

    :param progress_remaining: where schedules are described by their values; by default, three places
    """
    if isinstance(value, dict):
        parts = (f"{key!r}: {describe(value[key], *progress_remaining)}" for key in sorted(value, key=repr))
        return f"{{{', '.join(parts)}}}"
    if isinstance(value, np.generic):
        value = value.item()
    if callable(value) and not isinstance(value, type):
        with suppress(Exception):  # It is no schedule, but a function of the user's own.
            values = [float(value(progress)) for progress in progress_remaining or (1.0, 0.5, 0.0)]
            return ", then ".join(map(repr, dict.fromkeys(values)))
    return type(value).__name__ if " at 0x" in repr(value) else repr(value)


def check_names(
    argument: str, names: Iterable[str], function: Callable[..., Any], given: Sequence[str], also: Sequence[str] = ()
) -> None:
    """Check that a function or class takes arguments with these names.

    :param argument: name of the argument that contains the names, for the error message
    :param names: the names to check
    :param function: the function or class
    :param given: names that are not allowed, because these arguments are passed by the caller
    :param also: names that the caller takes itself
    :raises ArgumentError: if a name is not allowed
    """
    parameters = inspect.signature(function).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    free = [*dict.fromkeys([*(name for name in parameters if name not in given), *also])]
    for name in names:
        if name in given or not (takes_any or name in free):
            callee = getattr(function, "__name__", repr(function))
            hint = "" if name in given else hint_at(name, free) if callee in _CONSTRUCTORS else _nearest(name, free)
            raise ArgumentError(f"{argument} has no entry {name!r}: {callee} takes {', '.join(free) or 'none'}{hint}")


_CONSTRUCTORS: dict[str, Sequence[str]] = {}
_OF_POLICY = inspect.signature(ActorCriticPolicy).parameters.keys()


def explain_unknown(method: Method) -> Method:
    """Let the error for an argument that a method does not have say which one was meant, or where it belongs."""
    known = [*inspect.signature(method).parameters]
    owner, _, name = method.__qualname__.rpartition(".")
    if name == "__init__":
        _CONSTRUCTORS[owner] = known

    @wraps(method)
    def call(*args: Any, **given: Any) -> Any:
        for argument in given.keys() - known:
            called = owner if name == "__init__" else name
            raise TypeError(f"{called}() got an unexpected keyword argument {argument!r}{hint_at(argument, known)}")
        return method(*args, **given)

    return cast(Method, call)


def hint_at(name: str, known: Sequence[str]) -> str:
    """Say what was meant by the name of an argument that is not one of those known, if it can be told."""
    if classes := [owner for owner, arguments in _CONSTRUCTORS.items() if name in arguments]:
        return f"; it belongs to {', '.join(classes)}"
    if name in _OF_POLICY:
        return f"; it belongs to the policy, as in policy_kwargs={{{name!r}: ...}}"
    return _nearest(name, known)


def _nearest(name: str, known: Sequence[str]) -> str:
    return "".join(f"; did you mean {close!r}?" for close in get_close_matches(name, known, n=1))


def list_arguments(cls: type) -> dict[str, object]:
    """List the arguments of a class with their defaults, including those of its bases if it takes ``**kwargs``."""
    arguments: dict[str, object] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        _, *parameters = inspect.signature(base.__init__).parameters.values()  # type: ignore[misc]
        named = {p.name: p.default for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        arguments = {**named, **arguments}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return arguments


def given_in(local: Mapping[str, object]) -> dict[str, object]:
    """Pick out the arguments of a constructor by name, from the ``locals()`` at its beginning."""
    return {name: value for name, value in local.items() if name not in ("self", "__class__")}


# Classes are listed by name, because some are only imported when needed. SB3's advice to use the CPU does so too.
SMALL_POLICIES = {"MlpPolicy", "ActorCriticPolicy", "MaskableMlpPolicy", "MaskableActorCriticPolicy"}


def choose_device(
    device: th.device | str,
    policy: str | type[BasePolicy],
    policy_kwargs: Mapping[str, object] | None,
    verbose: int = 0,
) -> th.device:
    """Choose the device to train a policy on.

    :param device: the requested device. ``"auto"`` selects the CPU for an ``MlpPolicy``, masked or not, with the
        default features extractor, because a GPU trains such small networks more slowly. For other policies it selects
        the GPU, if there is one
    :param verbose: 1 to print a message if the CPU is selected although there is a GPU
    :return: the device; as in SB3, the CPU if the requested one is not available, with a warning
    """
    name = policy if isinstance(policy, str) else policy.__name__
    if device == "auto" and name in SMALL_POLICIES and "features_extractor_class" not in (policy_kwargs or {}):
        if verbose >= 1 and th.cuda.is_available():
            print('device="auto" selects the CPU, which trains small networks faster; pass device="cuda" for the GPU')
        return th.device("cpu")
    found = get_device(device)
    if device != "auto" and found.type != th.device(device).type:
        warnings.warn(f"device={str(device)!r} is not available: training on device={str(found)!r} instead")
    return found
