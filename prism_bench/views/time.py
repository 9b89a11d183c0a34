"""Where a round's time goes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from prism_bench.analysis.report.cells import Columns, Form, Sheet, seconds, sheet_of, with_share
from prism_bench.analysis.report.plots import Nothing, add_legend, grid
from prism_bench.analysis.report.tables import TRAINING, times
from prism_bench.analysis.view import Picture, Table, View
from prism_bench.harness.results import CELL

if TYPE_CHECKING:
    from matplotlib.figure import Figure


STAGE_COLOURS = dict(zip(TRAINING, ("#88CCEE", "#332288", "#DDCC77", "#CC6677"), strict=True))


def sheet(frame: pd.DataFrame, form: Form) -> Sheet:
    """Show where a round's time goes: seconds and shares of its stages."""
    columns: Columns = {}
    for whose in ("", "paper_"):
        for stage in (*TRAINING, "round", "evaluate"):
            if f"{whose}seconds_{stage}" in frame:
                said = f"{'paper: ' if whose else ''}{stage}"
                columns[said] = with_share(f"{whose}seconds_{stage}", f"{whose}share_{stage}", seconds)
    caption = (
        "Seconds a round, and share of a round of training in %: sub-models created, trained by all clients, merged, "
        "kernels refreshed. Evaluation is the harness's own."
    )
    return sheet_of(frame, form, columns, [caption])


def draw(frame: pd.DataFrame) -> Figure:
    """Draw where a round's time goes: each stage's share, ours and the paper's."""
    cells = times(frame)
    bars = []
    theirs_before: list[float] = []
    labels = [label for label in CELL if label == "algorithm" or cells[label].nunique() > 1]
    for row in cells.to_dict("records"):
        name = " ".join(str(row[label]) for label in labels if row[label])
        bars.append((name, [row.get(f"share_{stage}", math.nan) for stage in TRAINING], row.get("seconds_round")))
        theirs = [row.get(f"paper_share_{stage}", math.nan) for stage in TRAINING]
        if not all(map(math.isnan, theirs)) and theirs != theirs_before:
            bars.append((f"paper: {name}", theirs, row["paper_seconds_round"]))
            theirs_before = theirs
    bars = [bar for bar in bars if not all(map(math.isnan, bar[1]))]
    if not bars:
        raise Nothing("time: no stage was timed.")
    figure, [panel] = grid(1, columns=1, wide=1.8, high=0.25 + 0.08 * len(bars))
    for number, (_, shares, whole) in enumerate(bars):
        left = 0.0
        for stage, share in zip(TRAINING, np.nan_to_num(shares), strict=True):
            label = stage if number == 0 else None
            panel.barh(number, share, 0.7, left=left, color=STAGE_COLOURS[stage], label=label, edgecolor="white")
            if share >= 6:
                ink = "white" if stage == "train" else "black"
                panel.text(left + share / 2, number, f"{share:.0f}%", ha="center", va="center", fontsize=8, color=ink)
            left += share
        panel.text(101, number, f"{whole:.3g} s", va="center", fontsize=8)
    panel.set_yticks(range(len(bars)), [name for name, _, _ in bars])
    panel.set_ylim(len(bars) - 0.4, -0.6)
    panel.set(xlim=(0, 108), xlabel="share of a round of training, % (right: seconds per round)")
    panel.set_xticks(range(0, 101, 20))
    panel.grid(visible=False, axis="y")
    add_legend(figure, [panel])
    return figure


VIEW = View(
    heading="Where the time goes",
    table=Table(times, sheet),
    picture=Picture(
        name="time",
        draw=draw,
        caption="Share of each stage in a round of training, and its seconds.",
        vector=True,
    ),
)
