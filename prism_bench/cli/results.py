"""``prism-bench table``, ``plot`` and ``report``: results that are there, as tables, pictures and a page."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import click

from prism_bench.base.errors import BadInput, nearest
from prism_bench.cli.command import Argument, Option
from prism_bench.cli.console import err_console, out_console

if TYPE_CHECKING:
    import pandas as pd

    from prism_bench.analysis.report.cells import Sheet
    from prism_bench.analysis.view import Table
    from prism_bench.harness.results import Results


class TableFormat(str, Enum):
    """How a table is written."""

    text = "text"
    csv = "csv"
    markdown = "markdown"
    latex = "latex"


class PictureFormat(str, Enum):
    """How a picture is written."""

    png = "png"
    pdf = "pdf"
    svg = "svg"


ExperimentArgument = Annotated[
    str, Argument(help="An experiment that was run, or a folder of results.", show_default=True)
]
SizeOption = Annotated[str | None, Option(help="Which size of it: paper or scaled.", show_default="what there is")]
OutOption = Annotated[Path | None, Option(help="The folder that it was run into.", show_default="results/EXPERIMENT")]


def table(
    experiment: ExperimentArgument = "quickstart",
    size: SizeOption = None,
    out: OutOption = None,
    form: Annotated[
        TableFormat, Option("--format", help="For the terminal, or to go on with. CSV has full numbers.")
    ] = TableFormat.text,
    show: Annotated[
        str | None,
        Option(
            metavar="VIEW",
            help="accuracy with costs; drops: minus full-model training; costs of a client; clients: what they would "
            "run; time by stage; or an installed view that has a table.",
            show_default="what the experiment is about",
        ),
    ] = None,
    paper: Annotated[bool, Option("--paper", help="The paper's values and the difference to them.")] = False,
    against: Annotated[
        str | None,
        Option(
            metavar="METHOD",
            help="Paired differences to this method under equal seeds: [bold]prism[/bold], or with its variant, "
            "[bold]'prism channels=all'[/bold]; [bold]full[/bold] is full-model training.",
        ),
    ] = None,
    wide: Annotated[
        bool, Option("--wide", help="One row per method, one column per partition and keep ratio.")
    ] = False,
    digits: Annotated[int, Option(min=0, max=6, help="Decimals of accuracies.")] = 1,
    to: Annotated[Path | None, Option(metavar="FILE", help="Write to a file.", show_default="print")] = None,
) -> None:
    """Show an experiment's results as a table: mean ± std (seeds) of its finished runs, the best in bold.

    [bold]Examples[/bold]

      prism-bench table
      prism-bench table quickstart --against prism
      prism-bench table results/mine --format latex --wide --to table.tex
    """
    from prism_bench.analysis.report import places, sheets
    from prism_bench.analysis.view import table_called
    from prism_bench.base.files import as_csv

    if against is not None and (show or wide or paper):
        raise BadInput("--against: is a table of its own, without --show, --wide and --paper.")
    asked = table_called(show, f"--show {show}") if show is not None else None
    if wide and show not in (None, "accuracy"):
        raise BadInput(f"--wide: is for accuracies, not for {show}.")
    results = find(experiment, size, out)
    runs = finished(results)
    frame, sheet = _made(results, runs, asked, show, paper, against, wide, digits)
    if paper and not any(str(name).startswith("paper_") for name in runs):
        err_console.print("The paper has no values for this experiment.", style="dim")
    if form is not TableFormat.csv:
        sheet = sheets.with_regime(sheet, results)
    if form is TableFormat.text:
        return _print(sheet, to)
    content = as_csv(frame) if form is TableFormat.csv else _written(sheet, form)
    if to is None:
        click.echo(content, nl=False)
    else:
        places.write(to, content)


def plot(
    experiment: ExperimentArgument = "quickstart",
    size: SizeOption = None,
    out: OutOption = None,
    show: Annotated[
        list[str] | None,
        Option(
            metavar="PICTURE",
            help="Which picture, again for more: learning curves; drops against full-model training; accuracy against "
            "costs; clients: what those of each capacity would run; time by stage; rank over the rounds; sampling of "
            "the kernels; features that they see; parts, the sub-models that clients are sent, beside the full model; "
            "or that of an installed view.",
            show_default="what the experiment is about",
        ),
    ] = None,
    form: Annotated[PictureFormat, Option("--format", help="For a screen, or for a paper.")] = PictureFormat.png,
    to: Annotated[Path | None, Option(metavar="FOLDER", help="Where to.", show_default="the results")] = None,
) -> None:
    """Draw an experiment's results; writes one file per picture and says where.

    [bold]Examples[/bold]

      prism-bench plot
      prism-bench plot quickstart --show costs --show drops --format pdf --to figures
    """
    from prism_bench.analysis.report import write_pictures
    from prism_bench.analysis.view import picture_called

    for name in show or ():
        picture_called(name, f"--show {name}")
    results = find(experiment, size, out)
    finished(results)
    files = write_pictures(results, to or results.folder, show, form.value)
    if not files:
        raise BadInput(f"{results.folder}: there is nothing to draw.")
    for file in files:
        out_console.print(f"  {file}", markup=False, highlight=False, soft_wrap=True)


def report(
    experiments: Annotated[
        list[str] | None,
        Argument(
            metavar="EXPERIMENT...",
            help="Experiments that were run, or folders of results.",
            show_default="all in ./results",
        ),
    ] = None,
    size: SizeOption = None,
    to: Annotated[Path, Option(metavar="FILE", help="The page.")] = Path("report.html"),
) -> None:
    """Make one HTML page of results: tables to sort, pictures, settings, costs, environment. It needs nothing else.

    [bold]Examples[/bold]

      prism-bench report
      prism-bench report quickstart results/mine --to mine.html
    """
    from prism_bench.analysis.report import write_report

    found = [find(experiment, size) for experiment in experiments or ()]
    file = write_report(found or None, to)
    out_console.print(f"  {file}", markup=False, highlight=False, soft_wrap=True)


def find(experiment: str, size: str | None = None, out: Path | None = None) -> Results:
    """Find an experiment's results: where ``out`` says, else in the folder of that name, else below ``results``."""
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
    if size is not None:
        # Imported only here, where there is nothing to show: it brings torch.
        from prism_bench.harness.experiment import Size

        if size not in get_args(Size):
            raise BadInput(f"--size {size}: there is no such size. {nearest(size, get_args(Size))}")
    there = ", ".join(folder.name for folder in every_folder())
    raise BadInput(
        f"{experiment}: there are no results of it; looked in {', '.join(map(str, places[1:]))}. "
        + (f"There are: {there}." if there else f"'prism-bench run {name}' makes some.")
    )


def _name_in(file: Path) -> str:
    """Read what an experiment's file calls it, else the file's own name."""
    import yaml

    from prism_bench.base.yaml_text import parse

    try:
        given = parse(file.read_text("utf-8"))["name"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return file.stem
    return str(given)


def finished(results: Results) -> pd.DataFrame:
    """Read the finished runs; says on stderr when there are others to come."""
    runs = results.runs()
    state = f"{len(runs)} of {results.expected} runs are done"
    goes_on = results.about.get("command") or f"prism-bench run {results.about.get('name', results.folder.name)}"
    if runs.empty:
        raise BadInput(f"{results.folder}: no run is finished yet. '{goes_on}' goes on.")
    if results.missing:
        err_console.print(f"{state}: {goes_on} goes on.", markup=False, highlight=False, soft_wrap=True)
    return runs


def _made(
    results: Results,
    runs: pd.DataFrame,
    asked: Table | None,
    show: str | None,
    paper: bool,
    against: str | None,
    wide: bool,
    digits: int,
) -> tuple[pd.DataFrame, Sheet]:
    """Make the numbers that were asked for, and how they are read."""
    from prism_bench.analysis.report import sheets, tables
    from prism_bench.analysis.report.cells import Form
    from prism_bench.analysis.view import first_table

    form = Form(sheets.title_of(results), paper, digits, results.about.get("note") or "")
    if against is not None:
        frame = tables.differences(runs, None if against == "full" else against)
        if frame.empty:
            raise BadInput(f"--against {against}: the results have no other method to compare with it.")
        return frame, sheets.differences(frame, form)
    if wide:
        return tables.wide(runs), sheets.wide(tables.table(runs), form)
    if asked is None:
        own, numbers = first_table(results)
        return numbers, own.sheet(numbers, form)
    frame = asked.read(results)
    if frame.empty:
        raise BadInput(f"{show}: the results have nothing of the kind.")
    numbers = asked.numbers(frame)
    return numbers, asked.sheet(numbers, form)


def _print(sheet: Sheet, to: Path | None) -> None:
    """Print for a person: on the terminal; as the same text in a file or a pipe, where nothing needs to be folded."""
    from io import StringIO

    from rich.console import Console

    from prism_bench.analysis.report import places, rendering

    if to is None and out_console.is_terminal:
        return out_console.print(rendering.text(sheet, out_console.width))
    console = Console(file=StringIO(), width=1000, record=True)
    console.print(rendering.text(sheet, console.width))
    text = "".join(f"{line.rstrip()}\n" for line in console.export_text().splitlines())
    if to is None:
        click.echo(text, nl=False)
    else:
        places.write(to, text)


def _written(sheet: Sheet, form: TableFormat) -> str:
    from prism_bench.analysis.report import rendering

    return rendering.latex(sheet) if form is TableFormat.latex else rendering.markdown(sheet)
