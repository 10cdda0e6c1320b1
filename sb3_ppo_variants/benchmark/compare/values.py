"""Values of hyperparameters: from text, and as JSON that always reads the same."""

import ast
import hashlib
import json
import math
import re

from sb3_ppo_variants.errors import ArgumentError

# A comma or the beginning, before a name and "=": commas within a value are followed by no name.
ASSIGNMENT = re.compile(r"(?:^|,)\s*([A-Za-z_]\w*)\s*=")


def assignments(text: str) -> dict[str, object]:
    """The values in ``name=value,name=value``, each a Python literal or else text, such as ``lin_3e-4``.

    :raises ArgumentError: (a ``ValueError``) if the text is something else, or names an argument twice
    """
    before, *parts = ASSIGNMENT.split(text)
    names, values = parts[::2], parts[1::2]
    if before.strip() or not names or not all(value.strip() for value in values):
        raise ArgumentError(f"{text!r} must be name=value, or several of them separated by commas")
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(f"{name} is given more than once in {text!r}")
    return {name: _literal(value.strip()) for name, value in zip(names, values, strict=True)}


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def plain(name: str, value: object) -> object:
    """A value as JSON can hold it, with classes and functions by their import path.

    :raises ArgumentError: (a ``ValueError``) for an object that does not say what it is
    """
    if isinstance(value, dict):
        return {str(key): plain(f"{name}[{key!r}]", part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(name, part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    path = f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', '<')}"
    if "<" in path:
        raise ArgumentError(
            f"{name}={value!r} cannot be recorded: use numbers, text, lists, dicts, classes and functions that can be "
            "imported, and lin_x for a schedule"
        )
    return path


def digest(value: object) -> str:
    """A short name for a value that JSON can hold, the same in every process."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
