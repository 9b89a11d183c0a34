"""Sheets of more than one view: paired differences, a wide one, a profile, and the one that an experiment is about."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd
from rich.table import Table

from prism_bench.analysis import regime
from prism_bench.analysis.report import tables
from prism_bench.analysis.report.cells import (
    PAIRED,
    Cell,
    Columns,
    Form,
    Sheet,
    bold_caption,
    everywhere,
    human,
    join,
    labels_of,
    scaled,
    seconds,
    sheet_of,
    signed,
    spread,
    with_bold,
    with_share,
)
from prism_bench.analysis.report.rendering import text
from prism_bench.analysis.view import first_table

if TYPE_CHECKING:
    from prism_bench.harness.results import Results

# `Form` and `text` are at home elsewhere; cli/profile.py looks for them here.


def differences(frame: pd.DataFrame, form: Form) -> Sheet:
    """Show paired differences between methods."""
    columns: Columns = {"difference": spread("difference", "std", "n", form.digits, sign=True)}
    others = list(frame["against"].unique())
    against = f"minus {others[0]}'s" if len(others) == 1 else "minus that of the method it is against"
    labels = [*labels_of(frame), *(["against"] if len(others) > 1 else [])]
    return sheet_of(frame, form, columns, [f"Accuracy {against}. {PAIRED}"], labels)


def profile(frame: pd.DataFrame, form: Form) -> Sheet:
    """Show the stages of one round, below each other for each run."""
    labels = labels_of(frame)
    train = frame["stage"] == "train"
    frame = frame.assign(flops=(1e9 * frame["train_gflops"]).where(train), flops_share=frame["peak_share"].where(train))
    columns: Columns = {
        "a round": with_share("seconds", "share", seconds),
        "a client": with_share("seconds_client", "", seconds),
        "a sample": with_share("seconds_sample", "", seconds),
        "FLOP/s": with_share("flops", "flops_share", human),
    }
    used = {name: " or ".join(map(str, frame[name].unique())) for name in ("threads", "at_once", "device", "torch")}
    peak = " to ".join(human(1e9 * each) for each in sorted({frame["peak_gflops"].min(), frame["peak_gflops"].max()}))
    caption = (
        "Seconds of the middle round and share of it in %, by active client and by sample trained; every round "
        "evaluates. FLOP/s: three passes of the counted MACs in the seconds of training, in % of what a matrix product "
        f"reaches ({peak}). Threads {used['threads']}, clients at once {used['at_once']}, {used['device']}, "
        f"torch {used['torch']}."
    )
    sheet = sheet_of(frame, form, columns, [caption], [*labels, "stage"])
    for above, row in zip(sheet.rows[-2::-1], sheet.rows[:0:-1], strict=True):
        if above[: len(labels)] == row[: len(labels)]:
            row[: len(labels)] = [Cell("")] * len(labels)
    return sheet


def wide(frame: pd.DataFrame, form: Form) -> Sheet:
    """Show one row per method and one column per partition and keep ratio, as papers print it."""
    frame = with_bold(frame, form.digits)
    labels = [label for label in labels_of(frame) if label not in ("partition", "keep")]
    places = tables.places(frame)
    several = frame["partition"].nunique() > 1
    names = ["\n".join(place) if several else place[1] for place in places]
    shown = spread("accuracy", "std", "n", form.digits, bold=True)
    found: dict[tuple[str, ...], dict[tuple[str, str], Cell]] = {}
    for row in frame.to_dict("records"):
        cell = shown(row)
        if form.paper and not pd.isna(row.get("paper_accuracy")):
            paper, difference = row["paper_accuracy"], signed(row["paper_difference"], form.digits)
            cell = replace(cell, more=f"paper {paper:.{form.digits}f}, {difference}")
        key = tuple(str(row[label]) for label in labels)
        found.setdefault(key, {})[row["partition"], row["keep"]] = cell
    rows = [[*map(Cell, key), *(cells.get(place, Cell("")) for place in places)] for key, cells in found.items()]
    what = "partition and keep ratio" if several else "keep ratio"
    caption = [f"Accuracy in %, mean ± std (seeds), by {what}.", bold_caption(frame), everywhere(frame, labels)]
    return Sheet(form.title, [*labels, *names], rows, join([*caption, scaled(form)]), len(labels))


def title_of(results: Results) -> str:
    """Say what the results are of, for over a table."""
    name, description = results.about.get("name") or results.folder.name, results.about.get("description")
    return f"{name}: {description}" if description else str(name)


def with_regime(sheet: Sheet, results: Results) -> Sheet:
    """Say below a table in which regime its numbers were made, as far as that is known."""
    return replace(sheet, caption=join([sheet.caption, regime.of_results(results)]))


def show(results: Results, width: int) -> Table:
    """Lay out the table that an experiment is about, for a terminal of that width."""
    own, numbers = first_table(results)
    form = Form(title_of(results), note=results.about.get("note") or "")
    return text(with_regime(own.sheet(numbers, form), results), width)
