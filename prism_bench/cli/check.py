"""``prism-bench check``: is everything as it was when a baseline was recorded?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from prism_bench.base.errors import BadInput
from prism_bench.cli.command import Argument, Exit, Option
from prism_bench.cli.console import check_writable, err_console, escape, out_console

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

LOOKS = {"within": "dim", "better": "green"}
MEANING = {
    "slipped": "worse than recorded",
    "rounding": "not equal bit for bit, on the machine and torch that recorded it, and no further off than another "
    "machine's: the order of some sum is another one; --update records it",
    "better": "better than recorded: --update records it",
    "new": "not in the baseline: --update adds it",
    "missing": "no such number in the results",
    "other": "the settings or seeds are not those of the baseline",
}
FORMATS = ("text", "json", "junit", "github")
SHOWN = 24
"""Lines of the table at most: where all has moved, the first of them say what."""


def check(
    baseline: Annotated[Path, Argument(help="The recorded numbers, a CSV.")],
    results: Annotated[
        Path | None,
        Argument(help="A results folder, or a file of pytest --benchmark-json.", show_default="results/EXPERIMENT"),
    ] = None,
    update: Annotated[
        bool, Option("--update", help="Record these results as the baseline, instead of comparing.")
    ] = False,
    format: Annotated[str, Option(help="text; for CI systems json, junit or github, on standard output.")] = "text",
    tolerant: Annotated[
        bool, Option("--tolerant", help="As on another machine: within tolerances, where equal was recorded.")
    ] = False,
    rounding: Annotated[
        list[Path] | None,
        Option(help="With --update: results of the same runs with other rounding, to tell the tolerances by."),
    ] = None,
    accuracy: Annotated[str, Option(help="With --update and no --rounding: of an accuracy, in points or %.")] = "2",
    loss: Annotated[str, Option(help="With --update and no --rounding: of a loss.")] = "5%",
    time: Annotated[str, Option(help="With --update: of a new ratio of times.")] = "100%",
    no_times: Annotated[bool, Option("--no-times", help="With --update: leave out ratios of times.")] = False,
) -> None:
    """Compare results with a recorded baseline: accuracies and losses per seed and round, costs, and time as ratios.

    On the machine, torch, numpy and threads that recorded it, numbers must be equal bit for bit; elsewhere each has its
    own tolerance, for both directions. Costs are equal everywhere; times may only get worse by their tolerance. What
    got better fails, too, until it is recorded.

    Exits with 0 when all is as recorded, 1 when something moved, 2 when it can't compare.

    [bold]Examples[/bold]

      prism-bench run && prism-bench check mine.csv results/quickstart --update
      prism-bench check mine.csv
      prism-bench check mine.csv --format junit > gate.xml
      pytest --benchmark-only --benchmark-json=bench.json && prism-bench check speed.csv bench.json
    """
    from prism_bench.analysis import gate
    from prism_bench.base.files import write_csv

    if format not in FORMATS:
        raise BadInput(f"--format {format}: must be one of {', '.join(FORMATS)}.")
    if rounding and not update:
        raise BadInput("--rounding: goes with --update: it decides the tolerances that are recorded.")
    recorded = gate.read(baseline) if baseline.exists() else None
    if recorded is None and not update:
        raise BadInput(
            f"{baseline}: there is no such baseline. prism-bench check {baseline} RESULTS --update records one."
        )
    if results is None:
        if recorded is None or recorded["experiment"].iloc[0] == gate.BENCHMARKS:
            raise BadInput("RESULTS: is needed: a results folder, or a file of pytest --benchmark-json.")
        results = Path("results") / recorded["experiment"].iloc[0]
    tolerances = {"accuracy": accuracy, "loss": loss, "time": time}
    for name, tolerance in tolerances.items():
        gate.allowed(1.0, tolerance, f"--{name}")
    now = gate.numbers_of(results, {**gate.TOLERANCES, **tolerances}, rounding or ())
    if recorded is not None and set(recorded["experiment"]) != set(now["experiment"]):
        theirs, ours = recorded["experiment"].iloc[0], now["experiment"].iloc[0]
        raise BadInput(f"{baseline}: is of the experiment '{theirs}', and {results} of '{ours}'.")
    if update:
        check_writable(baseline.parent)
        renewed = gate.renew(now[~gate.timed(now)] if no_times else now, recorded)
        write_csv(renewed, baseline)
        out_console.print(
            f"{escape(baseline)}: {len(renewed)} numbers of {escape(results)} recorded.",
            highlight=False,
            soft_wrap=True,
        )
        return
    assert recorded is not None
    compared = gate.compare(recorded, now, exact=not tolerant)
    compared = compared[(compared["verdict"] != "new") | gate.fails(compared)]  # times that nobody wants held
    failing = compared[gate.fails(compared)]
    if format == "text":
        _print(compared, failing, f"{results} against {baseline}")
    else:
        from prism_bench.analysis import gate_reports

        print(gate_reports.WRITERS[format](compared, failing, str(baseline), str(results)))
    if {"missing", "other"} & set(failing["verdict"]):
        err_console.print("[red]error[/red]: not all of the baseline can be compared.", highlight=False)
        raise Exit(2)
    if not failing.empty:
        raise Exit(1)


def _print(compared: pd.DataFrame, failing: pd.DataFrame, title: str) -> None:
    from prism_bench.harness.results import CELL

    moved = compared[(compared["verdict"] != "within") | (compared["change"] != 0)]
    first = moved.drop_duplicates([*CELL, "metric"])
    if not first.empty:
        failed = first.index.isin(failing.index)
        out_console.print(_show(first.sort_values("verdict", key=lambda _: ~failed, kind="stable").head(SHOWN), title))
    if len(moved) > min(len(first), SHOWN):
        shown = min(len(first), SHOWN)
        text = f"{shown} of {len(moved)} numbers that moved: the first of a metric. --format json has all."
        out_console.print(text, highlight=False)
    counts = compared["verdict"].value_counts()
    for verdict, meaning in MEANING.items():
        if verdict in counts:
            out_console.print(
                f"{counts[verdict]} [{LOOKS.get(verdict, 'red')}]{verdict}[/]: {meaning}.", highlight=False
            )
    still, exact = int((compared["change"] == 0).sum()), int(compared["exact"].sum())
    out_console.print(
        f"{counts.get('within', 0)} within tolerance, {still} of them unchanged; {exact} had to be.", highlight=False
    )


def _show(moved: pd.DataFrame, title: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from prism_bench.harness.results import CELL

    shown = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    labels = [
        column
        for column in (*CELL, "seed", "round")
        if moved[column].nunique() > 1 or (column == "algorithm" and any(moved[column]))
    ]
    for column in (*labels, "metric"):
        shown.add_column(column)
    for column in ("baseline", "now", "change", "allowed"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("")
    for row in moved.to_dict("records"):
        words = [escape(str(row[column])) for column in (*labels, "metric")]
        numbers = [_number(row["value"]), _number(row["now"]), _number(row["change"], "+.3g")]
        numbers.append(_number(row["allowed"], "±.3g"))
        verdict = row["verdict"]
        shown.add_row(*words, *numbers, f"[{LOOKS.get(verdict, 'red')}]{verdict}[/]")
    return shown


def _number(value: float, form: str = ".6g") -> str:
    """A number, or nothing where there is none."""
    if value != value:
        return ""
    return f"±{value:.3g}" if form.startswith("±") else f"{value:{form}}"
