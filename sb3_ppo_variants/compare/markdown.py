"""Text from records as parts of Markdown, which shows it unchanged."""

import re

# Underscores inside of words do not need to be escaped.
SPECIAL = re.compile(r"[\\`*|<&~]|(?<![^\W_])_|_(?![^\W_])|(?<=\])\(")


def escaped(text: str) -> str:
    """Escape the characters that would format a text, or end the cell of a table."""
    return SPECIAL.sub(r"\\\g<0>", text)


def fenced(text: str) -> str:
    """Return a block of code, with a fence that does not occur in the text."""
    fence = "`" * max([2, *map(len, re.findall("`+", text))]) + "`"
    return f"{fence}\n{text}\n{fence}"
