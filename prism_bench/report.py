"""Runs become tables and a picture."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

CELL = ["data", "model", "partition", "algorithm", "variant", "keep", "settings"]
"""What makes a row of the table: everything but the seed."""

COSTS = ["parameters", "macs", "activation_bytes", "transfer_bytes"]


def table(rounds: pd.DataFrame) -> pd.DataFrame:
    """One row a cell: accuracy after the last round as mean, std and n over the seeds, and what a client pays.

    Accuracies are in %; ``best`` is the best over the rounds. Costs are of one client in one round, each also in % of
    what full-model training costs.
    """
    rounds = _with_text(rounds)
    runs = rounds.sort_values("round", kind="stable").groupby([*CELL, "run"], sort=False)
    summary = runs.last().assign(best=runs["accuracy"].max(), seconds=runs["seconds"].sum())
    cells = summary.groupby(CELL, sort=False)
    columns = {
        "accuracy": cells["accuracy"].mean(),
        "std": cells["accuracy"].std(ddof=1),
        "n": cells["accuracy"].count(),
        **{name: cells[name].mean() for name in ("best", "accuracy_full", "accuracy_trained")},
    }
    for cost in COSTS:
        columns[cost] = cells[cost].mean()
        columns[f"{cost}_%"] = 100 * cells[cost].mean() / cells[f"full_{cost}"].mean()
    columns["seconds"] = cells["seconds"].mean()
    frame: pd.DataFrame = pd.DataFrame(columns).reset_index()
    return frame


def _with_text(rounds: pd.DataFrame) -> pd.DataFrame:
    """Empty text comes back from a CSV as missing, and groupby would drop such rows."""
    texts = {column: rounds[column].astype(object).fillna("").astype(str) for column in CELL}
    whole: pd.DataFrame = rounds.assign(**texts)
    return whole


def show(frame: pd.DataFrame, title: str, width: int) -> Table:
    """A table for a terminal of that width. Labels that are the same in every row are left out."""
    shown = Table(
        title=escape(title), title_justify="left", caption_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    shown.caption = (
        "Accuracy in %, mean ± std (seeds), of the model that the method deploys; full: its whole server model; "
        "trained: only the part that clients train. Costs of one client in one round, and in % of full-model "
        "training: parameters, MACs of one sample's forward pass, activations kept for one batch's backward pass, "
        "bytes sent down and up."
    )
    labels = _labels(frame)
    for column in labels:
        shown.add_column(column)
    for column in ("accuracy", "full", "trained", "params", "MACs", "memory", "bytes"):
        shown.add_column(column, justify="right", no_wrap=True)
    between = " " if width >= 120 else "\n"
    for row in frame.to_dict("records"):
        costs = [f"{human(row[cost])}{between}{row[f'{cost}_%']:.0f}%" for cost in COSTS]
        accuracies = [f"{row['accuracy_full']:.1f}", f"{row['accuracy_trained']:.1f}"]
        shown.add_row(*(escape(str(row[column])) for column in labels), _spread(row), *accuracies, *costs)
    return shown


def _labels(frame: pd.DataFrame) -> list[str]:
    return [column for column in CELL if column == "algorithm" or frame[column].nunique() > 1]


def _spread(row: dict[Hashable, Any]) -> str:
    std = "" if pd.isna(row["std"]) else f" ± {row['std']:.1f}"
    return f"{row['accuracy']:.1f}{std} ({row['n']})"


def human(value: float) -> str:
    """A count with three digits and a unit.

    >>> human(58314), human(905728), human(11.2e6)
    ('58.3k', '906k', '11.2M')
    """
    for unit in ("", "k", "M"):
        if abs(value) < 999.5:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}G"


_LOOKS = [("-", "o"), ("--", "s"), (":", "^"), ("-.", "v")]
"""Line and marker by keep ratio; the colour says the method."""


def plot(rounds: pd.DataFrame, path: Path) -> None:
    """Learning curves, and accuracy against what a client pays: equal keep ratios are not equal costs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    frame = table(rounds)
    labels = _labels(frame)
    rounds = _with_text(rounds).dropna(subset="accuracy")
    methods = {m: f"C{i}" for i, m in enumerate(dict.fromkeys(zip(frame["algorithm"], frame["variant"], strict=True)))}
    looks = {keep: _LOOKS[i % len(_LOOKS)] for i, keep in enumerate(dict.fromkeys(frame["keep"]))}

    figure = Figure(figsize=(12, 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for cell, group in rounds.groupby(labels, sort=False):
        algorithm, variant, keep = (group[column].iloc[0] for column in ("algorithm", "variant", "keep"))
        curve = group.groupby("round")["accuracy"]
        mean, std = curve.mean(), curve.std(ddof=1).fillna(0)
        colour, (line, _) = methods[algorithm, variant], looks[keep]
        name = " ".join(str(part) for part in cell if part)
        left.plot(mean.index, mean, line, color=colour, label=name)
        left.fill_between(mean.index, mean - std, mean + std, color=colour, alpha=0.12, linewidth=0)
    left.set(xlabel="round", ylabel="test accuracy, %", title="Learning curves (band: ± std over seeds)")
    for row in frame.to_dict("records"):
        colour, (_, marker) = methods[row["algorithm"], row["variant"]], looks[row["keep"]]
        spread = 0 if pd.isna(row["std"]) else row["std"]
        name = " ".join(str(row[column]) for column in labels if row[column])
        right.errorbar(row["macs_%"], row["accuracy"], spread, fmt=marker, color=colour, capsize=3, label=name)
    right.set(xscale="log", xlabel="MACs of a client, % of full-model training", ylabel="final test accuracy, %")
    right.set_title("Accuracy against cost (bar: ± std over seeds)")
    right.xaxis.set_major_formatter(ScalarFormatter())
    for axes in (left, right):
        axes.grid(alpha=0.3)
    lines, names = left.get_legend_handles_labels()
    points, _ = right.get_legend_handles_labels()
    pairs: Any = list(zip(lines, points, strict=True))
    figure.legend(pairs, names, loc="outside lower center", ncols=4, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
