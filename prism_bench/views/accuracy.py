"""The accuracy of each method, and how it came about over the rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from prism_bench.analysis.report import tables
from prism_bench.analysis.report.cells import (
    Columns,
    Form,
    Sheet,
    bold_caption,
    cost_columns,
    labels_of,
    norm_caption,
    number,
    paper_caption,
    pays,
    sheet_of,
    spread,
    tuned_caption,
    tuned_labels,
    with_bold,
)
from prism_bench.analysis.report.plots import (
    Nothing,
    add_legend,
    contexts_of,
    entitle,
    grid,
    keeps_of,
    looks_of,
    prepared,
    within,
)
from prism_bench.analysis.view import Picture, Table, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ACCURACY = (
    "Accuracy in %, mean ± std (seeds), of the model that the method deploys; full: its whole server model; "
    "trained: only the part that clients train."
)
DROP = "Drop: minus full-model training under equal seeds."


def sheet(frame: pd.DataFrame, form: Form) -> Sheet:
    """Show accuracy and costs of each cell; with the paper's values, those in place of the costs."""
    frame = with_bold(frame, form.digits)
    columns: Columns = {"accuracy": spread("accuracy", "std", "n", form.digits, bold=True)}
    dropped = bool(frame["drop"].notna().any())
    if dropped:
        columns["drop"] = number("drop", form.digits, sign=True)
    columns["full"] = number("accuracy_full", form.digits)
    columns["trained"] = number("accuracy_trained", form.digits)
    paper = form.paper and "paper_accuracy" in frame
    if paper:
        columns["paper"] = spread("paper_accuracy", "paper_std", None, form.digits)
        columns["difference"] = number("paper_difference", form.digits, sign=True)
    else:
        columns |= cost_columns(frame)
    beside = paper_caption(frame) if paper else pays(frame)
    caption = [
        ACCURACY,
        DROP if dropped else "",
        beside,
        norm_caption(frame),
        bold_caption(frame),
        tuned_caption(frame),
    ]
    return sheet_of(frame, form, columns, caption, [*labels_of(frame), *tuned_labels(frame)])


def draw(rounds: pd.DataFrame) -> Figure:
    """Draw learning curves: mean over the seeds, and a band of one std; one panel per keep ratio and context."""
    rounds = prepared(rounds).dropna(subset="accuracy")
    if rounds.empty:
        raise Nothing("curves: no round was evaluated.")
    contexts, keeps = contexts_of(rounds), keeps_of(rounds)
    panels = [(context, keep) for keep in keeps for context in contexts]
    columns = len(contexts) if 1 < len(contexts) <= 4 else 2 if len(panels) == 4 else min(3, len(panels))
    figure, axes = grid(len(panels), columns, sharey=True)
    looks = looks_of(rounds)
    for (context, keep), panel in zip(panels, axes, strict=True):
        here = within(rounds, contexts[context])
        for method, group in here[(here["keep"] == keep) | ~here["cuts"]].groupby("method", sort=False):
            by_round = group.groupby("round")["accuracy"]
            mean, std = by_round.mean(), by_round.std(ddof=1).fillna(0)
            colour, line = looks[str(method)]
            panel.plot(mean.index, mean, linestyle=line, color=colour, label=method, linewidth=1.6)
            if std.any():
                panel.fill_between(mean.index, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
        entitle(panel, context, f"keep ratio {keep}" if len(keeps) > 1 or keep != "1" else "")
        panel.set_xlabel("round")
    for first in axes[::columns]:
        first.set_ylabel("test accuracy, %")
    add_legend(figure, axes)
    return figure


VIEW = View(
    heading="Accuracy",
    table=Table(tables.table, sheet),
    picture=Picture(
        name="curves",
        draw=draw,
        caption="Learning curves: test accuracy by round, mean over the seeds; band: ± std. "
        "Black: full-model training.",
        read=lambda results: results.rounds(),
    ),
)
