"""Compares the arguments of a model with those of the run that it is to continue."""

import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.saving import plain
from sb3_ppo_variants.saving.rules import ATTRIBUTES

# Arguments that do not affect the results of a run.
MAY_DIFFER = ("self", "env", "device", "verbose", "tensorboard_log", "_init_setup_model")


def arguments_of(model: BaseAlgorithm) -> dict[str, Any]:
    """Return the arguments of a model's constructors in a form that can be compared and written as JSON."""
    constructors = [vars(cls)["__init__"] for cls in type(model).__mro__ if "__init__" in vars(cls)]
    names = {name: None for constructor in constructors for name in inspect.signature(constructor).parameters}
    return {name: _form(_value(model, name)) for name in names if name not in MAY_DIFFER}


def _value(model: BaseAlgorithm, name: str) -> Any:
    return getattr(model, ATTRIBUTES.get(name, name), None)


def _form(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _form(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_form(item) for item in value]
    if plain.is_plain(value):
        return plain.encode(value)
    cls = value if isinstance(value, type) else type(value)
    form: dict[str, Any] = {"class" if cls is value else "object of": f"{cls.__module__}.{cls.__qualname__}"}
    if is_dataclass(value) and cls is not value:  # Such as an objective.
        form["with"] = {field.name: _form(getattr(value, field.name)) for field in fields(value)}
    return form


def check_same_run(path: Path, given: BaseAlgorithm, resumed: BaseAlgorithm, of_run: Mapping[str, Any]) -> None:
    """Check that a model was created with the arguments of the run that a resumed model continues.

    Classes are compared by name, and dataclasses by their fields. Of functions and other values without a plain form,
    only the type is compared.

    :param given: the model that was created
    :param resumed: the resumed model, whose arguments may have been changed during the run
    :param of_run: the arguments with which the run began; checkpoints of earlier versions have none
    :raises ArgumentError: for the first argument that differs
    """
    now = arguments_of(resumed)
    for name, form in arguments_of(given).items():
        if form not in (now[name], of_run.get(name, now[name])):
            raise ArgumentError(
                f"{name}={_value(given, name)!r}, but the run in {path} has {_shown(of_run.get(name, now[name]))}. "
                "Choose another folder for this run, or pass the arguments of the run in that folder"
            )


def _shown(form: Any) -> str:
    try:
        return repr(plain.decode(form))
    except plain.NotPlainError:
        return str(form)
