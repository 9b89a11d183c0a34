"""Errors that are meant for the person at the keyboard."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BadInput(Exception):
    """Something the user gave can't be used: says what, where, and what would be right. Exit code 2."""


class BadPlugin(BadInput):
    """A plugin breaks its contract: says which, and how. The run can't go on, others can."""


class Diverged(Exception):
    """Local training produced a loss that is not a number: the run can't go on, others can."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A sentence that helps with a misspelt name: the nearest known one, and all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return f"{hint}Known: {', '.join(known) or 'none'}."
