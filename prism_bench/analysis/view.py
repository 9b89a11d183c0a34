"""The contract of views: one way to look at results, from what is recorded of a round to its table and picture."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from prism_bench.base import registry
from prism_bench.base.errors import BadInput, nearest

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from prism_bench.analysis.report.cells import Form, Sheet
    from prism_bench.harness.results import Results

Rows = list[dict[str, Any]]
Record = Callable[[Any, Any], Rows]
"""Of a federation and the round that it has just closed: rows to keep with the round's record."""

SHOWS = ("accuracy", "drops", "costs")
"""What an experiment shows that does not say so itself."""


def of_runs(results: Results) -> pd.DataFrame:
    """Read one row per finished run."""
    return results.runs()


@dataclass(frozen=True)
class Table:
    """A view's table: its numbers, and how they are read."""

    numbers: Callable[[pd.DataFrame], pd.DataFrame]
    """Full numbers, one row per line of the table, of what ``read`` gives."""
    sheet: Callable[[pd.DataFrame, Form], Sheet]
    """The numbers as people read them."""
    read: Callable[[Results], pd.DataFrame] = of_runs
    """What of an experiment's results it is made from; of what the view records, ``results.probe(NAME)``."""
    worth_showing: Callable[[pd.DataFrame], bool] = lambda _: True
    """Whether these numbers belong on a page that nobody asked for this table."""


@dataclass(frozen=True)
class Picture:
    """A view's picture."""

    name: str
    """What its file is called, and what ``prism-bench plot --show`` calls it."""
    draw: Callable[[pd.DataFrame], Figure]
    caption: str
    read: Callable[[Results], pd.DataFrame] = of_runs
    """What of an experiment's results it is drawn from."""
    needs: tuple[str, ...] = ()
    """Other views that an experiment must show too, for this picture to be drawn unasked."""
    vector: bool = False
    """Whether it has few enough points to be put on the page as SVG."""


Part = TypeVar("Part", Table, Picture)


@dataclass(frozen=True)
class View:
    """A view plugin: everything that one way to look at results needs, in one object."""

    heading: str
    record: Record | None = None
    """What to record at each evaluation, where ``evaluation.probes`` asks for it; None: nothing beyond accuracies."""
    at_end: bool = False
    """Whether it is recorded after the last round only."""
    table: Table | None = None
    picture: Picture | None = None


def every_view() -> dict[str, View]:
    """Load all views by name. One that can't be loaded is left out: `prism-bench list` says what is wrong with it."""
    found = {}
    for name in registry.find("views"):
        try:
            found[name] = _load(name)
        except BadInput:
            continue  # somebody else's plugin, which whoever looks at other views doesn't need
    return found


def shown_by(about: Mapping[str, Any]) -> dict[str, View]:
    """Load the views that an experiment is about, in the order of its manifest; left out are those not installed."""
    found = {}
    for name in about.get("shows") or SHOWS:
        if name in registry.find("views"):
            try:
                found[name] = _load(name)
            except BadInput as error:
                warnings.warn(f"left out: {error}", stacklevel=2)
    return found


def tables() -> dict[str, Table]:
    """Find every table by its view's name."""
    return {name: view.table for name, view in every_view().items() if view.table is not None}


def table_called(name: str, where: str) -> Table:
    """Find the table of the view of that name; BadInput where there is none."""
    return _called(name, tables(), f"{where}: there is no such table.")


def tables_of(about: Mapping[str, Any]) -> list[Table]:
    """List the tables that an experiment is about, and last that of accuracies, which every experiment has."""
    own = [view.table for view in shown_by(about).values() if view.table is not None]
    return [*own, table_called("accuracy", "accuracy")]


def first_table(results: Results) -> tuple[Table, pd.DataFrame]:
    """Choose the first table that the experiment is about and that its results have something for; with its numbers."""
    for table in tables_of(results.about):
        frame = table.read(results)
        if not frame.empty:
            break
    return table, table.numbers(frame)


def pictures() -> dict[str, Picture]:
    """Find every picture by its own name. Two of one name are an error that names both views."""
    found: dict[str, Picture] = {}
    owners: dict[str, str] = {}
    for name, view in every_view().items():
        if view.picture is None:
            continue
        other = owners.setdefault(view.picture.name, name)
        if other != name:
            raise BadInput(
                f"Two views call their picture '{view.picture.name}': {other} and {name}. Uninstall one of them."
            )
        found[view.picture.name] = view.picture
    return found


def picture_called(name: str, where: str) -> Picture:
    """Find the picture of that name; BadInput where there is none."""
    return _called(name, pictures(), f"{where}: there is no such picture.")


def _called(name: str, known: Mapping[str, Part], problem: str) -> Part:
    if name not in known:
        _blame(name)
        raise BadInput(f"{problem} {nearest(name, known)}")
    return known[name]


def _load(name: str) -> View:
    view = registry.load("views", name, "views")
    if not isinstance(view, View):
        raise BadInput(f"views: '{name}' ({registry.find('views')[name].value}) is not a View.")
    return view


def _blame(name: str) -> None:
    """Raise what is wrong with the view of that name, where there is one that can't be loaded."""
    if name in registry.find("views"):
        _load(name)
