"""What a method loses against full-model training."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pandas as pd

from prism_bench.analysis.report import tables
from prism_bench.analysis.report.cells import (
    PAIRED,
    Columns,
    Form,
    Sheet,
    bold_caption,
    number,
    paper_caption,
    sheet_of,
    spread,
    with_bold,
)
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
    from matplotlib.figure import Figure


def sheet(frame: pd.DataFrame, form: Form) -> Sheet:
    """Show accuracy minus full-model training's, as in the paper's figures."""
    frame = with_bold(frame[frame["cuts"]], form.digits)
    columns: Columns = {
        "accuracy": spread("accuracy", "std", "n", form.digits, bold=True),
        "drop": spread("drop", "drop_std", "drop_n", form.digits, sign=True),
    }
    caption = ["Accuracy in %, mean ± std (seeds). Drop: accuracy minus full-model training's.", PAIRED]
    if form.paper and "paper_drop" in frame:
        columns["paper"] = number("paper_drop", form.digits, sign=True)
        columns["difference"] = number("paper_drop_difference", form.digits, sign=True)
        caption.append(paper_caption(frame))
    return sheet_of(frame, form, columns, [*caption, bold_caption(frame)])


def draw(frame: pd.DataFrame) -> Figure:
    """Draw accuracy minus full-model training's under equal seeds, as bars by keep ratio and method; line: std."""
    cells = prepared(tables.table(frame))
    looks = looks_of(cells)
    cells = cells[cells["cuts"] & cells["drop"].notna()]
    if cells.empty:
        raise Nothing("drops: no run has full-model training (an algorithm that cuts nothing) of the same seed.")
    panels = contexts_of(cells, ["data", "model", "partition"])
    beside = [label for label in ("keep", "settings") if cells[label].nunique() > 1] or ["keep"]
    cells = cells.assign(group=[textwrap.fill(" ".join(row), 18) for row in cells[beside].itertuples(index=False)])
    groups, names = list(dict.fromkeys(cells["group"])), list(dict.fromkeys(cells["method"]))
    width = 0.8 / len(names)
    wide = 1.0 + 0.06 * len(groups) * len(names) if len(panels) == 1 else 1.2
    figure, axes = grid(len(panels), columns=min(3, len(panels)), wide=wide)
    paper = "paper_drop" in cells and cells["paper_drop"].notna().any()
    for context, panel in zip(panels, axes, strict=True):
        here = within(cells, panels[context])
        for method, rows in here.groupby("method", sort=False):
            shift = (names.index(str(method)) - (len(names) - 1) / 2) * width
            places = [groups.index(group) + shift for group in rows["group"]]
            panel.bar(places, rows["drop"], 0.92 * width, color=looks[str(method)][0], zorder=2)
            spread = rows["drop_std"].fillna(0)
            panel.errorbar(places, rows["drop"], spread, fmt="none", ecolor="#333333", elinewidth=1.2, zorder=3)
            if paper:
                panel.plot(
                    places, rows["paper_drop"], "D", color="black", markerfacecolor="white", markersize=5, zorder=4
                )
        panel.axhline(0, color="#333333", linewidth=0.8)
        panel.set_xticks(range(len(groups)), groups)
        panel.set_xlabel(", ".join(beside).replace("keep", "keep ratio"))
        panel.set_ylabel("accuracy minus full model's, points")
        entitle(panel, context)
        panel.grid(visible=False, axis="x")
    keys = [key(name, color=looks[name][0], marker="s", markersize=8) for name in names]
    paper_key = key("paper", color="black", marker="D", markerfacecolor="white", markersize=5)
    add_legend(figure, axes, [*keys, *([paper_key] if paper else [])])
    return figure


VIEW = View(
    heading="Drop against full-model training",
    table=Table(tables.table, sheet, worth_showing=lambda numbers: bool(numbers["drop"].notna().any())),
    picture=Picture(
        name="drops",
        draw=draw,
        caption="Accuracy minus full-model training's of the same seed; line: ± std. "
        "Diamonds, where there are: the paper's.",
        vector=True,
    ),
)
