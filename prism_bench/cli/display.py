"""Progress on a terminal while an experiment runs, and the table that it ends in."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from prism_bench.cli.console import err_console, escape, out_console
from prism_bench.harness.callbacks import Callback

if TYPE_CHECKING:
    from prism_bench.data.dataset import Dataset
    from prism_bench.data.population import Population
    from prism_bench.engine.spec import Run
    from prism_bench.harness.experiment import Experiment
    from prism_bench.harness.runner import Outcome


class Display(Callback):
    """Progress while an experiment runs: bars on a terminal, one line per run elsewhere."""

    def __init__(self, console: Console) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.console, self.done, self.total = console, 0, 0
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self.current: dict[int, Any] = {}
        self.started: dict[int, float] = {}

    def __enter__(self) -> Display:
        # A warning is a line of its own between the bars, without the code that gave it.
        self.showwarning, warnings.showwarning = warnings.showwarning, self.warn
        return self

    def __exit__(self, *_: object) -> None:
        warnings.showwarning = self.showwarning
        self.stop()

    def stop(self) -> None:
        self.bars.stop()

    def warn(self, message: Warning | str, *_: Any, **__: Any) -> None:
        self.console.print(f"[yellow]warning[/yellow]: {escape(str(message))}", highlight=False, soft_wrap=True)

    def other_code(self, code: str, runs: int) -> None:
        which = "run was" if runs == 1 else "runs were"
        self.console.print(
            f"{runs} {which} finished by other code ({code}); to count as done: --accept {code}, or --accept all",
            style="dim", highlight=False, soft_wrap=True,
        )  # fmt: skip

    def loading(self, data: str) -> None:
        self.console.print(f"reading {escape(data)}", style="dim", highlight=False)

    def begin(self, experiment: Experiment, data: Dataset, population: Population, device: str) -> None:
        self.total = len(experiment.runs)
        labels, on = data.train.labels.numpy(), experiment.runs[0].evaluation.on
        self.console.print(
            f"[bold]{escape(experiment.name)}[/bold]: {self.total} runs on {device}; "
            f"{len(data.train)} training and {len(data.test)} {on} samples; {population.summary(labels)} (first seed)",
            highlight=False,
        )
        if experiment.note:
            self.console.print(f"  scaled: {escape(experiment.note)}", style="dim", highlight=False)
        self.bars.start()
        self.all = self.bars.add_task("all runs", total=self.total, note="")

    def run_started(self, number: int, run: Run, label: str, done: int) -> None:
        if number in self.current:  # its node was lost
            self.bars.remove_task(self.current.pop(number))
        self.started[number] = time.perf_counter()
        self.current[number] = self.bars.add_task(escape(label), total=run.training.rounds, completed=done, note="")
        if done:
            self.console.print(f"  goes on after round {done}: {escape(label)}", style="dim", highlight=False)

    def waiting(self, number: int, label: str) -> None:
        self.console.print(f"  waiting for another process that has {escape(label)}", style="dim", highlight=False)

    def round_done(self, number: int, record: Mapping[str, Any]) -> None:
        if "accuracy" in record:
            self.bars.update(self.current[number], note=f"{record['accuracy']:.1f}%")
        self.bars.advance(self.current[number])

    def run_done(self, number: int, label: str, summary: Mapping[str, Any] | None, reused: bool, error: str) -> None:
        self.done += summary is not None
        if number in self.current:
            self.bars.remove_task(self.current.pop(number))
        self.bars.update(self.all, advance=1)
        if summary is None:
            result = f"[red]failed[/red]: {escape(error)}"
        else:
            how = "kept from an earlier start" if reused else f"{time.perf_counter() - self.started[number]:.1f} s"
            result = f"{summary['accuracy']:.1f}%  [dim]{how}[/dim]"
        width = len(str(self.total))
        self.console.print(
            f"  {number + 1:{width}}/{self.total}  {escape(label)}: {result}", highlight=False, soft_wrap=True
        )


def present(folder: Path, outcome: Outcome) -> int:
    """Show the table of what was carried out, write it and its pictures; the exit code."""
    from prism_bench.harness.lease import Lease

    with Lease(folder).held(wait=True):  # another part of the experiment may end at this moment
        _write(folder, outcome)
    for label, error in outcome.failed.items():
        err_console.print(f"[red]failed[/red] {escape(f'{label}: {error}')}", soft_wrap=True)
    return 1 if outcome.failed else 0


def _write(folder: Path, outcome: Outcome) -> None:
    from prism_bench.analysis import report
    from prism_bench.analysis.view import first_table, pictures
    from prism_bench.base.files import write_csv
    from prism_bench.harness.results import Results

    files: dict[Path, str] = {}
    if not outcome.rounds.empty:
        results = Results.open(folder)
        write_csv(first_table(results)[1], folder / "table.csv")
        files = {folder / "rounds.csv": "one row per run and round", folder / "table.csv": "the table above"}
        files |= dict.fromkeys(report.write_pictures(results, folder), "a picture")
        out_console.print(report.show(results, out_console.width))
        for file, what in files.items():
            out_console.print(f"  {escape(file)}  [dim]{what}[/dim]", highlight=False, soft_wrap=True)
    for name in ("table.csv", *(f"{kind}.png" for kind in pictures())):
        if folder / name not in files:
            (folder / name).unlink(missing_ok=True)  # of an earlier start that was about something else
