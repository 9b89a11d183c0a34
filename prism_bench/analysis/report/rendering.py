"""The same sheet for a terminal, for Markdown, LaTeX and HTML."""

from __future__ import annotations

from collections.abc import Callable
from html import escape as html_escape

from rich import markup
from rich.box import SIMPLE_HEAD
from rich.table import Table

from prism_bench.analysis.report.cells import Cell, Sheet, join
from prism_bench.base.text import visible


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
        title=_plain(sheet.title) or None,
        title_justify="left",
        caption=_plain(sheet.caption + left_out),
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=0 if narrow else (0, 1, 0, 0),
    )
    for number, (column, wide) in enumerate(zip(sheet.columns[:count], _widths(sheet, cells), strict=False)):
        if number < sheet.labels:
            shown.add_column(_plain(column), overflow="fold", min_width=_folded(column, wide))
        else:
            shown.add_column(_plain(column), justify="right", no_wrap=True)
    for row, lines in zip(sheet.rows, cells, strict=True):
        texts = [_plain("\n".join(said)) for said in lines[:count]]
        shown.add_row(*(f"[bold]{said}[/bold]" if cell.bold else said for cell, said in zip(row, texts, strict=False)))
    return shown


def _plain(text: str) -> str:
    """Neither markup nor what a terminal obeys."""
    return markup.escape("\n".join(map(visible, text.split("\n"))))


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
            f"  \\caption{{{_latex_text(join([sheet.title + '.' if sheet.title else '', sheet.caption]))}}}",
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
