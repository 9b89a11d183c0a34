"""``prism-bench fedml``: a FedML configuration file, carried out by FedML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def fedml(
    cf: Annotated[
        Path, typer.Option("--cf", help="FedML's configuration file, with a [bold]prism_args[/bold] section.")
    ],
    rank: Annotated[int, typer.Option(min=0, help="Of this process in a cross-silo job; 0 is the server.")] = 0,
    role: Annotated[str | None, typer.Option(help="server or client.", show_default="follows from the rank")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results.", show_default="results/EXPERIMENT")] = None,
) -> None:
    """Run algorithms as a FedML job; ends in the same tables as [bold]run[/bold]. Needs prism-bench\\[fedml].

    In one process, over MPI, or cross-silo over gRPC with a process a silo, as the file says. Nothing connects to
    FedML's servers.

    [bold]Examples[/bold]

      prism-bench fedml --cf fedml_config.yaml
      mpiexec -n 3 prism-bench fedml --cf fedml_config.yaml
      prism-bench fedml --cf fedml_config.yaml --rank 1 --role client
    """
    from prism_bench.integrations.fedml.entry import start

    raise typer.Exit(start(cf, rank, role, out))
