"""A FedML job from its configuration file to results on disk."""

from __future__ import annotations

import importlib.util
import os
import stat
import sys
import time
import traceback
import warnings
from array import array
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

from prism_bench.base.errors import BadInput, BadPlugin
from prism_bench.core.algorithm import Algorithm
from prism_bench.engine.hardware import choose_device
from prism_bench.engine.local import LocalTrainer
from prism_bench.engine.sections import Execution
from prism_bench.engine.spec import Run
from prism_bench.harness.callbacks import Callback
from prism_bench.harness.experiment import blaming
from prism_bench.harness.jobs import Shelf
from prism_bench.harness.results import Results
from prism_bench.harness.runner import Outcome, carry_out, export
from prism_bench.integrations.fedml.config import Backend, Config
from prism_bench.integrations.fedml.data import to_fedml
from prism_bench.integrations.fedml.sides import NO_REPORTS, FedMLExecutor, Remote, Worker, carry

NEEDS = {"sp": ("fedml",), "MPI": ("fedml", "mpi4py"), "GRPC": ("fedml", "grpc")}


class JobFailed(BaseException):
    """A run failed, and with it the job: its other processes have ended, or end with this one.

    Not an Exception, which is one run's or one callback's failure and no reason to stop.
    """


def run(config: Config, out: Path | None = None, callbacks: Iterable[Callback] = ()) -> Outcome | None:
    """This process's part of a job. The server's is the outcome, kept in ``out``; a client's is none.

    A job of several processes starts its runs anew, since each process counts the rounds for itself; with one process,
    runs are resumed, and not run again where they are done.
    """
    if config.backend == "sp":
        return carry_out(config.experiment, out, callbacks=callbacks, executor=ThroughFedML(config))
    with blaming(config.experiment.origin):
        for one in config.experiment.runs:
            if one.algorithm.kind.report is not Algorithm.report:
                raise BadPlugin(f"{one.algorithm.name}: {NO_REPORTS}")
        comm = _world() if config.backend == "MPI" else None
        if config.rank or (comm is not None and comm.rank):
            _work(config)
            return None
    try:
        every = [*callbacks, _EndsWithARun()]
        return carry_out(config.experiment, out, fresh=True, callbacks=every, executor=ThroughFedML(config))
    except JobFailed:
        if out is not None:
            export(Results.open(out))
        raise


class _EndsWithARun(Callback):
    def run_done(self, number: int, label: str, summary: Any, reused: bool, error: str) -> None:
        if error:
            raise JobFailed(f"{label}: {error}")


@dataclass(frozen=True)
class ThroughFedML:
    """Makes a run's executor. Can be pickled: with ``backend: sp``, runs may be done side by side."""

    config: Config

    def __call__(self, trainer: LocalTrainer, execution: Execution, at_once: int) -> FedMLExecutor:
        args = _begin(self.config, trainer.run)
        data = to_fedml(trainer.data, trainer.population, trainer.run.training.batch)
        if self.config.backend == "sp":
            from prism_bench.integrations.fedml.sp import InOneProcess

            return InOneProcess(trainer, execution, at_once, args, data)
        # Over MPI, FedML counts the server.
        workers, stays = (args.worker_num - 1, False) if self.config.backend == "MPI" else (args.worker_num, True)
        flow = partial(_managers(self.config.backend).ServerManager, args, data)
        return Remote(trainer, execution, at_once, workers, stays, flow, partial(carry, args, trainer.device, data))


def _work(config: Config) -> None:
    """A worker's side of every run: what training needs, and nothing of the server's."""
    shelf, execution = Shelf(lambda *_: None), config.experiment.execution
    device = choose_device(execution.device)
    for run in config.experiment.runs:
        data, population = shelf.data(run).to(device), shelf.population(run)
        trainer = LocalTrainer(run, data, population, device, execution.compile)
        args, dataset = _begin(config, run), to_fedml(data, population, run.training.batch)
        flow = _managers(config.backend).ClientManager(args, dataset, Worker(trainer, execution))
        carry(args, device, dataset, flow)
        if flow.failed:
            return  # the server says why, and ends the job


def _managers(backend: Backend) -> Any:
    if backend == "MPI":
        from prism_bench.integrations.fedml import mpi

        return mpi
    from prism_bench.integrations.fedml import cross_silo

    return cross_silo


def _world() -> Any:
    from mpi4py import MPI

    if MPI.COMM_WORLD.size < 2:
        raise BadInput("comm_args.backend: MPI needs a server and at least one worker: mpiexec -n 3 ...")
    return MPI.COMM_WORLD


def _begin(config: Config, run: Run) -> SimpleNamespace:
    """FedML's arguments for a run, known to FedML.

    `fedml.init` would do the same, and then reports to FedML's servers whatever the arguments say.
    """
    with warnings.catch_warnings():
        # What fedml depends on warns of each other.
        warnings.simplefilter("ignore")
        from fedml import mlops

    args = config.arguments(run)
    if config.backend == "MPI":
        comm = _world()
        args.comm, args.rank, args.process_id, args.worker_num = comm, comm.rank, comm.rank, comm.size
        args.role = "client" if comm.rank else "server"
    mlops.pre_setup(args)
    return args


def check_installed(config: Config) -> None:
    """BadInput where a package is missing that carries the job's messages."""
    for package in NEEDS[config.backend]:
        if importlib.util.find_spec(package) is None:
            extra = "fedml" if config.backend == "sp" else "fedml-distributed"
            raise BadInput(
                f"{config.experiment.origin}: {package} is not installed, and backend {config.backend} needs it: "
                f"pip install 'prism-bench[{extra}]'."
            )


def _wait_until_read(stream: TextIO, seconds: float = 10) -> None:
    """Wait until whoever is at the other end of a pipe has read what was written to it; a file needs nobody."""
    deadline = time.monotonic() + seconds
    with suppress(ImportError, OSError, ValueError):  # where the system, or this stream, can't say
        import fcntl
        import termios

        left = array("i", [1])
        while stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode) and left[0] and time.monotonic() < deadline:
            fcntl.ioctl(stream.fileno(), termios.FIONREAD, left)
            time.sleep(0.01)


def end(backend: Backend, problem: BaseException) -> int:
    """End the whole job with the error: the other processes would wait for this one for ever."""
    told = isinstance(problem, (BadInput, JobFailed))
    print(f"error: {problem}" if told else "".join(traceback.format_exception(problem)), file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        _wait_until_read(stream)
    code = 2 if isinstance(problem, BadInput) else 1
    if backend == "MPI":
        from mpi4py import MPI

        time.sleep(1)  # mpiexec drops what it has not passed on yet when a rank aborts: the error would be lost
        MPI.COMM_WORLD.Abort(code)
    # Threads of FedML's may still wait for messages. The others see that this process is gone.
    os._exit(code)
