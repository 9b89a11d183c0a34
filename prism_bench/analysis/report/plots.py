"""Frames become pictures. Each is a matplotlib Figure of its own: nothing global is touched, no screen is needed."""

from __future__ import annotations

import io
import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from prism_bench.analysis.report.places import write
from prism_bench.analysis.report.tables import CONTEXT, TRAINING, methods, table, times
from prism_bench.base import registry
from prism_bench.base.errors import BadInput
from prism_bench.harness.results import CELL, COSTS, with_text

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
STAGE_COLOURS = dict(zip(TRAINING, ("#88CCEE", "#332288", "#DDCC77", "#CC6677"), strict=True))
LINES = ["-", "--", "-.", ":"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
COST_TITLES = dict(
    zip(
        COSTS,
        ("parameters of a client", "MACs of a client", "activation memory of a client", "bytes to and from a client"),
        strict=True,
    )
)
DPI = 130


class Nothing(BadInput):
    """The results have nothing that such a picture could show."""


def curves(rounds: pd.DataFrame) -> Figure:
    """Learning curves: mean over the seeds, and a band of one std. A panel a keep ratio and context."""
    rounds = _prepared(rounds).dropna(subset="accuracy")
    if rounds.empty:
        raise Nothing("curves: no round was evaluated.")
    contexts, keeps = _contexts(rounds), _keeps(rounds)
    panels = [(context, keep) for keep in keeps for context in contexts]
    columns = len(contexts) if 1 < len(contexts) <= 4 else 2 if len(panels) == 4 else min(3, len(panels))
    figure, axes = _grid(len(panels), columns, sharey=True)
    looks = _looks(rounds)
    for (context, keep), panel in zip(panels, axes, strict=True):
        here = _in(rounds, contexts[context])
        for method, group in here[(here["keep"] == keep) | ~here["cuts"]].groupby("method", sort=False):
            by_round = group.groupby("round")["accuracy"]
            mean, std = by_round.mean(), by_round.std(ddof=1).fillna(0)
            colour, line = looks[str(method)]
            panel.plot(mean.index, mean, linestyle=line, color=colour, label=method, linewidth=1.6)
            if std.any():
                panel.fill_between(mean.index, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
        _title(panel, context, f"keep ratio {keep}" if len(keeps) > 1 or keep != "1" else "")
        panel.set_xlabel("round")
    for first in axes[::columns]:
        first.set_ylabel("test accuracy, %")
    _legend(figure, axes)
    return figure


def costs(frame: pd.DataFrame) -> Figure:
    """Accuracy against what a client pays, with the Pareto front: equal keep ratios are not equal costs."""
    cells = _prepared(table(frame))
    if all(cells[f"{cost}_%"].nunique() < 2 for cost in COSTS):
        raise Nothing("costs: all cells cost the same, so there is nothing to set their accuracy against.")
    contexts, keeps = _contexts(cells), list(dict.fromkeys(cells["keep"]))
    looks, markers = _looks(cells), _cycle(keeps, MARKERS)
    figure, axes = _grid(4 * len(contexts), columns=2 if len(contexts) == 1 else 4)
    places = [(context, cost) for context in contexts for cost in COSTS]
    for (context, cost), panel in zip(places, axes, strict=True):
        here = _in(cells, contexts[context])
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
        _title(panel, context)
        _plain_ticks(panel)
    keys = [_key(name, color=looks[name][0], marker="o") for name in dict.fromkeys(cells["method"])]
    keys += [_key(f"keep {keep}", color="#777777", marker=markers[keep]) for keep in keeps]
    _legend(figure, axes, [*keys, _key("Pareto front", color="#999999", linestyle="-")])
    return figure


def pareto(costs: Sequence[float], accuracies: Sequence[float]) -> list[int]:
    """The points that no other beats, cheapest first: each costs more than the one before it and is more accurate.

    >>> pareto([1, 2, 3, 4], [50, 80, 70, 90])
    [0, 1, 3]
    """
    front: list[int] = []
    known = [i for i in range(len(costs)) if not math.isnan(costs[i]) and not math.isnan(accuracies[i])]
    for i in sorted(known, key=lambda i: (costs[i], -accuracies[i])):
        if not front or accuracies[i] > accuracies[front[-1]]:
            front.append(i)
    return front


def drops(frame: pd.DataFrame) -> Figure:
    """Accuracy minus full-model training's under equal seeds, as bars by keep ratio and method; line: std."""
    cells = _prepared(table(frame))
    looks = _looks(cells)
    cells = cells[cells["cuts"] & cells["drop"].notna()]
    if cells.empty:
        raise Nothing("drops: no run has full-model training (an algorithm that cuts nothing) of the same seed.")
    panels = _contexts(cells, ["data", "model", "partition"])
    beside = [label for label in ("keep", "settings") if cells[label].nunique() > 1] or ["keep"]
    cells = cells.assign(group=[textwrap.fill(" ".join(row), 18) for row in cells[beside].itertuples(index=False)])
    groups, names = list(dict.fromkeys(cells["group"])), list(dict.fromkeys(cells["method"]))
    width = 0.8 / len(names)
    wide = 1.0 + 0.06 * len(groups) * len(names) if len(panels) == 1 else 1.2
    figure, axes = _grid(len(panels), columns=min(3, len(panels)), wide=wide)
    paper = "paper_drop" in cells and cells["paper_drop"].notna().any()
    for context, panel in zip(panels, axes, strict=True):
        here = _in(cells, panels[context])
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
        _title(panel, context)
        panel.grid(visible=False, axis="x")
    keys = [_key(name, color=looks[name][0], marker="s", markersize=8) for name in names]
    paper_key = _key("paper", color="black", marker="D", markerfacecolor="white", markersize=5)
    _legend(figure, axes, [*keys, *([paper_key] if paper else [])])
    return figure


def time(frame: pd.DataFrame) -> Figure:
    """Where a round's time goes: each stage's share, ours and the paper's."""
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
    figure, [panel] = _grid(1, columns=1, wide=1.8, high=0.25 + 0.08 * len(bars))
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
    panel.set(xlim=(0, 108), xlabel="share of a round of training, % (right: seconds a round)")
    panel.set_xticks(range(0, 101, 20))
    panel.grid(visible=False, axis="y")
    _legend(figure, [panel])
    return figure


def sampling(probe: pd.DataFrame) -> Figure:
    """How many clients hold each principal kernel in a round, in the mean: large singular values first."""
    probe = _probed(probe, "sampling")
    probe = probe.assign(kernels=probe.groupby(["model", "layer"], sort=False)["kernel"].transform("max") + 1)
    return _by_layer(probe, "kernel", "clients", "principal kernel, by falling σ", "clients a round")


def rank(probe: pd.DataFrame) -> Figure:
    """How many principal kernels are required (the effective rank) over the rounds, layers of one size together."""
    return _by_layer(_probed(probe, "rank"), "round", "value", "round", "required kernels")


def parts(probe: pd.DataFrame) -> Figure:
    """Accuracy by round of the full model (line) and of sub-models as clients are sent them (dashed)."""
    probe = _probed(probe, "parts")
    places = [(context, keep) for context in _contexts(probe) for keep in _keeps(probe)]
    contexts, looks = _contexts(probe), _looks(probe)
    figure, axes = _grid(len(places), min(len(places), 2), sharey=True)
    for (context, keep), panel in zip(places, axes, strict=True):
        here = _in(probe, contexts[context])
        for method, group in here[here["keep"] == keep].groupby("method", sort=False):
            colour, _ = looks[str(method)]
            for column, line in (("accuracy_full", "-"), ("accuracy", "--")):
                mean = group.groupby("round")[column].mean()
                label = method if line == "-" else None
                panel.plot(mean.index, mean, linestyle=line, color=colour, label=label, linewidth=1.6)
        _title(panel, context, f"keep ratio {keep}")
        panel.set(xlabel="round", ylabel="test accuracy, %")
    keys = [_key(name, color=looks[name][0], linestyle="-") for name in dict.fromkeys(probe["method"])]
    keys += [
        _key("full model", color="#777777", linestyle="-"),
        _key("its sub-models", color="#777777", linestyle="--"),
    ]
    _legend(figure, axes, keys)
    return figure


def _parts_of(results: Results) -> pd.DataFrame:
    probe = results.probe("parts")
    if probe.empty:
        return probe
    return probe[probe["cuts"].astype(bool)].merge(
        results.rounds()[["run", "round", "accuracy_full"]], on=["run", "round"]
    )


def _by_layer(probe: pd.DataFrame, x: str, y: str, xlabel: str, ylabel: str) -> Figure:
    """A row a cell, a panel a layer size, a line a layer."""
    from matplotlib import colormaps

    cells = _contexts(probe, CELL)
    panels = {(cell, size): rows for cell in cells for size, rows in _in(probe, cells[cell]).groupby("kernels")}
    figure, axes = _grid(len(panels), columns=min(len(panels), 2), wide=1.25)
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
        _title(panel, cell, f"layers of {size} kernels")
        panel.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), fontsize=7, frameon=False, handlelength=1.2)
    return figure


def features(probe: pd.DataFrame, layers: int = 3, images: int = 3, kernels: int = 7) -> Figure:
    """What principal kernels see: a row an image and layer, the image itself and then the kernels by falling σ."""
    probe = _probed(probe, "features")
    probe = probe[(probe["run"] == probe["run"].iloc[0]) & (probe["round"] == probe["round"].max())]
    rows = [
        (layer, image)
        for layer in list(dict.fromkeys(probe["layer"]))[:layers]
        for image in sorted(probe["image"].unique())[:images]
    ]
    columns = sorted(probe["kernel"].unique())[: kernels + 1]
    figure, axes = _grid(len(rows) * len(columns), columns=len(columns), wide=0.34, high=0.42)
    by_picture = dict(list(probe.groupby(["layer", "image", "kernel"])))
    for place, panel in enumerate(axes):
        (layer, image), kernel = rows[place // len(columns)], columns[place % len(columns)]
        panel.set_xticks([])
        panel.set_yticks([])
        panel.grid(visible=False)
        panel.spines[:].set_visible(False)
        pixels = by_picture.get((layer, image, kernel))
        if pixels is None:
            panel.set_axis_off()
            continue
        panel.imshow(pixels.pivot(index="y", columns="x", values="value"), cmap="gray", interpolation="nearest")
        if place < len(columns):
            panel.set_title("input" if kernel < 0 else f"kernel {kernel + 1}", fontsize=9)
        if place % len(columns) == 0 and image == rows[0][1]:
            panel.set_ylabel(layer, fontsize=8)
    return figure


# Which picture goes with which results ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A kind of picture."""

    draw: Callable[[pd.DataFrame], Figure]
    read: Callable[[Results], pd.DataFrame]
    """What of an experiment's results it is drawn from."""
    views: tuple[str, ...]
    """Drawn unasked for experiments that show all of these."""
    caption: str


KINDS = {
    "curves": Kind(
        curves,
        lambda results: results.rounds(),
        ("accuracy",),
        "Learning curves: test accuracy by round, mean over the seeds; band: ± std. Black: full-model training.",
    ),
    "drops": Kind(
        drops,
        lambda results: results.runs(),
        ("drops",),
        "Accuracy minus full-model training's of the same seed; line: ± std. Diamonds, where there are: the paper's.",
    ),
    "costs": Kind(
        costs,
        lambda results: results.runs(),
        ("costs", "accuracy"),
        "Final accuracy against what a client pays; grey: the Pareto front. Equal keep ratios are not equal costs.",
    ),
    "time": Kind(
        time,
        lambda results: results.runs(),
        ("time",),
        "Share of each stage in a round of training, and its seconds.",
    ),
    "rank": Kind(
        rank,
        lambda results: results.probe("rank"),
        ("rank",),
        "Principal kernels that are required to approximate each layer (effective rank) over the rounds.",
    ),
    "sampling": Kind(
        sampling,
        lambda results: results.probe("sampling"),
        ("sampling",),
        "Clients that hold each principal kernel in a round, in the mean; kernels by falling singular value.",
    ),
    "features": Kind(
        features,
        lambda results: results.probe("features"),
        ("features",),
        "What principal kernels see: the input, then the features of the kernels by falling singular value.",
    ),
    "parts": Kind(
        parts,
        _parts_of,
        ("parts",),
        "Accuracy of the full model (line) and of the sub-models that clients are sent (dashed) by round.",
    ),
}

SHOWS = ["accuracy", "drops", "costs"]
"""What an experiment shows that does not say so itself."""


def plot(source: Results | pd.DataFrame, kind: str = "curves") -> Figure:
    """A picture of results: of an experiment's, or of a frame (rounds or runs; for a probe's picture, the probe's)."""
    if kind not in KINDS:
        raise BadInput(f"{kind}: there is no such picture. One of: {', '.join(KINDS)}.")
    frame = source if isinstance(source, pd.DataFrame) else KINDS[kind].read(source)
    if frame.empty:
        raise Nothing(f"{kind}: the results have nothing of the kind.")
    return KINDS[kind].draw(frame)


def pictures(source: Results | pd.DataFrame, kinds: Iterable[str] | None = None) -> dict[str, Figure]:
    """The pictures that the results have something for: of the kinds asked for, or of what the experiment shows."""
    shows = SHOWS if isinstance(source, pd.DataFrame) else source.about.get("shows") or SHOWS
    drawn = {}
    for kind in kinds or [kind for kind in KINDS if set(KINDS[kind].views) <= set(shows)]:
        try:
            drawn[kind] = plot(source, kind)
        except Nothing:
            if kinds:
                raise
    return drawn


def write_pictures(
    source: Results | pd.DataFrame, folder: str | Path, kinds: Iterable[str] | None = None, form: str = "png"
) -> list[Path]:
    """Draw into a folder, a file a kind of picture (``curves.png``, ...); returns the files."""
    files = []
    for kind, figure in pictures(source, kinds).items():
        files.append(Path(folder) / f"{kind}.{form}")
        write(files[-1], drawn(figure, form))
    return files


def drawn(figure: Figure, form: str, dpi: int = DPI) -> bytes:
    """A picture as a file's bytes; the same figure gives the same bytes."""
    from matplotlib import rc_context

    undated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    file = io.BytesIO()
    with rc_context({"svg.hashsalt": "prism_bench"}):
        figure.savefig(file, format=form, dpi=dpi, metadata=undated.get(form))
    return file.getvalue()


# What the pictures share ------------------------------------------------------------------------------------------


def _prepared(frame: pd.DataFrame) -> pd.DataFrame:
    frame = with_text(frame)
    cuts: Any = frame["cuts"].fillna(True).astype(bool) if "cuts" in frame else True
    prepared: pd.DataFrame = frame.assign(method=methods(frame), cuts=cuts)
    return prepared


def _probed(probe: pd.DataFrame, name: str) -> pd.DataFrame:
    if probe.empty:
        raise Nothing(f"{name}: the runs recorded nothing of the kind.")
    return _prepared(probe)


def _keeps(frame: pd.DataFrame) -> list[str]:
    """The keep ratios of those that cut: the reference belongs to all of them."""
    return list(dict.fromkeys(frame.loc[frame["cuts"], "keep"])) or list(dict.fromkeys(frame["keep"]))


def _contexts(frame: pd.DataFrame, labels: Sequence[str] = CONTEXT) -> dict[str, dict[str, str]]:
    """What is compared apart: the name of each context, by the labels that differ, and its labels."""
    varied = [label for label in labels if frame[label].nunique() > 1]
    return {
        ", ".join(str(row[label]) for label in varied if row[label]): {label: row[label] for label in varied}
        for row in frame[list(labels)].drop_duplicates().to_dict("records")
    }


def _in(frame: pd.DataFrame, context: dict[str, str]) -> pd.DataFrame:
    for label, value in context.items():
        frame = frame[frame[label] == value]
    return frame


def _looks(frame: pd.DataFrame) -> dict[str, tuple[str, Any]]:
    """Colour and line of each method. An algorithm has the same colour in every picture; its variants get others."""
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


def _cycle(names: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    return {name: values[i % len(values)] for i, name in enumerate(names)}


def _grid(
    panels: int, columns: int, wide: float = 1.0, high: float = 1.0, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels; ``wide`` and ``high`` are a panel's, in units of the usual."""
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


def _title(panel: Axes, context: str, what: str = "") -> None:
    panel.set_title(textwrap.fill(", ".join(part for part in (context, what) if part), 46), fontsize=10)


def _key(label: str, **look: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **({"linestyle": "none"} | look))


def _legend(figure: Figure, axes: Sequence[Axes], keys: Sequence[Any] | None = None) -> None:
    """One legend for all panels, below them: never over the data."""
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


def _plain_ticks(axes: Axes) -> None:
    """Percents on a log axis as people write them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low > 10 else (1, 1.5, 2, 3, 4, 5, 6, 8)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
