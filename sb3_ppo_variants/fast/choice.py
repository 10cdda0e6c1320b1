"""The paths there are."""

from typing import Literal, NamedTuple


class Choice(NamedTuple):
    """The path that a model takes: the reference, or one of the two fast ones."""

    path: Literal["reference", "arrays", "images"]
    why: str
