"""Runs get done: one after another in this process, or in processes of their own, several at once.

A process goes on from run to run as long as they are of this package's own code. Anybody else's may leave anything
behind (another default precision, another working folder, a thread), so its run has a process to itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

import pandas as pd
import torch

from prism_bench.base import registry
from prism_bench.base.errors import BadPlugin, Diverged
from prism_bench.base.system import end_with_parent, how_it_ended, open_standard_streams
from prism_bench.data.dataset import Dataset
from prism_bench.data.population import Population
from prism_bench.engine.executors import MakeExecutor
from prism_bench.engine.federation import Federation, split
from prism_bench.engine.hardware import cores, pinned, threads
from prism_bench.engine.sections import Execution
from prism_bench.engine.spec import PLUGINS, Run
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.lease import Busy
from prism_bench.harness.results import summarise
from prism_bench.harness.run_folder import LOG, RunFolder, environment

TO_BEGIN = 10
"""So many times as long as a round may a run take to read its data and to set itself up."""

Tell = Callable[..., None]
"""Passes on an event by its name, as `callbacks.Callbacks.tell` does."""


@dataclass(frozen=True)
class End:
    """How an attempt at a run ended; ``kept`` where an earlier start had finished it."""

    how: Literal["done", "kept", "failed", "busy"]
    error: str = ""


class Shelf:
    """Data sets and populations, each made once."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._data: dict[Any, Dataset] = {}
        self._digests: dict[Any, str] = {}
        self._populations: dict[Any, Population] = {}

    def data(self, run: Run) -> Dataset:
        key = self._key(run)
        if key not in self._data:
            self._tell("loading", run.data.label)
            self._data[key] = run.data.settings.read(run.evaluation.on)
        return self._data[key]

    def digest(self, run: Run) -> str:
        key = self._key(run)
        if key not in self._digests:
            self._digests[key] = self.data(run).digest()
        return self._digests[key]

    @staticmethod
    def _key(run: Run) -> tuple[Any, str]:
        return run.data.settings, run.evaluation.on

    def population(self, run: Run) -> Population:
        key = (*self._key(run), run.partition.settings, run.seed)
        if key not in self._populations:
            self._populations[key] = split(run, self.data(run))
        return self._populations[key]


class Queue:
    """Runs to do. One that another process has goes to the back, and is waited for when only such are left."""

    def __init__(self, count: int) -> None:
        self._numbers = deque(range(count))
        self._held: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def next(self) -> tuple[int, bool]:
        """A run's number, and whether to wait for it."""
        number = self._numbers.popleft()
        return number, number in self._held and self._held.issuperset(self._numbers)

    def again(self, number: int) -> None:
        """One that is to be done before all others: it was begun."""
        self._numbers.appendleft(number)

    def postpone(self, number: int) -> None:
        self._held.add(number)
        self._numbers.append(number)


@dataclass(frozen=True)
class Job:
    """A run to be done, by its place in the experiment, and how. It knows no other run, nor any other's plugins."""

    number: int
    run: Run
    label: str
    folder: RunFolder
    execution: Execution


Grid = Callable[[Sequence[Job], Tell, float | None], Generator[tuple[int, End], None, None]]
"""Does all runs, and yields how each ended, as `side_by_side` does; the number is the longest that a round may take."""


def jobs_of(experiment: Experiment, folders: Sequence[RunFolder], labels: Sequence[str]) -> list[Job]:
    """One per run of the experiment."""
    return [
        Job(number, run, label, folder, experiment.execution)
        for number, (run, folder, label) in enumerate(zip(experiment.runs, folders, labels, strict=True))
    ]


def foreign(run: Run, execution: Execution) -> bool:
    """Whether a run uses anybody's code but this package's own."""
    kinds = [getattr(run, section).kind for section in PLUGINS]
    kinds.append(registry.load("executors", execution.executor, "execution.on"))
    views = registry.find("views")
    homes = [*(kind.__module__ for kind in kinds), *(views[name].value for name in run.evaluation.probes)]
    return any(home.partition(".")[0] != "prism_bench" for home in homes)


def attempt(
    job: Job,
    shelf: Shelf,
    tell: Tell,
    wait: bool = False,
    to_log: bool = False,
    own_process: bool = False,
    executor: MakeExecutor | None = None,
) -> End:
    """Do a run, or what is left of it. Whatever a method does wrong is this run's failure and no other's."""
    folder = job.folder
    if folder.summary() is not None:
        return End("kept")  # what is done is nobody's to write in
    if wait:
        tell("waiting", job.number, job.label)
    try:
        with folder.held(wait):
            if folder.summary() is not None:
                return End("kept")
            with _output_to_log(folder) if to_log else nullcontext():
                _do(job, shelf, tell, executor)
            return End("done")
    except Busy:
        return End("busy")
    except BaseException as problem:  # a method may raise anything, SystemExit included
        if not own_process and not isinstance(problem, (Exception, SystemExit)):
            raise  # of the person at the keyboard, or of a callback that wants all to end
        expected = isinstance(problem, (BadPlugin, Diverged))
        with suppress(OSError), (folder.path / LOG).open("a", encoding="utf-8", errors="replace") as log:
            # the disk may be what failed
            log.write(f"{job.label}: {problem}\n" if expected else f"{job.label}\n{traceback.format_exc()}\n")
        text = str(problem) if expected else f"{type(problem).__name__}: {problem}"
        return End("failed", f"{text} (log: {folder.path / LOG})")


def _do(job: Job, shelf: Shelf, tell: Tell, executor: MakeExecutor | None) -> None:
    start = time.perf_counter()
    number, run, folder, execution = job.number, job.run, job.folder, job.execution
    federation = Federation(run, shelf.data(run), shelf.population(run), execution, executor)

    def report(record: dict[str, Any]) -> None:
        nonlocal start
        now = time.perf_counter()
        records.append(record | {"seconds": now - start})
        start = now
        folder.append(records[-1])
        if record["round"] % execution.checkpoint == 0 or record["round"] == run.training.rounds:
            folder.checkpoint(record["round"], federation.checkpoint())
        tell("round_done", number, {key: value for key, value in record.items() if key != "probes"})

    with threads(execution, federation.step_macs):
        records, saved = folder.start(run.as_dict(), environment(federation.device))
        if saved is not None:
            federation.restore(saved)
        tell("run_started", number, run, job.label, len(records))
        try:
            for record in federation.rounds(first=len(records)):
                report(record)
        finally:
            federation.stop()
    rounds = pd.DataFrame(records).drop(columns="probes", errors="ignore").assign(run=run.identity)
    [summary] = summarise(rounds).drop(columns="run").to_dict("records")
    folder.finish({str(key): value for key, value in summary.items()} | federation.costs(), execution.keep_model)


def one_by_one(
    jobs: Sequence[Job], shelf: Shelf, tell: Tell, executor: MakeExecutor | None = None
) -> Generator[tuple[int, End], None, None]:
    """Do all runs in this process; yields how each ended."""
    queue = Queue(len(jobs))
    while queue:
        number, wait = queue.next()
        with _as_it_was():
            end = attempt(jobs[number], shelf, tell, wait, executor=executor)
        if end.how == "busy":
            queue.postpone(number)
        else:
            yield number, end


@contextmanager
def _as_it_was() -> Iterator[None]:
    """What a method most often changes of its process goes back: the working folder and torch's defaults."""
    folder, kind, gradients = os.getcwd(), torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        yield
    finally:
        os.chdir(folder)
        torch.set_default_dtype(kind)
        torch.set_grad_enabled(gradients)


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    job: Job | None = None
    """The run that it is doing; None while it waits for one."""
    heard: float = float("inf")
    """When it last said something, by this process's clock; infinite while it starts or waits for another process."""
    begun: bool = False
    """Whether its run's rounds have begun."""

    @property
    def lives(self) -> bool:
        return bool(self.process.is_alive())

    @property
    def silent(self) -> float:
        """For so many seconds, as compared with how long a round may take."""
        return (time.monotonic() - self.heard) / (1 if self.begun else TO_BEGIN)

    def end(self) -> None:
        """End it, and all that it has started."""
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.pipe.close()


def side_by_side(
    jobs: Sequence[Job],
    tell: Tell,
    at_once: int,
    executor: MakeExecutor | None = None,
    timeout: float | None = None,
) -> Generator[tuple[int, End], None, None]:
    """Do all runs, so many at once, in processes that share the machine's cores; yields how each ended.

    A process that dies takes its run with it and no other; one whose round takes over ``timeout`` seconds is ended. The
    processes take the machine's GPUs in turn.
    """
    queue = Queue(len(jobs))
    places: list[_Worker | None] = [None] * min(at_once, len(jobs))
    try:
        while True:
            for place, worker in enumerate(places):
                while queue and (worker is None or worker.job is None):
                    number, patience = queue.next()
                    if jobs[number].folder.summary() is not None:
                        yield number, End("kept")  # which takes no process
                        continue
                    if worker is None or not worker.lives:
                        places[place] = worker = _hire(at_once, executor)
                    worker.job = jobs[number]
                    worker.heard, worker.begun = max(worker.heard, time.monotonic()), False
                    device = pinned(worker.job.execution.device, place)
                    execution = worker.job.execution.model_copy(update={"device": device})
                    with suppress(BrokenPipeError):  # it has died just now, which is seen below
                        worker.pipe.send((replace(worker.job, execution=execution), patience))
            working = [worker for worker in places if worker is not None and worker.job is not None]
            if not working:
                return
            # A process that the worker has started may hold its pipe open: not to hear anything says nothing.
            speaking = wait([worker.pipe for worker in working], timeout=0.5)
            for place, worker in enumerate(places):
                if worker is None or worker.job is None:
                    continue
                job = worker.job
                if worker.pipe in speaking:
                    end = _hear(worker, tell)
                elif not worker.lives and not worker.pipe.poll():
                    end = _died(worker)
                elif timeout is not None and worker.silent > timeout:
                    text = f"no round came to its end within {timeout:g} s (--timeout), so its process was ended."
                    end = End("failed", f"{text} The same command goes on with it.")
                else:
                    end = None
                if end is None:
                    continue
                worker.job = None
                if end.how == "failed" or foreign(job.run, job.execution):
                    worker.end()
                    places[place] = None
                if end.how == "busy":
                    queue.postpone(job.number)
                else:
                    yield job.number, end
    finally:
        for worker in places:
            if worker is not None:
                worker.end()


def _hire(at_once: int, executor: MakeExecutor | None) -> _Worker:
    # A fork would carry over the threads' locks of this process without their threads.
    context = get_context("spawn")
    pipe, theirs = context.Pipe()
    cpu_threads = torch.get_num_threads() if at_once == 1 else max(1, cores() // at_once)
    process = context.Process(target=_serve, args=(theirs, cpu_threads, at_once > 1, executor))
    with _ctrl_c_ignored():
        process.start()
    theirs.close()
    return _Worker(process, pipe)


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """A worker inherits this: Ctrl-C reaches every process of the terminal, and the one that hired it ends it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _hear(worker: _Worker, tell: Tell) -> End | None:
    """Pass on what a worker says; how its run ended, once it has."""
    assert worker.job is not None
    try:
        what, *rest = worker.pipe.recv()
    except (EOFError, OSError):
        return _died(worker)
    worker.heard = float("inf") if what == "waiting" else time.monotonic()
    if what == "end":
        end: End = rest[0]
        return end
    if what == "warned":
        warnings.warn(rest[0], stacklevel=2)
    elif what == "run_started":
        worker.begun = True
        tell("run_started", worker.job.number, worker.job.run, worker.job.label, rest[0])
    elif what not in ("ready", "loading"):  # the data was told of when it was first read
        tell(what, *rest)
    return None


def _died(worker: _Worker) -> End:
    """How a run ended whose process is about to end, or has, without a word."""
    worker.process.join(timeout=5)  # one that has only closed its pipe is ended below
    cause = how_it_ended(worker.process.exitcode) if worker.process.exitcode is not None else "it hung up"
    guess = " Memory may have run out." if cause == "SIGKILL" else ""
    return End("failed", f"its process died ({cause}).{guess} The same command goes on with it.")


def _serve(pipe: Connection, cpu_threads: int, to_log: bool, executor: MakeExecutor | None) -> None:
    """A worker's life: do the runs that come through the pipe until it is closed."""
    open_standard_streams()
    end_with_parent()
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # to be ended together with all that it starts
    torch.set_num_threads(cpu_threads)

    def tell(event: str, *arguments: Any) -> None:
        # What the other side knows, and what may not be picklable, stays here.
        pipe.send((event, *(arguments[-1:] if event == "run_started" else arguments)))

    def warned(message: Warning | str, *_: Any, **__: Any) -> None:
        tell("warned", str(message))

    warnings.showwarning = warned
    shelf = Shelf(tell)
    try:
        tell("ready")
        while True:
            job, patience = pipe.recv()
            end = attempt(job, shelf, tell, patience, to_log=to_log, own_process=True, executor=executor)
            pipe.send(("end", end))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # nobody is left to work for


@contextmanager
def _output_to_log(folder: RunFolder) -> Iterator[None]:
    """What a run in a process of its own prints goes to its log: the terminal shows all runs' progress."""
    with (folder.path / LOG).open("a", encoding="utf-8") as log:
        kept = [os.dup(number) for number in (1, 2)]
        try:
            for number in (1, 2):
                os.dup2(log.fileno(), number)
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, AttributeError):  # the method may have closed it
                    stream.flush()
            for number, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, number)
                os.close(copy)
