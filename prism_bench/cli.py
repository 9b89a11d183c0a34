"""What a person types."""

from __future__ import annotations

import errno
import io
import signal
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
from rich.console import Console
from rich.markup import escape

from prism_bench import __version__, cli_data, cli_report
from prism_bench.callbacks import Callback
from prism_bench.cli_check import check
from prism_bench.cli_costs import costs
from prism_bench.cli_fedml import fedml
from prism_bench.cli_options import Device, ToRun
from prism_bench.cli_profile import profile
from prism_bench.errors import BadInput

if TYPE_CHECKING:
    from prism_bench.data.dataset import Dataset
    from prism_bench.experiment import Experiment
    from prism_bench.partition import Partition
    from prism_bench.rounds import Run
    from prism_bench.runner import Outcome

# torch and what needs it are imported inside the commands: --help answers at once.
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Federated sub-model training, compared like for like.\n\n"
    "Start with [bold]prism-bench run[/bold]: five methods side by side in about two minutes, nothing to download.",
)
app.add_typer(cli_data.app, name="data")


DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""What a disk says when it is full or must not be written to: no fault of the program."""


def _console(stderr: bool = False) -> Console:
    console = Console(stderr=stderr)
    # Into a file or a pipe nothing needs to be folded.
    return console if console.is_terminal else Console(stderr=stderr, width=160)


out_console = _console()
err_console = _console(stderr=True)


@app.command()
def run(
    experiment: ToRun = "quickstart",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting, again for more: [bold]--set training.rounds=5 --set algorithm.kappa=4[/bold]. "
            "Replaces the grid's values where the grid varies that key: "
            "[bold]--set 'algorithm=\\[prism,orthdrop]'[/bold]; [bold]grid.[/bold] adds one to vary: "
            "[bold]--set 'grid.training.lr=[0.05,0.1]'[/bold].",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results.", show_default="results/EXPERIMENT")] = None,
    device: Device = "auto",
    seeds: Annotated[
        str | None,
        typer.Option(help="How many seeds, or which: 3, or 0,1,2.", show_default="the experiment's"),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            help="paper (the paper's own setting, for a GPU) or scaled (for two cores), where it has both.",
            show_default="scaled",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once, in processes that share the cores.")] = 1,
    track: Annotated[
        list[str] | None,
        typer.Option(
            help="Also tell a tracker of every round to come: tensorboard or mlflow, again for more. Nothing is sent."
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what an earlier start has finished.")] = False,
) -> None:
    """Run an experiment; ends in a table, CSV files and pictures.

    Stopped or killed at any moment and started again, it goes on where it was: nothing is lost but the round under way.

    [bold]Examples[/bold]

      prism-bench run
      prism-bench run --seeds 3 --set capacity.keep=[0.1,0.5] --out results/mine
      prism-bench run homogeneous_cnn --jobs 2 --track tensorboard
      prism-bench run my.yaml --set algorithm.kappa=4 --device cuda
    """
    from prism_bench.experiment import Experiment
    from prism_bench.runner import carry_out
    from prism_bench.tracking import trackers

    overrides = parse_overrides(set_ or [], device)
    loaded = Experiment.load(experiment, overrides, _seeds(seeds), size)
    folder = out or Path("results") / loaded.name
    check_writable(folder)
    tracking = trackers(track or [], folder)
    with Display(err_console) as display:
        try:
            outcome = carry_out(loaded, folder, fresh=fresh, jobs=jobs, callbacks=[display, *tracking])
        except KeyboardInterrupt as stop:
            display.stop()
            again = "" if not fresh else " without --fresh"
            err_console.print(
                f"Stopped. {display.done} of {len(loaded.runs)} runs are done, and finished rounds of the others are "
                f"kept in {folder}; the same command{again} goes on from there.",
                soft_wrap=True,
            )
            raise typer.Exit(143 if "SIGTERM" in stop.args else 130) from None
    raise typer.Exit(present(folder, outcome))


def present(folder: Path, outcome: Outcome) -> int:
    """Show the table of what was carried out, write it and its pictures; the exit code."""
    from prism_bench import report
    from prism_bench.files import write_csv
    from prism_bench.results import Results

    files: dict[Path, str] = {}
    if not outcome.rounds.empty:
        results = Results.open(folder)
        frame = report.view_of(results.about).frame(results.runs())
        write_csv(frame, folder / "table.csv")
        files = {folder / "rounds.csv": "one row a run and round", folder / "table.csv": "the table above"}
        files |= dict.fromkeys(report.write_pictures(results, folder), "a picture")
        out_console.print(report.show(results, out_console.width))
        for file, what in files.items():
            out_console.print(f"  {file}  [dim]{what}[/dim]", highlight=False, soft_wrap=True)
    for name in ("table.csv", *(f"{kind}.png" for kind in report.KINDS)):
        if folder / name not in files:
            (folder / name).unlink(missing_ok=True)  # of an earlier start that was about something else
    for label, error in outcome.failed.items():
        err_console.print(f"[red]failed[/red] {escape(f'{label}: {error}')}", soft_wrap=True)
    return 1 if outcome.failed else 0


@app.command("list")
def list_(
    name: Annotated[
        str | None,
        typer.Argument(help="A plugin, or a section of an experiment (training, capacity, ...): all its settings."),
    ] = None,
) -> None:
    """Show every experiment and plugin, ours and installed ones; with a NAME, all its settings.

    [bold]Examples[/bold]

      prism-bench list
      prism-bench list prism
      prism-bench list training
    """
    from rich.table import Table

    from prism_bench import registry
    from prism_bench.experiment import known

    if name is not None:
        return _explain(name)
    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column(no_wrap=True)
    shown.add_column()
    shown.add_row("[bold]experiments[/bold]", "")
    for experiment, description in known().items():
        shown.add_row(f"  {experiment}", escape(description))
    for kind in registry.KINDS:
        shown.add_row(f"[bold]{kind}[/bold]", "")
        for plugin, point in registry.find(kind).items():
            loaded = registry.load(kind, plugin, kind)
            origin = "" if point.dist is None or point.dist.name == "prism-bench" else f" ({point.dist.name})"
            shown.add_row(f"  {plugin}", f"{escape(_first_line(loaded))}[dim]{origin}[/dim]")
    out_console.print(shown)
    out_console.print("\n[dim]Settings: prism-bench list NAME, of a plugin or of training, capacity, evaluation.[/dim]")


def _explain(name: str) -> None:
    """A plugin's or section's settings: default, allowed values, meaning."""
    from rich.table import Table

    from prism_bench import registry
    from prism_bench.config import Execution
    from prism_bench.errors import nearest
    from prism_bench.rounds import SECTIONS

    found: dict[str, Any] = {**SECTIONS, "execution": Execution}
    for kind in registry.KINDS:
        if name in registry.find(kind):
            found[name] = registry.load(kind, name, kind)
    if name not in found:
        every = [*found, *(plugin for kind in registry.KINDS for plugin in registry.find(kind))]
        raise BadInput(f"{name}: no plugin and no section is called that. {nearest(name, every)}")
    owner = found[name]
    shown = Table(title=escape(f"{name}: {_first_line(owner)}"), title_justify="left", box=None, pad_edge=False)
    for column in ("setting", "default", "values", ""):
        shown.add_column(column)
    for setting, field in getattr(owner, "Params", owner).model_fields.items():
        default = "required" if field.is_required() else str(field.default)
        shown.add_row(setting, escape(default), escape(_values(field.annotation)), escape(field.description or ""))
    out_console.print(shown)


def _values(annotation: Any) -> str:
    """The values that a setting takes, in a word or two."""
    if get_origin(annotation) is Annotated:
        return _values(get_args(annotation)[0])
    parts = get_args(annotation)
    if not parts:
        return {type(None): "none"}.get(annotation, getattr(annotation, "__name__", str(annotation)))
    if annotation is not None and get_origin(annotation) is tuple:
        return f"list of {_values(parts[0])}"
    return " | ".join(part if isinstance(part, str) else _values(part) for part in parts)


def _first_line(plugin: Any) -> str:
    return (plugin.__doc__ or "").strip().partition("\n")[0]


for command in (cli_report.table, cli_report.plot, cli_report.report, check, costs, profile, cli_data.partition, fedml):
    app.command()(command)


def _version(wanted: bool) -> None:
    if wanted:
        out_console.print(f"prism-bench {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def parse_overrides(texts: list[str], device: str = "auto") -> dict[str, Any]:
    """What --set and --device change of an experiment."""
    import yaml

    overrides = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadInput(f"--set {text}: needs KEY=VALUE, such as training.rounds=5.")
        try:
            overrides[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise BadInput(f"--set {text}: the value is not valid YAML.") from None
    return overrides if device == "auto" else overrides | {"execution.device": device}


def _seeds(text: str | None) -> int | list[int] | None:
    if text is None:
        return None
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"--seeds {text}: needs a number such as 3, or a list such as 0,1,2.") from None
    return numbers if "," in text else numbers[0]


def check_writable(folder: Path, option: str = "--out") -> None:
    """Know before hours of training that the results can be written; leaves nothing behind."""
    import tempfile

    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        # To try is the only way to know: permissions, a read-only disk, a full one.
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(4096))
            file.flush()
    except OSError as error:
        raise BadInput(
            f"{option} {folder}: {existing} is not a folder that can be written to ({error.strerror})."
        ) from None


class Display(Callback):
    """Progress while an experiment runs: bars on a terminal, a line a run elsewhere."""

    def __init__(self, console: Console) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.console, self.done = console, 0
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

    def loading(self, data: str) -> None:
        self.console.print(f"reading {escape(data)}", style="dim", highlight=False)

    def begin(self, experiment: Experiment, data: Dataset, partition: Partition, device: str) -> None:
        self.total = len(experiment.runs)
        labels = data.train.labels.numpy()
        self.console.print(
            f"[bold]{experiment.name}[/bold]: {self.total} runs on {device}; "
            f"{len(data.train)} training and {len(data.test)} test samples; {partition.summary(labels)} (first seed)",
            highlight=False,
        )
        if experiment.note:
            self.console.print(f"  scaled: {escape(experiment.note)}", style="dim", highlight=False)
        self.bars.start()
        self.all = self.bars.add_task("all runs", total=self.total, note="")

    def run_started(self, number: int, run: Run, label: str, done: int) -> None:
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


def _terminated(*_: object) -> None:
    raise KeyboardInterrupt("SIGTERM")


def _check_typer() -> None:
    """fedml asks for a typer that can't read this file's options, and never uses it."""
    major, minor, *_ = (int(part) for part in typer.__version__.split(".") if part.isdigit())
    if (major, minor) < (0, 12):
        raise BadInput(f"typer {typer.__version__} is installed, and prism-bench needs 0.12: pip install -U typer.")


def main() -> None:
    """The entry point: bad input is one clear message and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a pipe that can't say ± still gets the table
    # What a cluster or a supervisor sends ends a run as cleanly as Ctrl-C does.
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, _terminated)
    try:
        _check_typer()
        app()
    except BadInput as error:
        err_console.print("[red]error[/red]")
        for line in str(error).splitlines():
            err_console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in DISK:
            raise
        err_console.print(f"[red]error[/red] {error}; finished rounds are kept.", highlight=False, soft_wrap=True)
        sys.exit(1)
