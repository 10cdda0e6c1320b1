"""Values of hyperparameters: from text, and as JSON that always reads the same."""

import ast
import hashlib
import json
import math
import re
from typing import Any

from sb3_ppo_variants.errors import refuse

# A comma or the beginning, before a name and "=": commas within a value are followed by no name.
ASSIGNMENT = re.compile(r"(?:^|,)\s*([A-Za-z_]\w*)\s*=")


def assignments(text: str) -> dict[str, Any]:
    """The values in ``name=value,name=value``, each a Python literal or else text, such as ``lin_3e-4``.

    :raises ArgumentError: (a ``ValueError``) if the text is something else, or names an argument twice
    """
    before, *parts = ASSIGNMENT.split(text)
    names, values = parts[::2], parts[1::2]
    if before.strip() or not names or not all(value.strip() for value in values) or len(set(names)) < len(names):
        refuse("arguments", text, "name=value, separated by commas, each name once")
    return {name: literal(value.strip()) for name, value in zip(names, values, strict=True)}


def literal(text: str) -> Any:
    """The value of a Python literal, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def plain(name: str, value: Any) -> Any:
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
        refuse(name, value, "numbers, texts, lists, dicts, classes and functions with a name; lin_x for a schedule")
    return path


def digest(value: Any) -> str:
    """A short name for a value that JSON can hold, the same in every process."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
