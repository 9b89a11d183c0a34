"""The models that clients themselves would run, by capacity, and the clients that fare worst."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from prism_bench.analysis.report import tables
from prism_bench.analysis.report.cells import Columns, Form, Sheet, number, paper_caption, sheet_of, spread, with_bold
from prism_bench.analysis.report.plots import Nothing, add_legend, contexts_of, entitle, grid, key, prepared, within
from prism_bench.analysis.view import Picture, Table, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLIENTS = (
    "Accuracy in %: of the model that the server deploys; of the sub-model that a client of each capacity would run "
    "(in the order of the keep ratios); and the mean over the tenth of the clients that fare worst with theirs, on "
    "their own writers' test samples, or else by their label mix."
)
SIZES = "Mean of sizes: of the capacities' accuracies, each counted once, as the publication has it."
MARKS = ["o", "s", "^", "D", "v", "P"]


def heads(frame: pd.DataFrame) -> dict[str, str]:
    """Say what the columns are called: a capacity has its number only where there are several."""
    names = [name for name in tables.by_client(frame) if frame[name].notna().any()]
    numbered = [name for name in names if name != "accuracy_worst"]
    return {
        name: "worst tenth"
        if name == "accuracy_worst"
        else "client"
        if len(numbered) == 1
        else f"client {name.rpartition('_')[2]}"
        for name in names
    }


def sheet(frame: pd.DataFrame, form: Form) -> Sheet:
    """Show the server's model, then what clients would run."""
    frame = with_bold(frame, form.digits)
    columns: Columns = {"accuracy": spread("accuracy", "std", "n", form.digits)}
    columns |= {head: number(name, form.digits) for name, head in heads(frame).items()}
    if not form.paper or "paper_accuracy_sizes" not in frame:
        return sheet_of(frame, form, columns, [CLIENTS])
    columns |= {
        "mean of sizes": number("accuracy_sizes", form.digits),
        "paper": number("paper_accuracy_sizes", form.digits),
        "difference": number("paper_sizes_difference", form.digits, sign=True),
    }
    return sheet_of(frame, form, columns, [CLIENTS, SIZES, paper_caption(frame)])


def draw(frame: pd.DataFrame) -> Figure:
    """Draw a line per method from the worst tenth of the clients to the server's model, with each capacity's on it."""
    cells = prepared(tables.table(frame))
    shown = heads(cells)
    if not shown:
        raise Nothing("clients: these results are older than the accuracy by capacity.")
    panels = contexts_of(cells)
    most = max(len(within(cells, panels[context])) for context in panels)
    figure, axes = grid(len(panels), columns=min(2, len(panels)), wide=1.4, high=max(0.7, 0.09 * most))
    marks = {"accuracy": ("*", "#333333"), "accuracy_worst": ("|", "#aa3377")}
    for number_, name in enumerate(name for name in shown if name != "accuracy_worst"):
        marks[name] = (MARKS[number_ % len(MARKS)], f"C{number_}")
    for context, panel in zip(panels, axes, strict=True):
        rows = within(cells, panels[context])[::-1]
        labels = [f"{row.method} {row.keep}" if row.cuts else row.method for row in rows.itertuples()]
        for place, (_, row) in enumerate(rows.iterrows()):
            values = [row[name] for name in marks if pd.notna(row.get(name))]
            panel.hlines(place, min(values), max(values), color="#bbbbbb", linewidth=1.5, zorder=1)
            for name, (mark, colour) in marks.items():
                if pd.notna(row.get(name)):
                    panel.plot(row[name], place, mark, color=colour, markersize=9 if mark == "*" else 6)
        panel.set_yticks(range(len(rows)), labels)
        panel.set_xlabel("test accuracy, %")
        entitle(panel, context)
    names = {"accuracy": "server", **shown}
    add_legend(figure, axes, [key(names[name], color=colour, marker=mark) for name, (mark, colour) in marks.items()])
    return figure


VIEW = View(
    heading="Accuracy of what clients run",
    table=Table(tables.table, sheet, worth_showing=lambda numbers: bool(heads(numbers))),
    picture=Picture(
        name="clients",
        draw=draw,
        caption="Test accuracy of the server's model, of the sub-model that a client of each capacity would run, and "
        "of the tenth of the clients that fare worst.",
        needs=("accuracy",),
    ),
)
