"""Views of modules, through which a backend computes in its own way without changing a user's policy."""

from copy import copy
from typing import TypeVar

from torch import nn

Viewed = TypeVar("Viewed", bound=nn.Module)


def view_of(module: Viewed, **children: nn.Module) -> Viewed:
    """Return a shallow copy of a module with some of its children replaced.

    It shares all parameters and all other children with the module, under the same names. Attributes of the view can
    be changed freely. Changing those of the module for a while instead would leave it changed if an interrupt hit at
    the wrong moment.
    """
    view = copy(module)
    view._modules = {**module._modules, **children}
    return view
