"""Results as one HTML page that needs nothing else: no network, no other file, and no script for what it says."""

from __future__ import annotations

import base64
import hashlib
import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_bench.analysis import regime
from prism_bench.analysis.report import plots, sheets, tables
from prism_bench.analysis.report.cells import Form, Sheet
from prism_bench.analysis.report.places import every_folder, write
from prism_bench.analysis.report.rendering import html
from prism_bench.analysis.view import Picture, Table, shown_by
from prism_bench.base.errors import BadInput
from prism_bench.base.settings import flat
from prism_bench.base.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from prism_bench.harness.results import Results


def write_report(results: Iterable[Results | str | Path] | None = None, to: str | Path = "report.html") -> Path:
    """Write the page of these results, given or by their folders; of all in ./results where none are named."""
    from prism_bench.harness.results import Results

    sources = every_folder() if results is None else results
    opened = []
    for source in sources:
        try:
            opened.append(Results.open(source) if isinstance(source, (str, Path)) else source)
        except BadInput as error:
            if results is not None:
                raise
            # Nobody asked for this one by name: the others are worth a page without it.
            warnings.warn(f"left out: {error}", stacklevel=2)
    if not opened:
        raise BadInput("There are no results in ./results. 'prism-bench run' makes some.")
    write(Path(to), page(opened))
    return Path(to)


def page(results: Sequence[Results]) -> str:
    """The page as text; the same results give the same text."""
    style, script = ((resources.files(__package__) / f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    # The browser is told to load nothing and to run this script alone, whatever a label may contain.
    policy = f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    names = [_name(one) for one in results]
    contents = "".join(f'<li><a href="#experiment-{i}">{escape(name)}</a></li>\n' for i, name in enumerate(names, 1))
    sections = "".join(_section(one, f"experiment-{number}") for number, one in enumerate(results, start=1))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>prism_bench: {escape(", ".join(names))}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<a class="skip" href="#results">Skip to the results</a>
<header>
<h1>prism_bench results</h1>
<p>Federated sub-model training, compared like for like. Written by prism_bench {escape(__version__)}.
The head of a column sorts by it.</p>
</header>
<nav aria-label="Contents"><ol>
{contents}</ol></nav>
<main id="results">
{sections}</main>
<script>{script}</script>
</body>
</html>
"""


def _section(results: Results, anchor: str) -> str:
    head = f'<section id="{anchor}">\n<h2>{escape(_name(results))}</h2>\n'
    try:
        body = _about(results) + _shown(results) + _background(results)
    except BadInput as error:
        body = f'<p class="notice">{escape(str(error))}</p>\n'
    return f"{head}{body}</section>\n"


def _about(results: Results) -> str:
    """What it is, what it stands for, and how much of it is done."""
    about, missing = results.about, results.missing
    facts = {
        "Stands for": about.get("reference"),
        "Size": about.get("size"),
        "Scaled": about.get("note"),
        "Regime": regime.of_results(results).removeprefix("Regime: "),
        "Runs": f"{results.expected - len(missing)} of {results.expected} done" if missing else str(results.expected),
        "Folder": str(results.folder),
    }
    parts = [f"<p>{escape(str(about['description']))}</p>\n"] if about.get("description") else []
    parts.append(_list(facts))
    if about.get("command"):
        parts.append(f"<p>Produced by</p>\n<pre><code>{escape(str(about['command']))}</code></pre>\n")
    if missing:
        parts.append(
            f'<p class="notice">{len(missing)} of {results.expected} runs are not finished and not in here.</p>\n'
        )
        items = "".join(f"<li>{escape(str(label))}</li>" for label in missing)
        parts.append(_details("Runs that are not finished", f"<ul>{items}</ul>"))
    return "".join(parts)


def _shown(results: Results) -> str:
    """What the experiment shows: each view's table and picture, and the paired differences."""
    runs = results.runs()
    if runs.empty:
        return '<p class="notice">No run is finished yet.</p>\n'
    figures = plots.pictures(results)
    parts, shown = [], shown_by(results.about)
    for view in shown.values():
        content = _table_of(view.table, results, view.heading) if view.table is not None else ""
        if view.picture is not None and view.picture.name in figures:
            content += _figure(figures[view.picture.name], view.picture)
        if content:
            parts.append(f"<h3>{escape(view.heading)}</h3>\n{content}")
    pairs = tables.every_difference(runs)
    if not pairs.empty and {"accuracy", "drops"} & set(shown):
        sheet = sheets.differences(pairs, Form("Paired differences between methods"))
        parts.append(_details(f"Paired differences between methods ({len(pairs)})", _table(sheet)))
    return "".join(parts)


def _background(results: Results) -> str:
    """Settings and environment."""
    parts = []
    settings = dict(flat(results.about.get("settings") or {}))
    if settings:
        parts.append(_details("Settings", _list(settings)))
    environments = results.environments()
    if environments:
        parts.append(_details("Environment", "".join(_list(environment) for environment in environments)))
    return "".join(parts)


def _name(results: Results) -> str:
    name, size = str(results.about.get("name") or results.folder.name), results.about.get("size")
    return f"{name} ({size})" if size and not name.endswith(f"-{size}") else name


def _list(facts: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<div><dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd></div>\n"
        for key, value in facts.items()
        if value is not None and value != ""
    )
    return f"<dl>\n{rows}</dl>\n"


def _details(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>\n{content}</details>\n"


def _table_of(own: Table, results: Results, heading: str) -> str:
    """A view's table; nothing where the results have nothing for it."""
    frame = own.read(results)
    if frame.empty:
        return ""
    numbers = own.numbers(frame)
    return _table(own.sheet(numbers, Form(heading, paper=True))) if own.worth_showing(numbers) else ""


def _table(sheet: Sheet) -> str:
    # A wide table scrolls by itself, also for those without a mouse.
    label = f'tabindex="0" role="region" aria-label="{escape(sheet.title)}"'
    return f'<div class="scroll" {label}>{html(sheet)}</div>\n'


def _figure(figure: Figure, picture: Picture) -> str:
    caption = escape(picture.caption)
    data = _data(figure, picture.vector)
    return f'<figure><img src="{data}" alt="{caption}"><figcaption>{caption}</figcaption></figure>\n'


def _data(figure: Figure, vector: bool) -> str:
    kind, content = ("svg+xml", plots.drawn(figure, "svg")) if vector else ("png", _fewer_colours(figure))
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _fewer_colours(figure: Figure) -> bytes:
    """A PNG of a third of the usual size, and nobody sees it in a plot."""
    from PIL import Image

    file = io.BytesIO()
    with Image.open(io.BytesIO(plots.drawn(figure, "png"))) as image:
        image.convert("RGB").quantize(64).save(file, "png", optimize=True)
    return file.getvalue()


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
