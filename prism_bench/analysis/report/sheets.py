"""How results look as tables: what stands in each cell, and the same sheet for a terminal, Markdown, LaTeX and HTML."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from html import escape as html_escape
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich import markup
from rich.box import SIMPLE_HEAD
from rich.table import Table

from prism_bench.analysis.report import tables
from prism_bench.analysis.report.tables import CONTEXT, PAPER_COSTS, TRAINING
from prism_bench.harness.results import CELL, COSTS

if TYPE_CHECKING:
    from prism_bench.harness.results import Results

Row = dict[Hashable, Any]
Columns = dict[str, Callable[[Row], "Cell"]]

COST_NAMES = dict(zip(COSTS, ("params", "MACs", "memory", "bytes"), strict=True))

ACCURACY = (
    "Accuracy in %, mean ± std (seeds), of the model that the method deploys; full: its whole server model; "
    "trained: only the part that clients train."
)
DROP = "Drop: minus full-model training under equal seeds."
PAIRED = "In points of accuracy, under equal seeds: mean ± std (pairs)."
PAYS = (
    "Costs of one client in one round, and in % of full-model training: parameters, MACs of one sample's forward pass, "
    "activations kept for one batch's backward pass, bytes sent down and up."
)
BEST = "Bold: the best of those that cut, at equal data, model, partition, settings and keep ratio."


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table."""

    text: str
    more: str = ""
    """What is said in brackets, or below."""
    value: float | None = None
    """What the column is sorted by; nothing for text."""
    bold: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table as it is read: labels, then numbers."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]
    caption: str
    labels: int
    """How many columns are labels: to the left, and text."""


# What a view shows -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """How a sheet is wanted."""

    title: str = ""
    paper: bool = False
    digits: int = 1
    note: str = ""
    """What was scaled: to be read with the numbers."""


def accuracy(frame: pd.DataFrame, form: Form) -> Sheet:
    """Accuracy and costs of each cell; with the paper's values, those in place of the costs."""
    frame = _with_bold(frame, form.digits)
    columns: Columns = {"accuracy": _spread("accuracy", "std", "n", form.digits, bold=True)}
    dropped = bool(frame["drop"].notna().any())
    if dropped:
        columns["drop"] = _number("drop", form.digits, sign=True)
    columns["full"] = _number("accuracy_full", form.digits)
    columns["trained"] = _number("accuracy_trained", form.digits)
    paper = form.paper and "paper_accuracy" in frame
    if paper:
        columns["paper"] = _spread("paper_accuracy", "paper_std", None, form.digits)
        columns["difference"] = _number("paper_difference", form.digits, sign=True)
    else:
        columns |= _cost_columns()
    beside = _paper_caption(frame) if paper else PAYS
    return _sheet(frame, form, columns, [ACCURACY, DROP if dropped else "", beside, _bold_caption(frame)])


def drops(frame: pd.DataFrame, form: Form) -> Sheet:
    """Accuracy minus full-model training's, as in the paper's figures."""
    frame = _with_bold(frame[frame["cuts"]], form.digits)
    columns: Columns = {
        "accuracy": _spread("accuracy", "std", "n", form.digits, bold=True),
        "drop": _spread("drop", "drop_std", "drop_n", form.digits, sign=True),
    }
    caption = ["Accuracy in %, mean ± std (seeds). Drop: accuracy minus full-model training's.", PAIRED]
    if form.paper and "paper_drop" in frame:
        columns["paper"] = _number("paper_drop", form.digits, sign=True)
        columns["difference"] = _number("paper_drop_difference", form.digits, sign=True)
        caption.append(_paper_caption(frame))
    return _sheet(frame, form, columns, [*caption, _bold_caption(frame)])


def differences(frame: pd.DataFrame, form: Form) -> Sheet:
    """Paired differences between methods."""
    columns: Columns = {"difference": _spread("difference", "std", "n", form.digits, sign=True)}
    others = list(frame["against"].unique())
    against = f"minus {others[0]}'s" if len(others) == 1 else "minus that of the method it is against"
    labels = [*_labels(frame), *(["against"] if len(others) > 1 else [])]
    return _sheet(frame, form, columns, [f"Accuracy {against}. {PAIRED}"], labels)


def costs(frame: pd.DataFrame, form: Form) -> Sheet:
    """What a client pays, as it runs; then the paper's count."""
    columns = _cost_columns()
    paper = [cost for cost in PAPER_COSTS if f"paper_{cost}" in frame]
    for cost in paper:
        name, _, unit = cost.partition("_")
        columns[f"{name}, {unit}\nours | paper | difference"] = _beside_paper(cost)
    convention = "Ours beside the paper's: counted in its convention." if paper else ""
    return _sheet(frame, form, columns, [PAYS, convention])


def time(frame: pd.DataFrame, form: Form) -> Sheet:
    """Where a round's time goes."""
    columns: Columns = {}
    for whose in ("", "paper_"):
        for stage in (*TRAINING, "round", "evaluate"):
            if f"{whose}seconds_{stage}" in frame:
                said = f"{'paper: ' if whose else ''}{stage}"
                columns[said] = _with_share(f"{whose}seconds_{stage}", f"{whose}share_{stage}", seconds)
    caption = (
        "Seconds a round, and share of a round of training in %: sub-models created, trained by all clients, merged, "
        "kernels refreshed. Evaluation is the harness's own."
    )
    return _sheet(frame, form, columns, [caption])


def profile(frame: pd.DataFrame, form: Form) -> Sheet:
    """The stages of one round, below each other for each run."""
    labels = _labels(frame)
    train = frame["stage"] == "train"
    frame = frame.assign(flops=(1e9 * frame["train_gflops"]).where(train), flops_share=frame["peak_share"].where(train))
    columns: Columns = {
        "a round": _with_share("seconds", "share", seconds),
        "a client": _with_share("seconds_client", "", seconds),
        "a sample": _with_share("seconds_sample", "", seconds),
        "FLOP/s": _with_share("flops", "flops_share", human),
    }
    used = {name: " or ".join(map(str, frame[name].unique())) for name in ("threads", "at_once", "device", "torch")}
    peak = " to ".join(human(1e9 * each) for each in sorted({frame["peak_gflops"].min(), frame["peak_gflops"].max()}))
    caption = (
        "Seconds of the middle round and share of it in %, by active client and by sample trained; every round "
        "evaluates. FLOP/s: three passes of the counted MACs in the seconds of training, in % of what a matrix product "
        f"reaches ({peak}). Threads {used['threads']}, clients at once {used['at_once']}, {used['device']}, "
        f"torch {used['torch']}."
    )
    sheet = _sheet(frame, form, columns, [caption], [*labels, "stage"])
    for above, row in zip(sheet.rows[-2::-1], sheet.rows[:0:-1], strict=True):
        if above[: len(labels)] == row[: len(labels)]:
            row[: len(labels)] = [Cell("")] * len(labels)
    return sheet


def wide(frame: pd.DataFrame, form: Form) -> Sheet:
    """A row a method, a column a partition and keep ratio, as papers print it."""
    frame = _with_bold(frame, form.digits)
    labels = [label for label in _labels(frame) if label not in ("partition", "keep")]
    places = tables.places(frame)
    several = frame["partition"].nunique() > 1
    names = ["\n".join(place) if several else place[1] for place in places]
    shown = _spread("accuracy", "std", "n", form.digits, bold=True)
    found: dict[tuple[str, ...], dict[tuple[str, str], Cell]] = {}
    for row in frame.to_dict("records"):
        cell = shown(row)
        if form.paper and not pd.isna(row.get("paper_accuracy")):
            paper, difference = row["paper_accuracy"], _signed(row["paper_difference"], form.digits)
            cell = replace(cell, more=f"paper {paper:.{form.digits}f}, {difference}")
        key = tuple(str(row[label]) for label in labels)
        found.setdefault(key, {})[row["partition"], row["keep"]] = cell
    rows = [[*map(Cell, key), *(cells.get(place, Cell("")) for place in places)] for key, cells in found.items()]
    what = "partition and keep ratio" if several else "keep ratio"
    caption = [f"Accuracy in %, mean ± std (seeds), by {what}.", _bold_caption(frame), _everywhere(frame, labels)]
    return Sheet(form.title, [*labels, *names], rows, _join([*caption, _scaled(form)]), len(labels))


@dataclass(frozen=True)
class View:
    """A way to look at results: numbers, and how they are read."""

    frame: Callable[[pd.DataFrame], pd.DataFrame]
    sheet: Callable[[pd.DataFrame, Form], Sheet]


VIEWS = {
    "accuracy": View(tables.table, accuracy),
    "drops": View(tables.table, drops),
    "costs": View(tables.costs, costs),
    "time": View(tables.times, time),
}


def view_of(about: Mapping[str, Any]) -> View:
    """The first table that an experiment is about."""
    return next(VIEWS[name] for name in (*(about.get("shows") or ()), "accuracy") if name in VIEWS)


def title_of(results: Results) -> str:
    name, description = results.about.get("name") or results.folder.name, results.about.get("description")
    return f"{name}: {description}" if description else str(name)


def show(results: Results, width: int) -> Table:
    """The table that an experiment is about, for a terminal of that width."""
    view = view_of(results.about)
    form = Form(title_of(results), note=results.about.get("note") or "")
    return text(view.sheet(view.frame(results.runs()), form), width)


def _sheet(
    frame: pd.DataFrame, form: Form, columns: Columns, caption: Iterable[str], labels: list[str] | None = None
) -> Sheet:
    labels = _labels(frame) if labels is None else labels
    rows = [
        [*(Cell(str(row[label])) for label in labels), *(cell(row) for cell in columns.values())]
        for row in frame.to_dict("records")
    ]
    said = [*caption, _everywhere(frame, labels), _scaled(form)]
    return Sheet(form.title, [*labels, *columns], rows, _join(said), len(labels))


def _scaled(form: Form) -> str:
    return f"Scaled: {form.note}" if form.note else ""


def _labels(frame: pd.DataFrame) -> list[str]:
    """The labels that differ between rows; the algorithm always."""
    return [label for label in CELL if label == "algorithm" or (label in frame and frame[label].nunique() > 1)]


def _everywhere(frame: pd.DataFrame, labels: Iterable[str]) -> str:
    """What the table leaves out because it is the same in every row."""
    same = [label for label in CELL if label in frame and label not in labels and frame[label].nunique() == 1]
    values = [(label, str(frame[label].iloc[0])) for label in same]
    said = ", ".join(f"keep ratio {value}" if label == "keep" else value for label, value in values if value)
    return f"In all rows: {said}." if said else ""


def _with_bold(frame: pd.DataFrame, digits: int) -> pd.DataFrame:
    """Say which rows are to be bold: the highest accuracy of each contest, and what equals it in the digits shown."""
    shown = frame["accuracy"].map(lambda value: float(f"{value:.{digits}f}")).where(frame["cuts"])
    contests = shown.groupby([frame[label] for label in (*CONTEXT, "keep")])
    marked: pd.DataFrame = frame.assign(bold=(shown == contests.transform("max")) & (contests.transform("count") > 1))
    return marked


def _bold_caption(frame: pd.DataFrame) -> str:
    return BEST if frame["bold"].any() else ""


def _cost_columns() -> Columns:
    return {name: _with_share(cost, f"{cost}_%", human) for cost, name in COST_NAMES.items()}


def _paper_caption(frame: pd.DataFrame) -> str:
    sources = ", ".join(dict.fromkeys(frame["paper_source"].dropna())) if "paper_source" in frame else ""
    where = f" ({sources})" if sources else ""
    return f"Paper: as printed{where}, its drops by subtraction; difference: ours minus the paper's."


def _join(parts: Iterable[str]) -> str:
    return " ".join(part for part in parts if part)


# What a number looks like -----------------------------------------------------------------------------------------


def _spread(
    mean: str, std: str, n: str | None, digits: int, *, sign: bool = False, bold: bool = False
) -> Callable[[Row], Cell]:
    """Mean ± std (n)."""
    number = _number(mean, digits, sign=sign)

    def cell(row: Row) -> Cell:
        start = number(row)
        if start.value is None:
            return start
        spread = "" if pd.isna(row.get(std)) else f" ± {row[std]:.{digits}f}"
        count = "" if n is None else f" ({row[n]:.0f})"
        return replace(start, text=f"{start.text}{spread}{count}", bold=bold and row["bold"])

    return cell


def _number(name: str, digits: int | None, *, sign: bool = False) -> Callable[[Row], Cell]:
    """With so many decimals; none: as it was given."""

    def cell(row: Row) -> Cell:
        value = row.get(name)
        if pd.isna(value):
            return Cell("")
        value = float(value)
        shown = f"{value:g}" if digits is None else _signed(value, digits) if sign else f"{value:.{digits}f}"
        return Cell(shown, value=value)

    return cell


def _beside_paper(cost: str) -> Callable[[Row], Cell]:
    """Our count in the paper's convention | what the paper prints | the difference."""
    ours, theirs = _number(f"convention_{cost}", 2), _number(f"paper_{cost}", None)
    difference = _number(f"difference_{cost}", 2, sign=True)

    def cell(row: Row) -> Cell:
        parts = [part(row) for part in (ours, theirs, difference)]
        if parts[0].value is None and parts[1].value is None:
            return Cell("")
        return Cell(
            " | ".join(part.text or "-" for part in parts),
            value=parts[1].value if parts[0].value is None else parts[0].value,
        )

    return cell


def _with_share(name: str, share: str, shown: Callable[[float], str]) -> Callable[[Row], Cell]:
    """A quantity with its unit, and what share it is."""

    def cell(row: Row) -> Cell:
        value, percent = row.get(name), row.get(share)
        if pd.isna(value):
            return Cell("")
        return Cell(shown(value), "" if pd.isna(percent) else f"{percent:.0f}%", float(value))

    return cell


def _signed(value: float, digits: int) -> str:
    """With its sign, unless nothing but zeros would follow it.

    >>> _signed(1.26, 1), _signed(-0.3, 1), _signed(-0.04, 1)
    ('+1.3', '-0.3', '0.0')
    """
    return f"{value:+.{digits}f}" if round(value, digits) else f"{0:.{digits}f}"


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


def seconds(value: float) -> str:
    """Seconds with three digits, small ones in ms or µs.

    >>> seconds(36.82), seconds(0.0123), seconds(4.56e-5)
    ('36.8 s', '12.3 ms', '45.6 µs')
    """
    if 0 < value < 1e-4:
        return f"{1e6 * value:.3g} µs"
    return f"{value:.3g} s" if value >= 0.1 else f"{1000 * value:.3g} ms"


# The same sheet in each format ------------------------------------------------------------------------------------


def _folded(column: str, width: int) -> int:
    """So many characters a label needs at least; longer ones are folded where there is no room."""
    return max(len(column), min(width, 8))


def text(sheet: Sheet, width: int) -> Table:
    """For a terminal of that width: a narrow one stacks numbers and folds labels, and says what it has no room for."""
    cells = [[[_flat(cell)] for cell in row] for row in sheet.rows]
    narrow = sum(_widths(sheet, cells)) + 2 * len(sheet.columns) + 1 > width
    if narrow:
        cells = [[_stacked(cell) for cell in row] for row in sheet.rows]
    count = _fitting(sheet, _widths(sheet, cells), width) if narrow else len(sheet.columns)
    left_out = f" No room here for the last {len(sheet.columns) - count} columns." if count < len(sheet.columns) else ""
    shown = Table(
        title=markup.escape(sheet.title) or None,
        title_justify="left",
        caption=markup.escape(sheet.caption + left_out),
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=0 if narrow else (0, 1, 0, 0),
    )
    for number, (column, wide) in enumerate(zip(sheet.columns[:count], _widths(sheet, cells), strict=False)):
        if number < sheet.labels:
            shown.add_column(markup.escape(column), overflow="fold", min_width=_folded(column, wide))
        else:
            shown.add_column(markup.escape(column), justify="right", no_wrap=True)
    for row, lines in zip(sheet.rows, cells, strict=True):
        texts = [markup.escape("\n".join(said)) for said in lines[:count]]
        shown.add_row(*(f"[bold]{said}[/bold]" if cell.bold else said for cell, said in zip(row, texts, strict=False)))
    return shown


def _flat(cell: Cell) -> str:
    return f"{cell.text} {cell.more}".rstrip()


def _stacked(cell: Cell) -> list[str]:
    """Mean, spread and what is in brackets, each on a line of its own."""
    mean, _, spread = cell.text.partition(" ± ") if cell.value is not None else (cell.text, "", "")
    return [line for line in (mean, spread and f"± {spread}", cell.more) if line] or [""]


def _widths(sheet: Sheet, cells: list[list[list[str]]]) -> list[int]:
    return [
        max(len(line) for said in [column.split("\n"), *(row[number] for row in cells)] for line in said)
        for number, column in enumerate(sheet.columns)
    ]


def _fitting(sheet: Sheet, widths: list[int], width: int) -> int:
    """How many columns there is room for with labels folded; one number at least."""
    room = width - 1
    for number, (column, needed) in enumerate(zip(sheet.columns, widths, strict=True)):
        room -= 1 + (_folded(column, needed) if number < sheet.labels else needed)
        if room < 0 and number > sheet.labels:
            return number
    return len(widths)


def markdown(sheet: Sheet) -> str:
    """A pipe table, as GitHub and others render it."""
    rows = [
        [_markdown(_header(name)) for name in sheet.columns],
        ["---" if number < sheet.labels else "--:" for number in range(len(sheet.columns))],
        *([_set(cell, _markdown, "**{}**") for cell in row] for row in sheet.rows),
    ]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    heading = [f"**{_markdown(sheet.title)}**", ""] if sheet.title else []
    return "\n".join([*heading, *lines, "", _markdown(sheet.caption), ""])


def latex(sheet: Sheet) -> str:
    """A table for a paper; needs the package booktabs."""
    align = "".join("l" if number < sheet.labels else "r" for number in range(len(sheet.columns)))
    rows = [
        [_set(cell, _latex_text if cell.value is None else _latex_number, "\\textbf{{{}}}") for cell in row]
        for row in sheet.rows
    ]
    lines = [" & ".join(row) + " \\\\" for row in rows]
    return "\n".join(
        [
            "% \\usepackage{booktabs}",
            "\\begin{table}",
            "  \\centering",
            f"  \\caption{{{_latex_text(_join([sheet.title + '.' if sheet.title else '', sheet.caption]))}}}",
            f"  \\begin{{tabular}}{{{align}}}",
            "    \\toprule",
            f"    {' & '.join(_latex_text(_header(name)) for name in sheet.columns)} \\\\",
            "    \\midrule",
            *(f"    {line}" for line in lines),
            "    \\bottomrule",
            "  \\end{tabular}",
            "\\end{table}",
            "",
        ]
    )


def html(sheet: Sheet) -> str:
    """A table that a script can sort: each number says its value."""
    heads = (
        f'<th scope="col"{"" if number < sheet.labels else " class=number"}>{html_escape(_header(name))}</th>'
        for number, name in enumerate(sheet.columns)
    )
    rows = "".join(
        "<tr>" + "".join(_html(cell, number >= sheet.labels) for number, cell in enumerate(row)) + "</tr>\n"
        for row in sheet.rows
    )
    return (
        f'<table class="sheet"><caption>{html_escape(sheet.caption)}</caption>\n'
        f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n{rows}</tbody></table>\n"
    )


def _html(cell: Cell, number: bool) -> str:
    said = html_escape(cell.text)
    said = f"<strong>{said}</strong>" if cell.bold else said
    more = f" <small>{html_escape(cell.more)}</small>" if cell.more else ""
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    return f"<td{' class=number' if number else ''}{value}>{said}{more}</td>"


def _set(cell: Cell, escape: Callable[[str], str], bold: str) -> str:
    said = escape(cell.text)
    return (bold.format(said) if cell.bold else said) + (f" ({escape(cell.more)})" if cell.more else "")


def _markdown(said: str) -> str:
    """Text that stays text: nothing in it starts a column, a tag or an emphasis."""
    for character in "\\`*_{}[]<>|~#":
        said = said.replace(character, f"\\{character}")
    return _one_line(said).replace("&", "&amp;")


_LATEX = {
    "\\": "\\textbackslash{}", "{": "\\{", "}": "\\}", "_": "\\_", "%": "\\%", "&": "\\&", "#": "\\#", "$": "\\$",
    "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "\\textless{}", ">": "\\textgreater{}",
    "|": "\\textbar{}", "±": "$\\pm$", "×": "$\\times$", "−": "$-$", "≤": "$\\leq$",
    "≥": "$\\geq$", "≈": "$\\approx$", "→": "$\\to$", "·": "$\\cdot$", "α": "$\\alpha$", "κ": "$\\kappa$",
    "λ": "$\\lambda$", "ρ": "$\\rho$", "σ": "$\\sigma$", "…": "\\dots{}",
}  # fmt: skip


_LATIN = "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜÝßàáâãäåæçèéêëìíîïñòóôõöøùúûüýÿ"


def _latex_text(said: str) -> str:
    """Text that LaTeX prints as it is. A character that its usual fonts don't have is a question mark, not an error."""
    return "".join(_LATEX.get(c, c if c.isascii() or c in _LATIN else "?") for c in _one_line(said))


def _latex_number(said: str) -> str:
    return _latex_text(said).replace("-", "$-$")


def _header(name: str) -> str:
    return name.replace("\n", ": ")


def _one_line(said: str) -> str:
    return " ".join(said.split())
