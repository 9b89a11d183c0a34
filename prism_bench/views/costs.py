"""What a client pays for its part."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from prism_bench.analysis.report import tables
from prism_bench.analysis.report.cells import Cell, Form, Row, Sheet, cost_columns, number, pays, recorded, sheet_of
from prism_bench.analysis.report.plots import (
    Nothing,
    add_legend,
    contexts_of,
    entitle,
    grid,
    key,
    looks_of,
    prepared,
    within,
)
from prism_bench.analysis.view import Picture, Table, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COST_TITLES = {
    "parameters": "parameters of a client",
    "macs": "MACs of a client",
    "activation_bytes": "activation memory of a client",
    "training_bytes": "all memory of a client's training",
    "transfer_bytes": "bytes to and from a client",
}
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]


def sheet(frame: pd.DataFrame, form: Form) -> Sheet:
    """Show what a client pays, as it runs; then the paper's count."""
    columns = cost_columns(frame)
    paper = [cost for cost in tables.PAPER_COSTS if f"paper_{cost}" in frame]
    for cost in paper:
        name, _, unit = cost.partition("_")
        columns[f"{name}, {unit}\nours | paper | difference"] = _beside_paper(cost)
    convention = "Ours beside the paper's: counted in its convention." if paper else ""
    return sheet_of(frame, form, columns, [pays(frame), convention])


def _beside_paper(cost: str) -> Callable[[Row], Cell]:
    """Show our count in the paper's convention | what the paper prints | the difference."""
    ours, theirs = number(f"convention_{cost}", 2), number(f"paper_{cost}", None)
    difference = number(f"difference_{cost}", 2, sign=True)

    def cell(row: Row) -> Cell:
        parts = [part(row) for part in (ours, theirs, difference)]
        if parts[0].value is None and parts[1].value is None:
            return Cell("")
        return Cell(
            " | ".join(part.text or "-" for part in parts),
            value=parts[1].value if parts[0].value is None else parts[0].value,
        )

    return cell


def draw(frame: pd.DataFrame) -> Figure:
    """Draw accuracy against what a client pays, with the Pareto front: equal keep ratios are not equal costs."""
    cells = prepared(tables.table(frame))
    costs = recorded(cells)
    if all(cells[f"{cost}_%"].nunique() < 2 for cost in costs):
        raise Nothing("costs: all cells cost the same, so there is nothing to set their accuracy against.")
    contexts, keeps = contexts_of(cells), list(dict.fromkeys(cells["keep"]))
    looks, markers = looks_of(cells), _cycle(keeps, MARKERS)
    figure, axes = grid(len(costs) * len(contexts), math.ceil(len(costs) / 2) if len(contexts) == 1 else len(costs))
    places = [(context, cost) for context in contexts for cost in costs]
    for (context, cost), panel in zip(places, axes, strict=True):
        here = within(cells, contexts[context])
        front = here.iloc[pareto(here[f"{cost}_%"].tolist(), here["accuracy"].tolist())]
        panel.step(front[f"{cost}_%"], front["accuracy"], where="post", color="#999999", linewidth=1.2, zorder=1)
        for row in here.to_dict("records"):
            panel.errorbar(
                row[f"{cost}_%"],
                row["accuracy"],
                0 if pd.isna(row["std"]) else row["std"],
                fmt=markers[row["keep"]],
                color=looks[row["method"]][0],
                markersize=6,
                elinewidth=1,
                capsize=2,
            )
        panel.set(xscale="log", xlabel=f"{COST_TITLES[cost]}, % of full-model training")
        panel.set_ylabel("final test accuracy, %")
        entitle(panel, context)
        _plain_ticks(panel)
    keys = [key(name, color=looks[name][0], marker="o") for name in dict.fromkeys(cells["method"])]
    keys += [key(f"keep {keep}", color="#777777", marker=markers[keep]) for keep in keeps]
    add_legend(figure, axes, [*keys, key("Pareto front", color="#999999", linestyle="-")])
    return figure


def pareto(costs: Sequence[float], accuracies: Sequence[float]) -> list[int]:
    """Find the points that no other beats, cheapest first: each costs more than the one before it and is more accurate.

    >>> pareto([1, 2, 3, 4], [50, 80, 70, 90])
    [0, 1, 3]
    """
    front: list[int] = []
    known = [i for i in range(len(costs)) if not math.isnan(costs[i]) and not math.isnan(accuracies[i])]
    for i in sorted(known, key=lambda i: (costs[i], -accuracies[i])):
        if not front or accuracies[i] > accuracies[front[-1]]:
            front.append(i)
    return front


def _cycle(names: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    return {name: values[i % len(values)] for i, name in enumerate(names)}


def _plain_ticks(axes: Axes) -> None:
    """Write percents on a log axis as people write them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low > 10 else (1, 1.5, 2, 3, 4, 5, 6, 8)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


VIEW = View(
    heading="Costs of a client",
    table=Table(tables.costs, sheet),
    picture=Picture(
        name="costs",
        draw=draw,
        caption="Final accuracy against what a client pays; grey: the Pareto front. "
        "Equal keep ratios are not equal costs.",
        needs=("accuracy",),
    ),
)
