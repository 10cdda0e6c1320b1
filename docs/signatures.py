"""Puts the arguments of the algorithms into tables with type, default and meaning, made from the code.

All constructors share most of their arguments. The page of the API shows these once, with :class:`PPOBase`; each class
then has only its own.
"""

import re
from inspect import Parameter, getdoc, signature
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.typing import stringify_annotation

from sb3_ppo_variants import PPOClip, variants
from sb3_ppo_variants.ppo import PPOBase

ALGORITHMS = {
    algorithm: dict(signature(algorithm).parameters)
    for algorithm in (getattr(variants, name) for name in variants.__all__)
}
MEANING = re.compile(r"^:param (\w+): (.*?)\n(?=:|\n|\Z)", re.MULTILINE | re.DOTALL)
# What the docstrings say to readers who see a single class.
ELSEWHERE = re.compile(r"^(Arguments that are not listed here|The arguments) are those of [^\n]*\n", re.MULTILINE)
HEAD = [".. list-table::", "   :header-rows: 1", "   :widths: 23 20 10 47", "   :width: 100%", ""]


def arguments(algorithm: type[PPOBase]) -> dict[str, Parameter]:
    """Return the arguments that only this class has, or has with its own default; those of all for the base class."""
    first, *others = ALGORITHMS.values()
    shared = {name: first[name] for name in first if all(first[name] == other.get(name) for other in others)}
    return shared if algorithm is PPOBase else {k: v for k, v in ALGORITHMS[algorithm].items() if k not in shared}


def type_of(argument: Parameter) -> str:
    """Write a type as a reader would: without modules, and with the words of SB3's documentation."""
    text = re.sub(r"~?\b[a-z_][\w.]*\.(?=\w)", "", stringify_annotation(argument.annotation, "smart"))
    text = re.sub(r"Literal\[(.*?)\]", lambda found: found[1].replace(", ", " | "), text)
    return text.replace("Callable[[float], float]", "Schedule")


def table(algorithm: type[PPOBase]) -> list[str]:
    """Return the lines of a table of arguments, in reStructuredText."""
    meanings = dict(MEANING.findall(f"{getdoc(PPOClip)}\n{getdoc(algorithm)}\n"))
    rows = [("argument", "type", "default", "meaning")]
    for name, argument in arguments(algorithm).items():
        default = "" if argument.default is Parameter.empty else f"``{argument.default!r}``"
        rows.append((f"``{name}``", f"``{type_of(argument)}``", default, " ".join(meanings[name].split())))
    return HEAD + [f"   {'* -' if i == 0 else '  -'} {cell}" for row in rows for i, cell in enumerate(row)] + [""]


def put_tables(app: Sphinx, what: str, name: str, documented: Any, options: Any, lines: list[str]) -> None:
    """Replace the list of arguments of an algorithm by a table."""
    if what == "class" and documented in (PPOBase, *ALGORITHMS):
        text = ELSEWHERE.sub("", MEANING.sub("", "\n".join([*lines, ""])))
        prose, raises, errors = text.partition("\n:raises")
        rows = table(documented) if arguments(documented) else []
        lines[:] = [*prose.split("\n"), "", *rows, *f"{raises}{errors}".split("\n")]


def shorten(app: Sphinx, what: str, name: str, documented: Any, *_: Any) -> tuple[str, None] | None:
    """Leave out of a signature what all algorithms share."""
    if documented is PPOBase:
        return "", None
    if what == "class" and documented in ALGORITHMS:
        own = [f"{name}={each.default!r}" for name, each in arguments(documented).items()]
        return f"({', '.join(['policy', 'env', *own, '**shared'])})", None
    return None


def setup(app: Sphinx) -> None:
    """Register the parts above; called by Sphinx."""
    app.connect("autodoc-process-docstring", put_tables)
    app.connect("autodoc-process-signature", shorten)
