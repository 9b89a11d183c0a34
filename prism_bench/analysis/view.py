"""The contract of views: one way to look at results, from what is recorded of a round to its table and picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Rows = list[dict[str, Any]]
Record = Callable[[Any, Any], Rows]
"""Of a federation and the round that it has just closed: rows to keep with the round's record."""


@dataclass(frozen=True)
class View:
    """A view plugin: everything that one way to look at results needs, in one object."""

    heading: str
    record: Record | None = None
    """What to record at each evaluation, where ``evaluation.probes`` asks for it; None: nothing beyond accuracies."""
    at_end: bool = False
    """Whether it is recorded after the last round only."""
