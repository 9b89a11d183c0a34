"""Frames become pictures. Each is a matplotlib Figure of its own: nothing global is touched, no screen is needed.

What a view's picture shows is in the view's own file; here is what all of them share.
"""

from __future__ import annotations

import io
import itertools
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from prism_bench.analysis.report.places import write
from prism_bench.analysis.report.tables import CONTEXT, methods
from prism_bench.analysis.view import SHOWS, picture_called, shown_by
from prism_bench.base import registry
from prism_bench.base.errors import BadInput
from prism_bench.harness.results import CELL, with_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from prism_bench.harness.results import Results

# Okabe and Ito's colours, told apart by the colour-blind too, then Tol's; the reference is black.
PALETTE = [
    "#56B4E9", "#E69F00", "#009E73", "#0072B2", "#CC79A7", "#D55E00",
    "#882255", "#999933", "#332288", "#44AA99", "#661100", "#888888",
]  # fmt: skip
REFERENCE = "#000000"
LINES = ["-", "--", "-.", ":"]
DPI = 130


class Nothing(BadInput):
    """The results have nothing that such a picture could show."""


def plot(source: Results | pd.DataFrame, kind: str = "curves") -> Figure:
    """Draw a picture of results: of an experiment's, or of a frame (rounds or runs; for a probe's picture, its own)."""
    picture = picture_called(kind, kind)
    frame = source if isinstance(source, pd.DataFrame) else picture.read(source)
    if frame.empty:
        raise Nothing(f"{kind}: the results have nothing of the kind.")
    return _literal(picture.draw(frame))


def pictures(source: Results | pd.DataFrame, kinds: Iterable[str] | None = None) -> dict[str, Figure]:
    """Draw what the results have something for: the pictures asked for, or those of what the experiment shows."""
    asked = list(kinds or ())
    figures = {}
    for name in asked or unasked({"shows": SHOWS} if isinstance(source, pd.DataFrame) else source.about):
        try:
            figures[name] = plot(source, name)
        except Nothing:
            if asked:
                raise
    return figures


def unasked(about: Mapping[str, Any]) -> list[str]:
    """Name the pictures of the views that an experiment shows, as far as it also shows the views that they need."""
    shown = shown_by(about)
    found = (view.picture for view in shown.values() if view.picture is not None)
    return [picture.name for picture in found if shown.keys() >= set(picture.needs)]


def write_pictures(
    source: Results | pd.DataFrame, folder: str | Path, kinds: Iterable[str] | None = None, form: str = "png"
) -> list[Path]:
    """Draw into a folder, one file per picture (``curves.png``, ...); returns the files."""
    files = []
    for name, figure in pictures(source, kinds).items():
        files.append(Path(folder) / f"{name}.{form}")
        write(files[-1], drawn(figure, form))
    return files


def _literal(figure: Figure) -> Figure:
    """Have a dollar sign in a name be one: as mathematics it may be none, and then nothing can be drawn."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)
    return figure


def drawn(figure: Figure, form: str, dpi: int = DPI) -> bytes:
    """Save a picture as a file's bytes; the same figure gives the same bytes."""
    from matplotlib import rc_context

    undated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    file = io.BytesIO()
    _literal(figure)
    with rc_context({"svg.hashsalt": "prism_bench"}):
        figure.savefig(file, format=form, dpi=dpi, metadata=undated.get(form))
    return file.getvalue()


# What the pictures share ------------------------------------------------------------------------------------------


def prepared(frame: pd.DataFrame) -> pd.DataFrame:
    """Add what pictures go by: each row's ``method``, and whether it ``cuts``."""
    frame = with_text(frame)
    cuts: Any = frame["cuts"].fillna(True).astype(bool) if "cuts" in frame else True
    known: pd.DataFrame = frame.assign(method=methods(frame), cuts=cuts)
    return known


def probed(probe: pd.DataFrame, name: str) -> pd.DataFrame:
    """Prepare what a probe recorded; `Nothing` where it is empty."""
    if probe.empty:
        raise Nothing(f"{name}: the runs recorded nothing of the kind.")
    return prepared(probe)


def keeps_of(frame: pd.DataFrame) -> list[str]:
    """List the keep ratios of those that cut: the reference belongs to all of them."""
    return list(dict.fromkeys(frame.loc[frame["cuts"], "keep"])) or list(dict.fromkeys(frame["keep"]))


def contexts_of(frame: pd.DataFrame, labels: Sequence[str] = CONTEXT) -> dict[str, dict[str, str]]:
    """Find what is compared apart: the name of each context, by the labels that differ, and its labels."""
    varied = [label for label in labels if frame[label].nunique() > 1]
    return {
        ", ".join(str(row[label]) for label in varied if row[label]): {label: row[label] for label in varied}
        for row in frame[list(labels)].drop_duplicates().to_dict("records")
    }


def within(frame: pd.DataFrame, context: dict[str, str]) -> pd.DataFrame:
    """Keep the rows of one context."""
    for label, value in context.items():
        frame = frame[frame[label] == value]
    return frame


def looks_of(frame: pd.DataFrame) -> dict[str, tuple[str, Any]]:
    """Choose each method's colour and line. An algorithm has one colour in all pictures; its variants get others."""
    # Those that come with the package first: an installed plugin changes nobody else's colour.
    points = registry.find("algorithms").items()
    order = [name for name, point in points if point.dist is not None and point.dist.name == "prism-bench"]
    order += [name for name in dict.fromkeys(frame["algorithm"]) if name not in order]
    own = dict(zip(order, itertools.cycle(PALETTE)))
    spare = itertools.cycle([colour for colour in PALETTE if colour not in own.values()] or PALETTE)
    looks: dict[str, tuple[str, Any]] = {}
    variants: dict[str, int] = {}
    for method, algorithm, cuts in dict.fromkeys(zip(frame["method"], frame["algorithm"], frame["cuts"], strict=True)):
        number = variants[algorithm] = variants.get(algorithm, -1) + 1
        if cuts:
            looks[method] = (next(spare) if number else own[algorithm], LINES[number % len(LINES)])
        else:
            looks[method] = (REFERENCE, (0, (4, 1.5)))
    return looks


def grid(
    panels: int, columns: int, wide: float = 1.0, high: float = 1.0, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """Make a figure with so many panels; ``wide`` and ``high`` are a panel's, in units of the usual."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = math.ceil(panels / columns)
    size = (max(5.2, 4.1 * wide * columns), max(1.8, 3.1 * high * rows) + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    every = figure.subplots(rows, columns, squeeze=False, sharey=sharey).flatten().tolist()
    for spare in every[panels:]:
        spare.remove()
    for axes in every[:panels]:
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        axes.xaxis.label.set_size(9)
        axes.yaxis.label.set_size(9)
    return figure, every[:panels]


def entitle(panel: Axes, context: str, what: str = "") -> None:
    """Put a title over a panel: its context, and what else it shows."""
    panel.set_title(textwrap.fill(", ".join(part for part in (context, what) if part), 46), fontsize=10)


def key(label: str, **look: Any) -> Any:
    """Make an entry of a legend: a marker, or a line where ``linestyle`` says so."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **({"linestyle": "none"} | look))


def add_legend(figure: Figure, axes: Sequence[Axes], keys: Sequence[Any] | None = None) -> None:
    """Put one legend for all panels below them: never over the data."""
    if keys is None:
        found: dict[str, Any] = {}
        for panel in axes:
            for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
                found.setdefault(label, handle)
        keys = list(found.values())
    across = max(1, int(figure.get_figwidth() / 1.7))
    figure.legend(
        handles=list(keys), loc="outside lower center", ncols=min(across, len(keys)), fontsize=8, frameon=False
    )


def by_layer(probe: pd.DataFrame, x: str, y: str, xlabel: str, ylabel: str) -> Figure:
    """Draw one row per cell, one panel per layer size, one line per layer."""
    from matplotlib import colormaps

    cells = contexts_of(probe, CELL)
    panels = {(cell, size): rows for cell in cells for size, rows in within(probe, cells[cell]).groupby("kernels")}
    figure, axes = grid(len(panels), columns=min(len(panels), 2), wide=1.25)
    for ((cell, size), here), panel in zip(panels.items(), axes, strict=True):
        layers = list(dict.fromkeys(here["layer"]))
        for number, layer in enumerate(layers):
            # Each seed first, so that the band is over seeds.
            seeds = here[here["layer"] == layer].groupby([x, "seed"])[y].mean().groupby(level=0)
            mean, std = seeds.mean(), seeds.std(ddof=1).fillna(0)
            colour = colormaps["viridis"](0.85 * number / max(1, len(layers) - 1))
            panel.plot(mean.index, mean, color=colour, label=layer, linewidth=1.4)
            if std.any():
                panel.fill_between(mean.index, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
        panel.set(xlabel=xlabel, ylabel=ylabel, ylim=(0, None))
        entitle(panel, cell, f"layers of {size} kernels")
        panel.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), fontsize=7, frameon=False, handlelength=1.2)
    return figure
