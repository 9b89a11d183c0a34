"""Errors that are meant for the person at the keyboard."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class BadInput(Exception):
    """Something the user gave can't be used: says what, where, and what would be right. Exit code 2."""


class BadPlugin(BadInput):
    """A plugin breaks its contract: says which, and how. The run can't go on, others can."""


class Diverged(Exception):
    """Local training produced a loss that is not a number: the run can't go on, others can."""


_NO_MEMORY = re.compile("Storage size|array is too big|can't allocate memory")
"""What numpy and torch say, beside a MemoryError, where something is too large."""


@contextmanager
def within_memory(where: str) -> Iterator[None]:
    """BadInput where what a setting asks for fits into no memory of this machine."""
    try:
        yield
    except (MemoryError, RuntimeError, ValueError) as error:
        if not isinstance(error, MemoryError) and not _NO_MEMORY.search(str(error)):
            raise
        raise BadInput(f"{where}: takes more memory than this machine has: {error}") from None


def nearest(word: str, known: Iterable[str]) -> str:
    """A sentence that helps with a misspelt name: the nearest known one, and all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return f"{hint}Known: {', '.join(known) or 'none'}."
