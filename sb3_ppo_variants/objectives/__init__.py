"""The policy objectives, each with its equation and its loss.

:func:`read_objective` reads them from text, as command lines and files of hyperparameters name them.
"""

import ast
import re
from importlib import import_module
from inspect import isabstract
from typing import NoReturn

from sb3_ppo_variants.commandline import read_call
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.objectives.clipping import CISPO, ESPO, ClipHigher, DualClip, Rollback, TrulyPPO
from sb3_ppo_variants.objectives.ewma import EWMA
from sb3_ppo_variants.objectives.objective import Batch, NativeObjective, Objective, has_term
from sb3_ppo_variants.objectives.penalties import MDPO, AdaptiveReverseKL, KLHinge, ReverseKL
from sb3_ppo_variants.objectives.smooth import DPO, P3O, SAPO, SPO
from sb3_ppo_variants.objectives.surrogates import AdaptiveKL, Clipped, KLPenalized, Unclipped
from sb3_ppo_variants.objectives.trust_region import TRGPPO

__all__ = [
    "CISPO",
    "DPO",
    "ESPO",
    "EWMA",
    "MDPO",
    "P3O",
    "SAPO",
    "SPO",
    "TRGPPO",
    "AdaptiveKL",
    "AdaptiveReverseKL",
    "Batch",
    "ClipHigher",
    "Clipped",
    "DualClip",
    "KLHinge",
    "KLPenalized",
    "NativeObjective",
    "Objective",
    "ReverseKL",
    "Rollback",
    "TrulyPPO",
    "Unclipped",
    "has_term",
    "list_objectives",
    "read_objective",
]

LITERALS = "with literal arguments, as in SPO(0.2), mine:SPO(epsilon=0.2) or EWMA(SPO(0.2))"


def list_objectives() -> dict[str, type[Objective]]:
    """List the objectives that this package exports, by name."""
    exported = {name: globals()[name] for name in __all__}
    return {
        name: found
        for name, found in exported.items()
        if isinstance(found, type) and issubclass(found, Objective) and not isabstract(found)
    }


def read_objective(text: str) -> Objective:
    """Read the objective that a text stands for: the name of its class, and literal arguments.

    The class is one of this package, or one that is imported: ``module:Class``. The arguments are not evaluated as
    code. They may be objectives of this package.

    :raises ArgumentError: if the text has another form, this package has no such class or it cannot be imported, it
        does not take the arguments, or it is not derived from :class:`Objective`
    """
    imported = re.fullmatch(r"\s*([\w.]+)\s*:(.*)", text, re.DOTALL)
    try:
        name, args, kwargs = read_call(imported[2] if imported else text, _argument)
    except ArgumentError:  # That of an objective within is about itself.
        raise
    except (SyntaxError, ValueError):
        _refuse(text)
    if not imported and name not in list_objectives():
        _refuse(text)
    try:
        found = getattr(import_module(imported[1]), name) if imported else list_objectives()[name]
        made = found(*args, **kwargs)
    except Exception as error:  # The module's own code may raise anything.
        raise ArgumentError(f"objective={text!r} cannot be created: {type(error).__name__}: {error}") from error
    if not isinstance(made, Objective):
        raise ArgumentError(f"objective={text!r} is not an objective: {name} must derive from Objective")
    return made


def _argument(node: ast.expr) -> object:
    return read_objective(ast.unparse(node)) if isinstance(node, ast.Call) else ast.literal_eval(node)


def _refuse(text: str) -> NoReturn:
    names = ", ".join(list_objectives())
    raise ArgumentError(f"objective={text!r} is not allowed; allowed: {names} or module:Class, {LITERALS}")
