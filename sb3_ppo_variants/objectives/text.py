"""Objectives written as text, for command lines and files of hyperparameters: ``mine:SPO(0.2)``."""

import ast
from importlib import import_module
from typing import Any

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.objectives.objective import Objective

FORM = "module:Class with literal arguments, as in mine:SPO(0.2) or mine:SPO(epsilon=0.2)"


def read_objective(text: str) -> Objective:
    """Return the objective that a text stands for: the import path of its class, and literal arguments.

    The arguments are not evaluated as code. The class is imported.

    :raises ArgumentError: if the text has another form, the class cannot be imported, it does not take the arguments,
        or it is not derived from :class:`Objective`
    """
    module, _, call = text.partition(":")
    name, args, kwargs = _parts(text, call)
    try:
        made = getattr(import_module(module.strip()), name)(*args, **kwargs)
    except Exception as error:  # The module's own code may raise anything.
        raise ArgumentError(f"objective={text!r} cannot be created: {type(error).__name__}: {error}") from error
    if not isinstance(made, Objective):
        raise ArgumentError(f"objective={text!r} is not an objective: {name} must derive from Objective")
    return made


def _parts(text: str, call: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Return the name, the arguments and the keyword arguments of a call."""
    try:
        match ast.parse(call.strip(), mode="eval").body:
            case ast.Name(name):
                return name, [], {}
            case ast.Call(ast.Name(name), args, keywords):
                given = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords if keyword.arg}
                if len(given) == len(keywords):
                    return name, [ast.literal_eval(value) for value in args], given
    except (SyntaxError, ValueError):
        pass
    raise ArgumentError(f"objective={text!r} is not allowed; allowed: {FORM}")
