"""What both commands do: ``prism-bench fedml`` and ``python -m prism_bench.integrations.fedml``."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
import warnings
from pathlib import Path

from prism_bench.base.errors import BadInput
from prism_bench.integrations.fedml.config import Backend, Config

NEEDS = {"sp": ("fedml",), "MPI": ("fedml", "mpi4py"), "GRPC": ("fedml", "grpc")}


def start(cf: Path, rank: int = 0, role: str | None = None, out: Path | None = None) -> int:
    """Run this process's part of a job and give its exit code; the server's part ends in tables."""
    from prism_bench.cli import Display, check_writable, err_console, present

    config = Config.read(cf, rank, role)
    folder = out or Path("results") / config.experiment.name
    check_writable(folder)
    for package in NEEDS[config.backend]:
        if importlib.util.find_spec(package) is None:
            extra = "fedml" if config.backend == "sp" else "fedml-distributed"
            raise BadInput(f"{cf}: {package} is not installed, and backend {config.backend} needs it: "
                           f"pip install 'prism-bench[{extra}]'.")  # fmt: skip
    with warnings.catch_warnings():
        # What fedml depends on warns of each other.
        warnings.simplefilter("ignore")
        importlib.import_module("fedml")
    from prism_bench.integrations.fedml.job import run

    try:
        with Display(err_console) as display:
            outcome = run(config, folder, [display])
        return 0 if outcome is None else present(folder, outcome)
    except BaseException as problem:
        if config.backend == "sp":
            raise
        return end(config.backend, problem)


def end(backend: Backend, problem: BaseException) -> int:
    """End the whole job with the error: the other processes would wait for this one for ever."""
    from prism_bench.integrations.fedml.job import JobFailed

    told = isinstance(problem, (BadInput, JobFailed))
    print(f"error: {problem}" if told else "".join(traceback.format_exception(problem)), file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    code = 2 if isinstance(problem, BadInput) else 1
    if backend == "MPI":
        from mpi4py import MPI

        MPI.COMM_WORLD.Abort(code)
    # Threads of FedML's may still wait for messages. The others see that this process is gone.
    os._exit(code)
