"""The command itself: all command groups, and what happens to errors."""

from __future__ import annotations

import errno
import io
import signal
import sys
import warnings
from contextlib import suppress

import rich_click as click

from prism_bench.base.errors import BadInput
from prism_bench.base.system import open_standard_streams
from prism_bench.base.text import brief, visible
from prism_bench.base.version import __version__
from prism_bench.cli import data
from prism_bench.cli.check import check
from prism_bench.cli.command import Group
from prism_bench.cli.console import err_console, escape
from prism_bench.cli.costs import costs
from prism_bench.cli.fedml import fedml
from prism_bench.cli.list import list_
from prism_bench.cli.profile import profile
from prism_bench.cli.results import plot, report, table
from prism_bench.cli.run import run
from prism_bench.cli.tune import tune

# torch and what needs it are imported inside the commands: --help answers at once.
app = Group(
    "Federated sub-model training, compared like for like.\n\n"
    "Start with [bold]prism-bench run[/bold]: five methods side by side in about two minutes, nothing to download.",
)
click.version_option(__version__, message="prism-bench %(version)s")(app)
of_data = Group("Data sets: what there is, prepare one, check one.", name="data")
of_data.add(data.list_, "list")
of_data.add(data.prepare)
of_data.add(data.check)
app.add_command(of_data)
app.add(list_, "list")
for command in (run, tune, table, plot, report, check, costs, profile, data.partition, fedml):
    app.add(command)

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""What a disk says when it is full or must not be written to: no fault of the program."""
NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.EEXIST)
"""What it says of a name that can't be one, or that stands for something else than it must: no fault either."""


def _terminated(*_: object) -> None:
    raise KeyboardInterrupt("SIGTERM")


def main() -> None:
    """The entry point: bad input is one clear message and exit code 2."""
    open_standard_streams()
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a pipe that can't say ± still gets the table
    # What a cluster or a supervisor sends ends a run as cleanly as Ctrl-C does.
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, _terminated)
    try:
        sys.exit(app.main(prog_name="prism-bench", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort as stop:
        err_console.print("Stopped.")
        sys.exit(143 if "SIGTERM" in getattr(stop.__context__, "args", ()) else 130)
    except BadInput as error:
        err_console.print("[red]error[/red]")
        for line in str(error).splitlines():
            err_console.print(f"  {visible(line)}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in (*DISK, *NAMES):
            raise
        if error.errno in NAMES:
            err_console.print(f"[red]error[/red]\n  {escape(brief(error))}", highlight=False, soft_wrap=True)
            sys.exit(2)
        err_console.print(
            f"[red]error[/red] {escape(error)}; finished rounds are kept.", highlight=False, soft_wrap=True
        )
        sys.exit(1)
