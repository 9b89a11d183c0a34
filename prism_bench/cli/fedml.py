"""``prism-bench fedml``: a FedML configuration file, carried out by FedML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from prism_bench.base.trust import allow
from prism_bench.cli.command import Exit, Option
from prism_bench.cli.console import check_results, err_console
from prism_bench.cli.display import Display, present
from prism_bench.cli.options import Trust


def fedml(
    cf: Annotated[Path, Option("--cf", help="FedML's configuration file, with a [bold]prism_args[/bold] section.")],
    rank: Annotated[int, Option(min=0, help="Of this process in a cross-silo job; 0 is the server.")] = 0,
    role: Annotated[str | None, Option(help="server or client.", show_default="follows from the rank")] = None,
    out: Annotated[Path | None, Option(help="Folder for the results.", show_default="results/EXPERIMENT")] = None,
    trust: Trust = None,
) -> None:
    """Run algorithms as a FedML job; ends in the same tables as [bold]run[/bold]. Needs prism-bench\\[fedml].

    In one process, over MPI, or cross-silo over gRPC with one process per silo, as the file says. Nothing connects to
    FedML's servers.

    [bold]Examples[/bold]

      prism-bench fedml --cf fedml_config.yaml
      mpiexec -n 3 prism-bench fedml --cf fedml_config.yaml
      prism-bench fedml --cf fedml_config.yaml --rank 1 --role client
    """
    allow(trust or ())
    raise Exit(start(cf, rank, role, out))


def start(cf: Path, rank: int = 0, role: str | None = None, out: Path | None = None) -> int:
    """Run this process's part of a job and give its exit code; the server's part ends in tables."""
    from prism_bench.integrations.fedml.config import Config
    from prism_bench.integrations.fedml.job import check_installed, end, run

    config = Config.read(cf, rank, role)
    folder = out or Path("results") / config.experiment.name
    check_results(folder)
    check_installed(config)
    try:
        with Display(err_console) as display:
            outcome = run(config, folder, [display])
        return 0 if outcome is None else present(folder, outcome)
    except BaseException as problem:
        if config.backend == "sp":
            raise
        return end(config.backend, problem)
