"""A FedML job from its configuration file to results on disk."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prism_bench.base.errors import BadInput
from prism_bench.engine.federation import Federation
from prism_bench.engine.hardware import threads
from prism_bench.harness.callbacks import Callback
from prism_bench.harness.experiment import blaming
from prism_bench.harness.jobs import Shelf
from prism_bench.harness.results import Results
from prism_bench.harness.runner import Outcome, carry_out, export
from prism_bench.integrations.fedml.config import Config
from prism_bench.integrations.fedml.data import to_fedml
from prism_bench.integrations.fedml.sides import Server, Worker


class JobFailed(BaseException):
    """A run failed, and with it the job: its other processes wait for that run's messages.

    Not an Exception, which is one run's or one callback's failure and no reason to stop.
    """


def run(config: Config, out: Path | None = None, callbacks: Iterable[Callback] = ()) -> Outcome | None:
    """This process's part of a job. The server's is the outcome, kept in ``out``; a client's is none.

    A job of several processes starts its runs anew, since each process counts the rounds for itself; with one process,
    runs are resumed, and not run again where they are done.
    """
    with blaming(config.experiment.origin):
        comm = _world() if config.backend == "MPI" else None
        if config.rank or (comm is not None and comm.rank):
            _work(config, comm)
            return None
    if config.backend == "sp":
        return carry_out(config.experiment, out, callbacks=callbacks, drive=_drive(config, comm))
    try:
        every = [*callbacks, _EndsWithARun()]
        return carry_out(config.experiment, out, fresh=True, callbacks=every, drive=_drive(config, comm))
    except JobFailed:
        if out is not None:
            export(Results.open(out))
        raise


class _EndsWithARun(Callback):
    def run_done(self, number: int, label: str, summary: Any, reused: bool, error: str) -> None:
        if error:
            raise JobFailed(f"{label}: {error}")


def _world() -> Any:
    from mpi4py import MPI

    if MPI.COMM_WORLD.size < 2:
        raise BadInput("comm_args.backend: MPI needs a server and at least one worker: mpiexec -n 3 ...")
    return MPI.COMM_WORLD


def _drive(config: Config, comm: Any) -> Callable[[Federation, int, Callable[[dict[str, Any]], None]], None]:
    """The server's side of a run, as FedML drives it."""

    def drive(federation: Federation, first: int, report: Callable[[dict[str, Any]], None]) -> None:
        args = _begin(config, federation, comm)
        workers = comm.size - 1 if comm is not None else args.worker_num
        server = Server(federation, workers, config.backend == "GRPC", first, report)
        data = to_fedml(federation.data, federation.population, federation.run.training.batch)
        if config.backend == "sp":
            from prism_bench.integrations.fedml.sp import SubModelAPI

            apart = Federation(federation.run, federation.data, federation.population, federation.execution)
            flow: Any = SubModelAPI(args, data, server, Worker(apart))
        elif config.backend == "MPI":
            from prism_bench.integrations.fedml.mpi import Flow

            flow = Flow(args, data, server)
        else:
            from prism_bench.integrations.fedml.cross_silo import ServerManager

            flow = ServerManager(args, data, server)
        _run(args, data, federation, flow)

    return drive


def _work(config: Config, comm: Any) -> None:
    """A client's side of every run."""
    shelf = Shelf(lambda *_: None)
    execution = config.experiment.execution
    for run in config.experiment.runs:
        federation = Federation(run, shelf.data(run), shelf.partition(run), execution)
        with threads(execution, federation.step_macs):
            args = _begin(config, federation, comm)
            data = to_fedml(federation.data, federation.population, run.training.batch)
            if config.backend == "MPI":
                from prism_bench.integrations.fedml.mpi import Flow

                flow: Any = Flow(args, data, Worker(federation))
            else:
                from prism_bench.integrations.fedml.cross_silo import ClientManager

                flow = ClientManager(args, data, Worker(federation))
            _run(args, data, federation, flow)


def _begin(config: Config, federation: Federation, comm: Any) -> SimpleNamespace:
    """FedML's arguments for a run, known to FedML.

    `fedml.init` would do the same, and then reports to FedML's servers whatever the arguments say.
    """
    from fedml import mlops

    args = config.arguments(federation.run)
    if comm is not None:
        args.comm, args.rank, args.process_id, args.worker_num = comm, comm.rank, comm.rank, comm.size
        args.role = "client" if comm.rank else "server"
    mlops.pre_setup(args)
    return args


def _run(args: SimpleNamespace, data: Any, federation: Federation, flow: Any) -> None:
    from fedml import FedMLRunner

    # FedML prints as it goes; what the command itself prints is the table.
    with redirect_stdout(sys.stderr):
        FedMLRunner(args, federation.device, data, None, algorithm_flow=flow).run()
