"""``prism-bench check``: has anything slipped since a baseline was recorded?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from prism_bench.base.errors import BadInput
from prism_bench.cli.command import Argument, Exit, Option
from prism_bench.cli.console import check_writable, err_console, escape, out_console

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

LOOKS = {"slipped": "red", "missing": "red", "other": "red", "better": "green", "within": "dim"}
MEANING = {
    "slipped": "worse by more than the tolerance",
    "missing": "no such number in the results",
    "other": "the settings or seeds are not those of the baseline",
    "better": "better by more than the tolerance: --update records it",
    "within": "",
}


def check(
    baseline: Annotated[Path, Argument(help="The recorded numbers, a CSV.")],
    results: Annotated[
        Path | None,
        Argument(help="A results folder, or a file of pytest --benchmark-json.", show_default="results/EXPERIMENT"),
    ] = None,
    update: Annotated[
        bool, Option("--update", help="Record these results as the baseline, instead of comparing.")
    ] = False,
    accuracy: Annotated[str, Option(help="With --update: tolerance of a new accuracy, in points or %.")] = "2",
    costs: Annotated[str, Option(help="With --update: of a new cost.")] = "0.1%",
    time: Annotated[str, Option(help="With --update: of a new ratio of times.")] = "100%",
) -> None:
    """Compare results with a recorded baseline: accuracy, costs, and time as ratios within one run.

    Exits with 0 when all is within its tolerance, 1 when something slipped, 2 when it can't compare. Each row of the
    baseline states its own tolerance; edit it there, --update keeps it.

    [bold]Examples[/bold]

      prism-bench run && prism-bench check mine.csv results/quickstart --update
      prism-bench check mine.csv
      pytest --benchmark-only --benchmark-json=bench.json && prism-bench check speed.csv bench.json
    """
    from prism_bench.analysis import gate
    from prism_bench.base.files import write_csv

    recorded = gate.read(baseline) if baseline.exists() else None
    if recorded is None and not update:
        raise BadInput(
            f"{baseline}: there is no such baseline. prism-bench check {baseline} RESULTS --update records one."
        )
    if results is None:
        if recorded is None or recorded["experiment"].iloc[0] == gate.BENCHMARKS:
            raise BadInput("RESULTS: is needed: a results folder, or a file of pytest --benchmark-json.")
        results = Path("results") / recorded["experiment"].iloc[0]
    tolerances = {"accuracy": accuracy, "costs": costs, "time": time}
    for name, tolerance in tolerances.items():
        gate.allowed(1.0, tolerance, f"--{name}")
    now = gate.numbers_of(results, {**gate.TOLERANCES, **tolerances})
    if recorded is not None and set(recorded["experiment"]) != set(now["experiment"]):
        theirs, ours = recorded["experiment"].iloc[0], now["experiment"].iloc[0]
        raise BadInput(f"{baseline}: is of the experiment '{theirs}', and {results} of '{ours}'.")
    if update:
        check_writable(baseline.parent)
        renewed = gate.renew(now, recorded)
        write_csv(renewed, baseline)
        out_console.print(
            f"{escape(baseline)}: {len(renewed)} numbers of {escape(results)} recorded.",
            highlight=False,
            soft_wrap=True,
        )
        return
    assert recorded is not None
    compared = gate.compare(recorded, now)
    moved = compared[(compared["verdict"] != "within") | (compared["change"] != 0)]
    if not moved.empty:
        out_console.print(_show(moved, f"{results} against {baseline}"))
    counts = compared["verdict"].value_counts()
    for verdict, meaning in MEANING.items():
        if verdict in counts and meaning:
            out_console.print(f"{counts[verdict]} [{LOOKS[verdict]}]{verdict}[/]: {meaning}", highlight=False)
    still = int((compared["change"] == 0).sum())
    out_console.print(f"{counts.get('within', 0)} within tolerance, {still} of them unchanged.", highlight=False)
    more = len(now) - int(compared["now"].notna().sum())
    if more:
        out_console.print(
            f"{more} numbers of the results are not in the baseline: --update adds them.", highlight=False
        )
    if {"missing", "other"} & set(counts.index):
        err_console.print("[red]error[/red]: not all of the baseline can be compared.", highlight=False)
        raise Exit(2)
    if "slipped" in counts:
        raise Exit(1)


def _show(moved: pd.DataFrame, title: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from prism_bench.harness.results import CELL

    shown = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    labels = [
        column for column in CELL if moved[column].nunique() > 1 or (column == "algorithm" and any(moved[column]))
    ]
    for column in (*labels, "metric"):
        shown.add_column(column)
    for column in ("baseline", "now", "change", "allowed"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("")
    for row in moved.to_dict("records"):
        words = [escape(str(row[column])) for column in (*labels, "metric")]
        numbers = [f"{row['value']:.6g}", f"{row['now']:.6g}", f"{row['change']:+.3g}", f"±{row['allowed']:.3g}"]
        shown.add_row(*words, *numbers, f"[{LOOKS[row['verdict']]}]{row['verdict']}[/]")
    return shown
