"""Rules for the attributes in a file. The rules of the constructor apply to files too."""

import reprlib
from collections import deque
from collections.abc import Callable, Collection, Mapping
from numbers import Real
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_ppo_variants.arguments.checks import check_buffer_arguments, check_policy
from sb3_ppo_variants.arguments.rules import COUNT, FINITE, Rule, check_spaces, current_value, instance, integer
from sb3_ppo_variants.errors import ArgumentError, DamagedFileError

STEPS = integer("an integer >= 0", lambda value: value >= 0)
# Files of SB3 before 1.8 may contain spaces of the old gym, which SB3 converts.
SPACE = Rule("a space", lambda value: isinstance(value, spaces.Space) or type(value).__module__.startswith("gym."))


def _is_number(value: Any) -> bool:
    # Some environments report arrays with one element.
    array = np.asarray(value) if isinstance(value, Real | np.generic | np.ndarray) else np.empty(0)
    return array.size == 1 and array.dtype.kind in "biuf"


def _is_episode(value: Any) -> bool:
    return isinstance(value, dict) and all(name in value and _is_number(value[name]) for name in ("r", "l"))


# Arguments of the constructor whose attributes have other names, and those for which None stands for an empty dict.
ATTRIBUTES = {"policy": "policy_class", "stats_window_size": "_stats_window_size"}
EMPTY = ("policy_kwargs", "rollout_buffer_kwargs")

DEQUE = instance("a deque", deque).or_none()
# Further rules for files from strangers. Otherwise, as in SB3, statistics are whatever the environments report.
OF_STRANGERS: Mapping[str, Rule] = {
    "ep_info_buffer": Rule(
        "a deque of dicts with numbers r and l", lambda value: isinstance(value, deque) and all(map(_is_episode, value))
    ).or_none(),
    "ep_success_buffer": Rule(
        "a deque of booleans", lambda value: isinstance(value, deque) and all(map(_is_number, value))
    ).or_none(),
}
# Rules for attributes that are not arguments, or that the constructor changes.
OF_STATE: Mapping[str, Rule] = {
    "num_timesteps": STEPS,
    "_total_timesteps": STEPS,
    "_num_timesteps_at_start": STEPS,
    "_n_updates": STEPS,
    "_episode_num": STEPS,
    "_current_progress_remaining": FINITE,
    "_stats_window_size": COUNT,
    "n_envs": COUNT,
    "observation_space": SPACE,
    "action_space": SPACE,
    "ep_info_buffer": DEQUE,
    "ep_success_buffer": DEQUE,
    "action_noise": Rule("None", lambda value: value is None),
    "policy_kwargs": instance("a dict", dict),
    "rollout_buffer_kwargs": instance("a dict", dict),
}


def as_attributes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of the constructor, or other attributes, as the attributes that a model keeps."""
    values = {ATTRIBUTES.get(name, name): value for name, value in arguments.items()}
    return {name: {} if name in EMPTY and value is None else value for name, value in values.items()}


def check_attributes(
    cls: type[BaseAlgorithm], rules: Mapping[str, Rule], file: str, values: Mapping[str, Any], given: Collection[str]
) -> None:
    """Check the attributes of a model.

    :param rules: the rules for the attributes
    :param values: the attributes, including the class of the policy and the spaces
    :param given: names of attributes that do not come from the file and are checked later, when the model is set up
    :raises DamagedFileError: if an attribute has a value that no model can have, naming the attribute
    """
    for name, rule in rules.items():
        if name in values and name not in given:
            _check(file, name, rule, values[name])
    kwargs = {name: value for name, value in values.get("policy_kwargs", {}).items() if name != "device"}
    checks: Mapping[str, Callable[[], None]] = {
        "policy_kwargs": lambda: check_policy(values["policy_class"], cls.policy_aliases, kwargs),
        "rollout_buffer_kwargs": lambda: check_buffer_arguments(
            values.get("rollout_buffer_class"), values.get("rollout_buffer_kwargs")
        ),
        "action_space": lambda: _check_space(values["action_space"], values.get("use_sde", False)),
    }
    for name, check in checks.items():
        if name in values and name not in given:
            try:
                check()
            except ArgumentError as error:
                raise DamagedFileError(file, name, f"cannot be used: {error}") from error


def _check_space(space: Any, use_sde: bool) -> None:
    if isinstance(space, spaces.Space):
        check_spaces(space, use_sde)


def _check(file: str, name: str, rule: Rule, value: Any) -> None:
    try:
        allowed = bool(rule.accepts(value))
    except (OverflowError, ValueError):  # An integer too large for a float, or an array instead of a flag.
        allowed = False
    if not allowed:
        raise DamagedFileError(file, name, f"is {reprlib.repr(value)}, but must be {rule.allowed}")
    if rule.takes_schedule and value is not None:
        try:
            current_value(name, value, progress_remaining=1.0)
        except (ValueError, TypeError, AssertionError, ArithmeticError, AttributeError, RecursionError) as error:
            raise DamagedFileError(file, name, f"is not a schedule of allowed values: {error}") from error
