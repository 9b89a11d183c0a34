"""``prism-bench tune``: settings are chosen on validation data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from prism_bench.base.errors import BadInput
from prism_bench.base.trust import allow
from prism_bench.cli.command import Exit, Option
from prism_bench.cli.console import check_results, err_console, escape, out_console
from prism_bench.cli.display import Display
from prism_bench.cli.options import Device, ToRun, Trust, Yes, parse_overrides
from prism_bench.cli.run import parse_seeds

if TYPE_CHECKING:
    from rich.table import Table

    from prism_bench.harness.experiment import Experiment
    from prism_bench.harness.runner import Outcome
    from prism_bench.harness.tuning import Found, Search


def tune(
    experiment: ToRun,
    set_: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting, as in [bold]run[/bold], or what is tuned: "
            "[bold]--set 'tune.training.lr=\\[0.01,0.03,0.1]'[/bold].",
        ),
    ] = None,
    out: Annotated[
        Path | None, Option(help="Folder for tries and choices.", show_default="results/tune/EXPERIMENT")
    ] = None,
    device: Device = "auto",
    seeds: Annotated[
        str, Option(help="How many seeds a try has, or which: 3, or 0,1,2. Their mean is what counts.")
    ] = "1",
    size: Annotated[
        str | None, Option(help="paper or scaled, where the experiment has both.", show_default="scaled")
    ] = None,
    tries: Annotated[
        int | None,
        Option(
            min=1,
            help="Settings that each method may try at each capacity: the same number for all.",
            show_default="all of those that every method has",
        ),
    ] = None,
    rungs: Annotated[int, Option(min=1, max=10, help="Rungs; after each but the last one half is left.")] = 3,
    rounds: Annotated[
        int | None,
        Option(min=1, help="Rounds of the last rung; each one before has half of them.", show_default="all"),
    ] = None,
    validation: Annotated[
        float | None,
        Option(
            help="Share of the training samples to choose on; a try doesn't train on them.",
            show_default="data.validation, or 0.1",
        ),
    ] = None,
    jobs: Annotated[int, Option(min=1, help="Runs at once, in processes that share the cores.")] = 1,
    accept: Annotated[
        list[str] | None,
        Option(metavar="CODE", help="Count finished runs of that code as done, too, as in [bold]run[/bold]."),
    ] = None,
    trust: Trust = None,
    yes: Yes = False,
    fresh: Annotated[bool, Option("--fresh", help="Run again what an earlier start has finished.")] = False,
) -> None:
    """Choose settings on validation data, for each method and capacity its own, with as many tries for each.

    What is tuned, and the values to try, stand in the experiment's file. A setting of a method is tuned for those
    methods that have it, unless the grid says its value:

      tune:
        training.lr: \\[0.01, 0.03, 0.1]
        training.clip: \\[null, 5]
        algorithm.kappa: \\[2.5, 4]

    All tries train for a quarter of the rounds, the better half of them for half of the rounds, the better half of
    these for all; the accuracy after the last round decides. Test data is never looked at. The choices are written to
    [bold]tuned.yaml[/bold], which [bold]run --tuned[/bold] takes, all tries to tuned.csv and tuned.png. Stopped or
    killed at any moment and started again, it goes on where it was.

    [bold]Examples[/bold]

      prism-bench tune my.yaml --jobs 2
      prism-bench run my.yaml --tuned results/tune/my/tuned.yaml
      prism-bench tune my.yaml --tries 4 --rounds 20 --set 'tune.training.lr=\\[0.03,0.1,0.3]'
    """
    from prism_bench.harness import tuning
    from prism_bench.harness.experiment import MOST_RUNS, Experiment
    from prism_bench.harness.tuned import NOT_TUNED

    if fresh and accept:
        raise BadInput("--accept: is for runs that are kept, and --fresh keeps none.")
    allow(trust or ())
    overrides = parse_overrides(set_ or [], device)
    if overrides.get("evaluation.on", "validation") != "validation":
        raise BadInput("--set evaluation.on: settings are chosen on validation data alone; test data is for `run`.")
    loaded = Experiment.load(
        experiment, overrides, parse_seeds(seeds), size, tuned=NOT_TUNED, most=None if yes else MOST_RUNS
    )
    search = tuning.plan(loaded, tries, rungs, rounds, validation)
    folder = out or Path("results") / "tune" / loaded.name
    check_results(folder)
    _announce(search)

    def carry(rung: Experiment, place: Path) -> Outcome:
        return _carry_out(rung, place, fresh=fresh, jobs=jobs, accept=accept or ())

    found = tuning.tune(search, folder, carry)
    raise Exit(_present(found, folder))


def _announce(search: Search) -> None:
    """Say what is going to be tried."""
    cells, most = search.cells, max(len(cell.tries) for cell in search.cells)
    steps = " → ".join(map(str, cells[0].rounds))
    err_console.print(
        f"{len(cells)} cells, {most} tries each of {escape(', '.join(search.experiment.tune))}; rounds {steps}; "
        f"validation data: {100 * search.validation:g}% of the training samples",
        highlight=False,
        soft_wrap=True,
    )


def _carry_out(rung: Experiment, place: Path, **how: Any) -> Outcome:
    """Carry out one rung, with its progress on the terminal."""
    from prism_bench.harness.runner import carry_out

    with Display(err_console) as display:
        try:
            return carry_out(rung, place, callbacks=[display], isolate=True, **how)
        except KeyboardInterrupt as stop:
            display.stop()
            again = "" if not how["fresh"] else " without --fresh"
            err_console.print(
                f"Stopped in {rung.name}: {display.done} of its {len(rung.runs)} runs are done, and finished rounds of "
                f"the others are kept in {escape(place)}; the same command{again} goes on from there.",
                soft_wrap=True,
            )
            raise Exit(143 if "SIGTERM" in stop.args else 130) from None


def _present(found: Found, folder: Path) -> int:
    """Show what was chosen, write it down, and say what to know of it; the exit code."""
    from prism_bench.analysis.report.tuning_picture import draw
    from prism_bench.base.files import replace
    from prism_bench.harness import tuning

    files = tuning.write(found, folder)
    replace(folder / tuning.PICTURE_NAME, draw(found.tries, list(found.search.experiment.tune)))
    if found.best:
        out_console.print(_table(found))
    for file in (*files, folder / tuning.PICTURE_NAME):
        out_console.print(f"  {escape(file)}", highlight=False, soft_wrap=True)
    for edge in found.edges():
        err_console.print(f"[yellow]at the edge[/yellow] {escape(edge)}: its list should go on.", soft_wrap=True)
    for name in found.fewer():
        err_console.print(f"[dim]{escape(name)} has fewer possible settings than tries: all were tried.[/dim]")
    tries = found.tries
    diverged = (tries["status"] == "diverged").sum()
    if diverged:
        err_console.print(
            f"[dim]{diverged} of {len(tries)} runs diverged, by their settings: tuned.csv says which.[/dim]"
        )
    for error in dict.fromkeys(tries.loc[tries["status"] == "failed", "error"]):
        err_console.print(f"[red]failed[/red], and not by diverging: {escape(error)}", soft_wrap=True)
    for name in found.lost:
        err_console.print(
            f"[red]nothing was found[/red] for {escape(name)}: none of its tries came to the end. Smaller learning "
            "rates, or a training.clip, may help.",
            soft_wrap=True,
        )
    return 1 if found.lost or (tries["status"] == "failed").any() else 0


def _table(found: Found) -> Table:
    """Lay out the choices, one row per cell."""
    from rich.table import Table

    from prism_bench.harness.tuned import shown

    search = found.search
    labels = {number: search.experiment.labels(search.cells[number].runs[0]) for number in found.best}
    differ = [
        name for name in ("data", "model", "partition", "settings") if len({one[name] for one in labels.values()}) > 1
    ]
    table = Table(title=f"{search.experiment.name}: chosen on validation data", title_justify="left", box=None)
    for name in (*differ, "method", "keep"):
        table.add_column(name)
    for name in (*search.experiment.tune, "accuracy", "tries"):
        table.add_column(name, justify="right")
    for number, best in found.best.items():
        said, values = labels[number], found.values(number)
        method = f"{said['algorithm']} {said['variant']}".rstrip()
        row = [*(said[name] for name in differ), method, said["keep"]]
        row += [shown(values[key]) if key in values else "" for key in search.experiment.tune]
        table.add_row(*map(escape, row), f"{best.accuracy:.1f}", str(len(search.cells[number].tries)))
    return table
