"""What somebody else wrote, as it may be shown: short, and without what a terminal would obey."""

from __future__ import annotations

import re
import reprlib
from typing import Any

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 3, 120, 120, 60

LONGEST = 300
"""Characters of a value that is shown."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def short(value: Any) -> str:
    """A value as Python writes it, in a few characters whatever its size.

    >>> short([[1] * 1000] * 1000).startswith("[[1, 1, 1, 1, 1, 1, ...], [1,")
    True
    """
    try:
        said = _SHORT.repr(value)
    except ValueError:  # a number of more digits than Python writes
        said = f"a {type(value).__name__} of very many digits"
    return brief(said)


def brief(text: object) -> str:
    """The text, or its beginning where it is long."""
    said = str(text)
    return said if len(said) <= LONGEST else f"{said[:LONGEST]}..."


def visible(text: str) -> str:
    """The text with control characters written out: an escape sequence would colour, move or retitle a terminal.

    >>> visible("\\x1b[31mred")
    '\\\\x1b[31mred'
    """
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)
