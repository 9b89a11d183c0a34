"""Runs get done: one after another in this process, or several at once in processes of their own."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

import pandas as pd
import torch

from prism_bench.base.errors import BadPlugin, Diverged
from prism_bench.data.dataset import Dataset
from prism_bench.data.population import Population
from prism_bench.engine.executors import MakeExecutor
from prism_bench.engine.federation import Federation, split
from prism_bench.engine.hardware import cores, pinned, threads
from prism_bench.engine.spec import Run
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.results import summarise
from prism_bench.harness.run_folder import LOG, Busy, RunFolder, environment

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

    def postpone(self, number: int) -> None:
        self._held.add(number)
        self._numbers.append(number)


def attempt(
    number: int,
    experiment: Experiment,
    folder: RunFolder,
    shelf: Shelf,
    tell: Tell,
    wait: bool = False,
    own_process: bool = False,
    executor: MakeExecutor | None = None,
) -> End:
    """Do a run, or what is left of it. Whatever a method does wrong is this run's failure and no other's."""
    run = experiment.runs[number]
    label = experiment.label(run)
    if wait:
        tell("waiting", number, label)
    try:
        with folder.held(wait):
            if folder.summary() is not None:
                return End("kept")
            with _output_to_log(folder) if own_process else nullcontext():
                _do(number, run, label, experiment, folder, shelf, tell, executor)
            return End("done")
    except Busy:
        return End("busy")
    except Exception as problem:
        expected = isinstance(problem, (BadPlugin, Diverged))
        with suppress(OSError), (folder.path / LOG).open("a") as log:  # the disk may be what failed
            log.write(f"{label}: {problem}\n" if expected else f"{label}\n{traceback.format_exc()}\n")
        text = str(problem) if expected else f"{type(problem).__name__}: {problem}"
        return End("failed", f"{text} (log: {folder.path / LOG})")


def _do(
    number: int,
    run: Run,
    label: str,
    experiment: Experiment,
    folder: RunFolder,
    shelf: Shelf,
    tell: Tell,
    executor: MakeExecutor | None,
) -> None:
    start = time.perf_counter()
    execution = experiment.execution
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
        tell("run_started", number, run, label, len(records))
        try:
            for record in federation.rounds(first=len(records)):
                report(record)
        finally:
            federation.stop()
    rounds = pd.DataFrame(records).drop(columns="probes", errors="ignore").assign(run=run.identity)
    [summary] = summarise(rounds).drop(columns="run").to_dict("records")
    folder.finish({str(key): value for key, value in summary.items()} | federation.costs(), execution.keep_model)


def one_by_one(
    experiment: Experiment,
    folders: Sequence[RunFolder],
    shelf: Shelf,
    tell: Tell,
    executor: MakeExecutor | None = None,
) -> Iterator[tuple[int, End]]:
    """Do all runs in this process; yields how each ended."""
    queue = Queue(len(folders))
    while queue:
        number, wait = queue.next()
        end = attempt(number, experiment, folders[number], shelf, tell, wait, executor=executor)
        if end.how == "busy":
            queue.postpone(number)
        else:
            yield number, end


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    number: int | None = None
    """The run that it is doing; None while it waits for one."""


def side_by_side(
    experiment: Experiment,
    folders: Sequence[RunFolder],
    tell: Tell,
    jobs: int,
    executor: MakeExecutor | None = None,
) -> Iterator[tuple[int, End]]:
    """Do all runs, so many at once, in processes that share the machine's cores; yields how each ended.

    A process that dies takes its run with it and no other. The processes take the machine's GPUs in turn.
    """

    def hire(place: int) -> _Worker:
        device = pinned(experiment.execution.device, place)
        execution = experiment.execution.model_copy(update={"device": device})
        return _hire(replace(experiment, execution=execution), jobs, executor)

    queue, workers = Queue(len(folders)), [hire(place) for place in range(min(jobs, len(folders)))]
    try:
        while True:
            for place, worker in enumerate(workers):
                if worker.number is None and queue:
                    if not worker.process.is_alive():
                        workers[place] = worker = hire(place)
                    worker.number, patience = queue.next()
                    with suppress(BrokenPipeError):  # it has died just now, which is heard below
                        worker.pipe.send((worker.number, folders[worker.number], patience))
            working = [worker for worker in workers if worker.number is not None]
            if not working:
                return
            for pipe in wait([worker.pipe for worker in working]):
                worker = next(worker for worker in working if worker.pipe is pipe)
                end = _hear(worker, experiment, tell)
                if end is None:
                    continue
                number, worker.number = worker.number, None
                assert number is not None
                if end.how == "busy":
                    queue.postpone(number)
                else:
                    yield number, end
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()


def _hire(experiment: Experiment, jobs: int, executor: MakeExecutor | None) -> _Worker:
    # A fork would carry over the threads' locks of this process without their threads.
    context = get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, experiment, jobs, executor), daemon=True)
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


def _hear(worker: _Worker, experiment: Experiment, tell: Tell) -> End | None:
    """Pass on what a worker says; how its run ended, once it has."""
    try:
        what, *rest = worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join()
        code = worker.process.exitcode
        cause = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        guess = " Memory may have run out." if cause == "SIGKILL" else ""
        return End("failed", f"its process died ({cause}).{guess} The same command goes on with it.")
    if what == "end":
        end: End = rest[0]
        return end
    if what == "warned":
        warnings.warn(rest[0], stacklevel=2)
    elif what == "run_started":
        number, label, done = rest
        tell("run_started", number, experiment.runs[number], label, done)
    else:
        tell(what, *rest)
    return None


def _serve(pipe: Connection, experiment: Experiment, jobs: int, executor: MakeExecutor | None) -> None:
    """A worker's life: do the runs that come through the pipe until it is closed."""
    torch.set_num_threads(max(1, cores() // jobs))

    def tell(event: str, *arguments: Any) -> None:
        if event == "run_started":
            number, _, label, done = arguments
            arguments = (number, label, done)
        if event != "loading":
            pipe.send((event, *arguments))

    def warned(message: Warning | str, *_: Any, **__: Any) -> None:
        tell("warned", str(message))

    warnings.showwarning = warned
    shelf = Shelf(tell)
    try:
        while True:
            number, folder, patience = pipe.recv()
            end = attempt(number, experiment, folder, shelf, tell, patience, own_process=True, executor=executor)
            pipe.send(("end", end))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # nobody is left to work for


@contextmanager
def _output_to_log(folder: RunFolder) -> Iterator[None]:
    """What a run in a process of its own prints goes to its log: the terminal shows all runs' progress."""
    with (folder.path / LOG).open("a") as log:
        kept = [os.dup(number) for number in (1, 2)]
        try:
            for number in (1, 2):
                os.dup2(log.fileno(), number)
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, number)
                os.close(copy)
