"""What a table says: sheets and their cells, how they are put together, and what numbers look like in them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from prism_bench.analysis.report.tables import CONTEXT
from prism_bench.base import registry
from prism_bench.base.errors import BadInput
from prism_bench.harness.results import CELL

Row = dict[Hashable, Any]
Columns = dict[str, Callable[[Row], "Cell"]]
"""What stands in each column of numbers, by its head."""

COST_NAMES = {
    "parameters": "params",
    "macs": "MACs",
    "activation_bytes": "memory",
    "training_bytes": "all memory",
    "transfer_bytes": "bytes",
}

PAIRED = "In points of accuracy, under equal seeds: mean ± std (pairs)."
PAYS = (
    "Costs of one client in one round, and in % of full-model training: parameters, MACs of one sample's forward pass, "
    "activations kept for one batch's backward pass, bytes sent down and up."
)
ALL_MEMORY = "All memory: the activations, the parameters, their gradients and what the optimiser keeps."
BEST = "Bold: the best of those that cut, at equal data, model, partition, settings and keep ratio."
BY_BATCH = "Under norm=batch, BatchNorm takes each test batch's own statistics: a sample's result depends on its batch."


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table."""

    text: str
    more: str = ""
    """What is said in brackets, or below."""
    value: float | None = None
    """What the column is sorted by; nothing for text."""
    bold: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table as it is read: labels, then numbers."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]
    caption: str
    labels: int
    """How many columns are labels: to the left, and text."""


@dataclass(frozen=True)
class Form:
    """How a sheet is wanted."""

    title: str = ""
    paper: bool = False
    digits: int = 1
    note: str = ""
    """What was scaled: to be read with the numbers."""


# How a sheet is put together -------------------------------------------------------------------------------------


def sheet_of(
    frame: pd.DataFrame, form: Form, columns: Columns, caption: Iterable[str], labels: list[str] | None = None
) -> Sheet:
    """Put a sheet together, one row per row of the frame: labels (those that differ), then the columns of numbers."""
    labels = labels_of(frame) if labels is None else labels
    rows = [
        [*(Cell(str(row[label])) for label in labels), *(cell(row) for cell in columns.values())]
        for row in frame.to_dict("records")
    ]
    said = [*caption, everywhere(frame, labels), scaled(form)]
    return Sheet(form.title, [*labels, *columns], rows, join(said), len(labels))


def scaled(form: Form) -> str:
    """Say what was scaled, where something was."""
    return f"Scaled: {form.note}" if form.note else ""


def labels_of(frame: pd.DataFrame) -> list[str]:
    """Find the labels that differ between rows; the algorithm always."""
    return [label for label in CELL if label == "algorithm" or (label in frame and frame[label].nunique() > 1)]


def everywhere(frame: pd.DataFrame, labels: Iterable[str]) -> str:
    """Say what the table leaves out because it is the same in every row."""
    same = [label for label in CELL if label in frame and label not in labels and frame[label].nunique() == 1]
    values = [(label, str(frame[label].iloc[0])) for label in same]
    said = ", ".join(f"keep ratio {value}" if label == "keep" else value for label, value in values if value)
    return f"In all rows: {said}." if said else ""


def with_bold(frame: pd.DataFrame, digits: int) -> pd.DataFrame:
    """Say which rows are to be bold: the highest accuracy of each contest, and what equals it in the digits shown."""
    shown = frame["accuracy"].map(lambda value: float(f"{value:.{digits}f}")).where(frame["cuts"])
    contests = shown.groupby([frame[label] for label in (*CONTEXT, "keep")])
    marked: pd.DataFrame = frame.assign(bold=(shown == contests.transform("max")) & (contests.transform("count") > 1))
    return marked


def bold_caption(frame: pd.DataFrame) -> str:
    """Say what bold means, where something is."""
    return BEST if frame["bold"].any() else ""


def norm_caption(frame: pd.DataFrame) -> str:
    """Say that an accuracy depends on the batches of the test, where it does."""
    return BY_BATCH if "model" in frame and any(map(_by_batch, frame["model"].unique())) else ""


def _by_batch(label: str) -> bool:
    """Whether a model normalises by each batch, going by its label: its name and the settings that were given."""
    name, *given = label.split(" ")
    settings = dict(part.split("=", 1) for part in given if "=" in part)
    try:
        fields = registry.load("models", name, "model").model_fields
    except BadInput:
        return False  # results are shown without their plugins, too
    default = fields["norm"].default if "norm" in fields else None
    return bool(settings.get("norm", default) == "batch")


def tuned_labels(frame: pd.DataFrame) -> list[str]:
    """Name the column that says what was chosen on validation data, where something was."""
    return ["tuned"] if "tuned" in frame and frame["tuned"].fillna("").any() else []


def tuned_caption(frame: pd.DataFrame) -> str:
    """Say what was tuned, where something was, and how many tries it had."""
    if not tuned_labels(frame):
        return ""
    said = [text.rpartition("; ") for text in frame["tuned"].fillna("") if text]
    names = dict.fromkeys(one.rpartition(" ")[0] for values, _, _ in said for one in values.split(", "))
    tries = sorted({int(tries.partition(" ")[0]) for _, _, tries in said})
    many = " to ".join(map(str, dict.fromkeys((tries[0], tries[-1]))))
    what = ", ".join("learning rate" if name == "lr" else name for name in names)
    return f"Tuned per method and capacity on validation data: {what}; {many} tries each."


def cost_columns(frame: pd.DataFrame) -> Columns:
    """Show each cost that the results have, and what share it is of full-model training's."""
    return {COST_NAMES[cost]: with_share(cost, f"{cost}_%", human) for cost in recorded(frame)}


def recorded(frame: pd.DataFrame) -> list[str]:
    """List the costs that the results have: older ones have fewer."""
    return [cost for cost in COST_NAMES if cost in frame and frame[cost].notna().any()]


def pays(frame: pd.DataFrame) -> str:
    """Say what the columns of costs are."""
    return join([PAYS, ALL_MEMORY if "training_bytes" in recorded(frame) else ""])


def paper_caption(frame: pd.DataFrame) -> str:
    """Say where the paper's values are from."""
    sources = ", ".join(dict.fromkeys(frame["paper_source"].dropna())) if "paper_source" in frame else ""
    where = f" ({sources})" if sources else ""
    return f"Paper: as printed{where}, its drops by subtraction; difference: ours minus the paper's."


def join(parts: Iterable[str]) -> str:
    """Put sentences behind each other; empty ones don't count."""
    return " ".join(part for part in parts if part)


# What a number looks like -----------------------------------------------------------------------------------------


def spread(
    mean: str, std: str, n: str | None, digits: int, *, sign: bool = False, bold: bool = False
) -> Callable[[Row], Cell]:
    """Show mean ± std (n), each from the column of that name."""
    center = number(mean, digits, sign=sign)

    def cell(row: Row) -> Cell:
        start = center(row)
        if start.value is None:
            return start
        around = "" if pd.isna(row.get(std)) else f" ± {row[std]:.{digits}f}"
        count = "" if n is None else f" ({row[n]:.0f})"
        return replace(start, text=f"{start.text}{around}{count}", bold=bold and row["bold"])

    return cell


def number(name: str, digits: int | None, *, sign: bool = False) -> Callable[[Row], Cell]:
    """Show a number with so many decimals; none: as it was given."""

    def cell(row: Row) -> Cell:
        value = row.get(name)
        if pd.isna(value):
            return Cell("")
        value = float(value)
        shown = f"{value:g}" if digits is None else signed(value, digits) if sign else f"{value:.{digits}f}"
        return Cell(shown, value=value)

    return cell


def with_share(name: str, share: str, shown: Callable[[float], str]) -> Callable[[Row], Cell]:
    """Show a quantity with its unit, and what share it is."""

    def cell(row: Row) -> Cell:
        value, percent = row.get(name), row.get(share)
        if pd.isna(value):
            return Cell("")
        return Cell(shown(value), "" if pd.isna(percent) else f"{percent:.0f}%", float(value))

    return cell


def signed(value: float, digits: int) -> str:
    """Show a number with its sign, unless nothing but zeros would follow it.

    >>> signed(1.26, 1), signed(-0.3, 1), signed(-0.04, 1)
    ('+1.3', '-0.3', '0.0')
    """
    return f"{value:+.{digits}f}" if round(value, digits) else f"{0:.{digits}f}"


def human(value: float) -> str:
    """Show a count with three digits and a unit.

    >>> human(58314), human(905728), human(11.2e6)
    ('58.3k', '906k', '11.2M')
    """
    for unit in ("", "k", "M"):
        if abs(value) < 999.5:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}G"


def seconds(value: float) -> str:
    """Show seconds with three digits, small ones in ms or µs.

    >>> seconds(36.82), seconds(0.0123), seconds(4.56e-5)
    ('36.8 s', '12.3 ms', '45.6 µs')
    """
    if 0 < value < 1e-4:
        return f"{1e6 * value:.3g} µs"
    return f"{value:.3g} s" if value >= 0.1 else f"{1000 * value:.3g} ms"
