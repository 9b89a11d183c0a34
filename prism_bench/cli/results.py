"""``prism-bench table``, ``plot`` and ``report``: results that are there, as tables, pictures and a page."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism_bench.base.errors import BadInput
from prism_bench.cli.console import err_console, out_console

if TYPE_CHECKING:
    import pandas as pd

    from prism_bench.analysis.report.sheets import Sheet
    from prism_bench.harness.results import Results


class Format(str, Enum):
    """How a table is written."""

    text = "text"
    csv = "csv"
    markdown = "markdown"
    latex = "latex"


class Size(str, Enum):
    """The two sizes of an experiment."""

    paper = "paper"
    scaled = "scaled"


class Picture(str, Enum):
    """How a picture is written."""

    png = "png"
    pdf = "pdf"
    svg = "svg"


class TableOf(str, Enum):
    """What a table shows."""

    accuracy = "accuracy"
    drops = "drops"
    costs = "costs"
    time = "time"


class PictureOf(str, Enum):
    """What a picture shows."""

    curves = "curves"
    drops = "drops"
    costs = "costs"
    time = "time"
    rank = "rank"
    sampling = "sampling"
    features = "features"
    parts = "parts"


ExperimentArgument = Annotated[
    str, typer.Argument(help="An experiment that was run, or a folder of results.", show_default=True)
]
SizeOption = Annotated[Size | None, typer.Option(help="Which size of it.", show_default="what there is")]
OutOption = Annotated[
    Path | None, typer.Option(help="The folder that it was run into.", show_default="results/EXPERIMENT")
]


def table(
    experiment: ExperimentArgument = "quickstart",
    size: SizeOption = None,
    out: OutOption = None,
    form: Annotated[
        Format, typer.Option("--format", help="For the terminal, or to go on with. CSV has full numbers.")
    ] = Format.text,
    show: Annotated[
        TableOf | None,
        typer.Option(
            help="accuracy with costs; drops: minus full-model training; costs of a client; time by stage.",
            show_default="what the experiment is about",
        ),
    ] = None,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's values and the difference to them.")] = False,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="Paired differences to this method under equal seeds: [bold]prism[/bold], or with its variant, "
            "[bold]'prism channels=all'[/bold]; [bold]full[/bold] is full-model training.",
        ),
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", help="A row a method, a column a partition and keep ratio.")] = False,
    digits: Annotated[int, typer.Option(min=0, max=6, help="Decimals of accuracies.")] = 1,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file.", show_default="print")] = None,
) -> None:
    """Show an experiment's results as a table: mean ± std (seeds) of its finished runs, the best in bold.

    [bold]Examples[/bold]

      prism-bench table
      prism-bench table quickstart --against prism
      prism-bench table results/mine --format latex --wide --to table.tex
    """
    from prism_bench.analysis.report import places as files

    if against is not None and (show or wide or paper):
        raise BadInput("--against: is a table of its own, without --show, --wide and --paper.")
    if wide and show not in (None, TableOf.accuracy):
        raise BadInput(f"--wide: is for accuracies, not for {show.value if show else ''}.")
    results = find(experiment, size.value if size else None, out)
    runs = finished(results)
    frame, sheet = _view(results, runs, show.value if show else None, paper, against, wide, digits)
    if paper and not any(str(name).startswith("paper_") for name in runs):
        err_console.print("The paper has no values for this experiment.", style="dim")
    if form is Format.text:
        return _print(sheet, to)
    content = frame.to_csv(index=False) if form is Format.csv else _written(sheet, form)
    if to is None:
        typer.echo(content, nl=False)
    else:
        files.write(to, content)


def plot(
    experiment: ExperimentArgument = "quickstart",
    size: SizeOption = None,
    out: OutOption = None,
    show: Annotated[
        list[PictureOf] | None,
        typer.Option(
            help="Which picture, again for more: learning curves; drops against full-model training; accuracy against "
            "costs; time by stage; rank over the rounds; sampling of the kernels; features that they see; "
            "parts, the sub-models that clients are sent, beside the full model.",
            show_default="what the experiment is about",
        ),
    ] = None,
    form: Annotated[Picture, typer.Option("--format", help="For a screen, or for a paper.")] = Picture.png,
    to: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where to.", show_default="the results")] = None,
) -> None:
    """Draw an experiment's results; writes a file a picture and says where.

    [bold]Examples[/bold]

      prism-bench plot
      prism-bench plot quickstart --show costs --show drops --format pdf --to figures
    """
    from prism_bench.analysis.report import write_pictures

    results = find(experiment, size.value if size else None, out)
    finished(results)
    kinds = [kind.value for kind in show or ()]
    files = write_pictures(results, to or results.folder, kinds or None, form.value)
    if not files:
        raise BadInput(f"{results.folder}: there is nothing to draw.")
    for file in files:
        out_console.print(f"  {file}", markup=False, highlight=False, soft_wrap=True)


def report(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="EXPERIMENT...",
            help="Experiments that were run, or folders of results.",
            show_default="all in ./results",
        ),
    ] = None,
    size: SizeOption = None,
    to: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("report.html"),
) -> None:
    """Make one HTML page of results: tables to sort, pictures, settings, costs, environment. It needs nothing else.

    [bold]Examples[/bold]

      prism-bench report
      prism-bench report quickstart results/mine --to mine.html
    """
    from prism_bench.analysis.report import write_report

    found = [find(experiment, size.value if size else None) for experiment in experiments or ()]
    file = write_report(found or None, to)
    out_console.print(f"  {file}", markup=False, highlight=False, soft_wrap=True)


def find(experiment: str, size: str | None = None, out: Path | None = None) -> Results:
    """The results of an experiment: where ``out`` says, else in the folder of that name, else below ``results``."""
    from prism_bench.analysis.report.places import every_folder, holds_results
    from prism_bench.harness.results import Results

    if out is not None:
        return Results.open(out)
    name = _name_in(Path(experiment)) if experiment.endswith((".yaml", ".yml")) else experiment
    sizes = [f"-{size}"] if size else ["", "-scaled", "-paper"]
    places = [Path(experiment), *(Path("results") / f"{name}{suffix}" for suffix in sizes)]
    for place in places:
        if holds_results(place):
            return Results.open(place)
    there = ", ".join(folder.name for folder in every_folder())
    raise BadInput(
        f"{experiment}: there are no results of it; looked in {', '.join(map(str, places[1:]))}. "
        + (f"There are: {there}." if there else f"'prism-bench run {name}' makes some.")
    )


def _name_in(file: Path) -> str:
    """What an experiment's file calls it, else the file's own name."""
    import yaml

    try:
        given = yaml.safe_load(file.read_text("utf-8"))["name"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return file.stem
    return str(given)


def finished(results: Results) -> pd.DataFrame:
    """The finished runs; says on stderr when there are others to come."""

    runs = results.runs()
    state = f"{len(runs)} of {results.expected} runs are done"
    goes_on = results.about.get("command") or f"prism-bench run {results.about.get('name', results.folder.name)}"
    if runs.empty:
        raise BadInput(f"{results.folder}: no run is finished yet. '{goes_on}' goes on.")
    if results.missing:
        err_console.print(f"{state}: {goes_on} goes on.", markup=False, highlight=False, soft_wrap=True)
    return runs


def _view(
    results: Results,
    runs: pd.DataFrame,
    show: str | None,
    paper: bool,
    against: str | None,
    wide: bool,
    digits: int,
) -> tuple[pd.DataFrame, Sheet]:
    """The numbers that were asked for, and how they are read."""
    from prism_bench.analysis.report import sheets, tables

    form = sheets.Form(sheets.title_of(results), paper, digits, results.about.get("note") or "")
    if against is not None:
        frame = tables.differences(runs, None if against == "full" else against)
        if frame.empty:
            raise BadInput(f"--against {against}: the results have no other method to compare with it.")
        return frame, sheets.differences(frame, form)
    if wide:
        return tables.wide(runs), sheets.wide(tables.table(runs), form)
    view = sheets.VIEWS[show] if show else sheets.view_of(results.about)
    frame = view.frame(runs)
    return frame, view.sheet(frame, form)


def _print(sheet: Sheet, to: Path | None) -> None:
    """For a person: on the terminal; as the same text in a file or a pipe, where nothing needs to be folded."""
    from io import StringIO

    from rich.console import Console

    from prism_bench.analysis.report import places as files
    from prism_bench.analysis.report import sheets

    if to is None and out_console.is_terminal:
        return out_console.print(sheets.text(sheet, out_console.width))
    console = Console(file=StringIO(), width=1000, record=True)
    console.print(sheets.text(sheet, console.width))
    text = "".join(f"{line.rstrip()}\n" for line in console.export_text().splitlines())
    if to is None:
        typer.echo(text, nl=False)
    else:
        files.write(to, text)


def _written(sheet: Sheet, form: Format) -> str:
    from prism_bench.analysis.report import sheets

    return sheets.latex(sheet) if form is Format.latex else sheets.markdown(sheet)
