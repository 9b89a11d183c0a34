"""The command itself: all command groups, and what happens to errors."""

from __future__ import annotations

import errno
import io
import signal
import sys
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated

import typer

from prism_bench.base.errors import BadInput
from prism_bench.base.version import __version__
from prism_bench.cli import data
from prism_bench.cli.check import check
from prism_bench.cli.console import err_console, out_console
from prism_bench.cli.costs import costs
from prism_bench.cli.fedml import fedml
from prism_bench.cli.list import list_
from prism_bench.cli.profile import profile
from prism_bench.cli.results import plot, report, table
from prism_bench.cli.run import run
from prism_bench.cli.tune import tune

# torch and what needs it are imported inside the commands: --help answers at once.
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Federated sub-model training, compared like for like.\n\n"
    "Start with [bold]prism-bench run[/bold]: five methods side by side in about two minutes, nothing to download.",
)
app.add_typer(data.app, name="data")
app.command("list")(list_)
for command in (run, tune, table, plot, report, check, costs, profile, data.partition, fedml):
    app.command()(command)

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""What a disk says when it is full or must not be written to: no fault of the program."""


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


def _terminated(*_: object) -> None:
    raise KeyboardInterrupt("SIGTERM")


def _check_typer() -> None:
    """fedml holds typer where it can't work with a later click, and nothing that is installed says so."""
    (typers, clicks) = (tuple(map(int, version(name).split(".")[:2])) for name in ("typer", "click"))
    if typers < (0, 16) and clicks >= (8, 2):
        raise BadInput(f"typer {version('typer')} can't work with click {version('click')}: pip install 'click<8.2'.")


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
