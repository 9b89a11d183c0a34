"""A picture of tries: how accuracy on validation data depends on what was tuned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from prism_bench.analysis.report.plots import DPI, LINES, PALETTE, add_legend, drawn, entitle, grid
from prism_bench.harness.results import CELL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = {"keep": "keep ratio "}
SIZE = 4
"""Of a marker in the first rung, and by how much those of each further rung are larger."""


def draw(tries: pd.DataFrame, keys: list[str]) -> bytes:
    """Draw accuracy by learning rate, one panel per cell and one line per choice of the other settings; as PNG.

    The lines are of the first rung, which all tries are in. Rings are of later rungs, larger ones of more rounds; a
    cross at the bottom is a try that came to no end.
    """
    along = "training.lr" if "training.lr" in keys else keys[0]
    others = [key for key in keys if key != along]
    tries = tries.assign(other=[_other(row, others) for row in tries.to_dict("records")])
    every = list(dict.fromkeys(tries["other"]))
    cells = list(tries.groupby(CELL, sort=False))
    differ = [label for label in CELL if tries[label].nunique() > 1 or label == "algorithm"]
    figure, axes = grid(len(cells), min(3, len(cells)))
    for (labels, cell), panel in zip(cells, axes, strict=True):
        said = dict(zip(CELL, labels, strict=True))
        for other, line in cell.groupby("other", sort=False):
            number = every.index(str(other))
            _line(panel, line, along, PALETTE[number % len(PALETTE)], LINES[number // len(PALETTE) % len(LINES)])
        entitle(panel, ", ".join(f"{NAMES.get(label, '')}{said[label]}" for label in differ if said[label]))
        panel.set_xlabel(along)
    for first in axes[:: min(3, len(cells))]:
        first.set_ylabel("validation accuracy, %")
    if any(every):
        add_legend(figure, axes)
    return drawn(figure, "png", DPI)


def _other(row: dict[object, object], keys: list[str]) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {row[key]}" for key in keys if row[key] != "")


def _line(panel: Axes, tries: pd.DataFrame, along: str, colour: str, style: str) -> None:
    """Draw the tries that differ in one setting only."""
    numbers = pd.to_numeric(tries[along], errors="coerce")
    # Words, or a setting that this method doesn't have, stand beside each other.
    x = numbers if numbers.notna().all() else tries[along].replace("", "-")
    if numbers.notna().all() and (numbers > 0).all():
        panel.set_xscale("log")
    tries = tries.assign(x=x)
    first = tries["rung"].min()
    for rung, one in tries[tries["status"] == "done"].groupby("rung"):
        mean = one.groupby("x", sort=False)["accuracy"].mean()
        size = SIZE * (1 + int(str(rung)) - first)
        if rung == first:
            label = str(tries["other"].iloc[0]) or None
            panel.plot(mean.index, mean, marker="o", markersize=size, color=colour, linestyle=style, label=label)
        else:
            panel.plot(mean.index, mean, "o", markersize=size, color=colour, fillstyle="none")
    lost = tries[tries["status"] != "done"]
    if not lost.empty:
        bottom = panel.get_xaxis_transform()
        panel.plot(lost["x"], [0.03] * len(lost), "x", color=colour, transform=bottom, clip_on=False)
