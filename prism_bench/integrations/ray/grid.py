"""A grid's runs as Ray tasks, on one machine or many. One whose node is lost goes on from its last checkpoint.

A run is at home in the folder of the results, where its node sees that: the worker writes there, as `--jobs` does.
Where nodes share no such folder, the driver keeps the run's folder, hands what is there to the worker, and gets it back
every few seconds and at the end.
"""

from __future__ import annotations

import os
import queue
import secrets
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from prism_bench.base import files
from prism_bench.base.errors import BadInput
from prism_bench.base.system import end_with
from prism_bench.engine.sections import Execution
from prism_bench.harness.jobs import TO_BEGIN, End, Job, Queue, Shelf, Tell, attempt, foreign
from prism_bench.harness.lease import Busy
from prism_bench.harness.run_folder import DONE, LOG, ROUNDS, RunFolder
from prism_bench.integrations.ray import cluster

FETCH_SECONDS = 10.0
"""How much work a lost node may take where it shares no folder with the driver, beside the round under way."""
WORD_SECONDS = 0.2
"""What a run has to say is sent together, as long as that takes."""
TRIES = 3
"""So many times in a row, without a round in between, may a run's process or node be lost before the run has failed."""

APART = "apart"
"""What a worker says that doesn't see the folder of the results."""

Files = dict[str, bytes]


class RayGrid:
    """Carries out runs as Ray tasks with so many CPUs and GPUs each; `runner.carry_out` takes it as its ``grid``."""

    def __init__(self, address: str | None = None, cpus: float = 1, gpus: float = 0) -> None:
        if not 0 < cpus < float("inf"):
            raise BadInput(f"--cpus {cpus:g}: must be a number above 0.")
        if not 0 <= gpus < float("inf") or (gpus > 1 and gpus != int(gpus)):
            raise BadInput(f"--gpus {gpus:g}: must be a whole number of GPUs, or a fraction of one.")
        self.address, self.cpus, self.gpus = address, cpus, gpus
        self._shared = True
        """Whether all workers so far see the folder of the results."""

    def __enter__(self) -> RayGrid:
        cluster.needs_ray("--on ray")
        self._connected = cluster.connect(self.address, self.cpus)
        try:
            cluster.check_room(self.cpus, self.gpus, "--cpus, --gpus")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._connected:
            cluster.disconnect()

    def check(self, execution: Execution) -> None:
        """BadInput where the runs can't be carried out so."""
        if execution.device not in ("auto", "cpu") and not self.gpus:
            raise BadInput(
                f"--gpus: the runs are to compute on {execution.device}, so say how many GPUs each gets, or which part "
                "of one: --gpus 0.5."
            )

    def __call__(
        self, jobs: Sequence[Job], tell: Tell, timeout: float | None
    ) -> Generator[tuple[int, End], None, None]:
        """Do all runs; yields how each ended."""
        waiting, under_way = Queue(len(jobs)), dict[Any, _Run]()
        lost: dict[int, int] = {}
        sign, seen = self._sign(jobs), time.monotonic()
        places = _Places(self.cpus, self.gpus)
        try:
            while waiting or under_way:
                while waiting and len(under_way) < places.enough:
                    number, patience = waiting.next()
                    job = jobs[number]
                    if job.folder.summary() is not None:
                        yield number, End("kept")
                        continue
                    try:
                        run = self._submit(job, patience, sign.name, alone=not under_way)
                    except Busy:
                        waiting.postpone(number)
                        break  # to hear the others before it is tried again
                    under_way[run.words] = run
                if not under_way:
                    continue
                for run, words in self._hear(list(under_way.values()), timeout):
                    seen = time.monotonic()
                    number = run.job.number
                    for what, *rest in words:
                        if what == "run_started":
                            run.begun = True
                            tell("run_started", number, run.job.run, run.job.label, rest[0])
                        elif what == "round_done":
                            lost.pop(number, None)
                            tell("round_done", number, *rest[1:])
                        elif what == "warned":
                            warnings.warn(rest[0], stacklevel=2)
                        elif what == "waiting":
                            tell("waiting", number, run.job.label)
                        elif what == "files":
                            _write(rest[0], rest[1], run.job.folder.path)
                        elif what in (APART, "lost", "end"):
                            run.close()
                            del under_way[run.words]
                            end: End | None = None
                            if what == "end":
                                end = rest[0]
                            elif what == "lost":
                                lost[number] = lost.get(number, 0) + 1
                                if lost[number] == TRIES:
                                    text = f"its process or node was lost {TRIES} times in a row: {rest[0]}. Memory may"
                                    end = End("failed", f"{text} have run out. The same command goes on with it.")
                                else:
                                    warnings.warn(f"{run.job.label} is started again: {rest[0]}", stacklevel=2)
                            else:
                                self._shared = False
                            if end is None:
                                waiting.again(number)
                            elif end.how == "busy":
                                waiting.postpone(number)
                            else:
                                yield number, end
                if time.monotonic() - seen > cluster.PATIENCE and cluster.places(self.cpus, self.gpus) == 0:
                    text = f"the Ray cluster has had no node with {self.cpus:g} CPUs and {self.gpus:g} GPUs for "
                    end = End("failed", f"{text}{cluster.PATIENCE:g} s. The same command goes on with it.")
                    for run in under_way.values():
                        run.close()
                        yield run.job.number, end
                    under_way.clear()
                    while waiting:
                        yield waiting.next()[0], end
        finally:
            for run in under_way.values():
                run.cancel()
                run.close()
            with suppress(OSError):
                sign.unlink()

    @staticmethod
    def _sign(jobs: Sequence[Job]) -> Path:
        """A file by which workers know the folder of the results."""
        place = jobs[0].folder.path.parent
        place.mkdir(parents=True, exist_ok=True)
        sign = place / f".driver-{secrets.token_hex(8)}"
        sign.touch()
        return sign

    def _submit(self, job: Job, patience: bool, sign: str, alone: bool) -> _Run:
        import ray

        device = job.execution.device
        execution = job.execution.model_copy(update={"device": "cpu" if device == "auto" and not self.gpus else device})
        sent = replace(job, execution=execution, folder=RunFolder(job.folder.path.absolute()))
        held, there = ExitStack(), None
        if not self._shared:
            held.enter_context(job.folder.held(wait=patience and alone))
            there = ray.put(_read(job.folder.path))
        room = Room(self.cpus, self.gpus, sign, FETCH_SECONDS, _environment())
        task = self._task(foreign(job.run, job.execution))
        with held:
            return _Run(job, task.remote(sent, patience, room, [there] if there else []), held.pop_all())

    @cache  # noqa: B019 - there are two of them, and one grid
    def _task(self, foreign: bool) -> Any:
        """`work` as a Ray task. Anybody else's code has a process to itself, as it may leave anything behind."""
        import ray

        how: dict[str, Any] = {"num_cpus": self.cpus, "num_gpus": self.gpus, "scheduling_strategy": "SPREAD"}
        calls = {"max_calls": 1} if foreign else {}
        return ray.remote(num_returns="streaming", max_retries=0, **how, **calls)(work)

    def _hear(self, runs: Sequence[_Run], timeout: float | None) -> Iterator[tuple[_Run, list[tuple[Any, ...]]]]:
        """What runs have to say within half a second."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        of = {run.words: run for run in runs}
        ready, _ = ray.wait(list(of), num_returns=1, timeout=0.5, fetch_local=True)
        for words in ready:
            run = of.pop(words)
            try:
                said = ray.get(next(words))
            except StopIteration:
                yield run, [("lost", "it ended without a word")]
            except RayTaskError as error:  # on the worker, before the run: no other code of this package, for one
                yield run, [("end", End("failed", str(error.cause or error).strip()))]
            except RayError as error:
                yield run, [("lost", str(error).partition("\n")[0])]
            else:
                run.heard = float("inf") if said[-1][0] == "waiting" else time.monotonic()
                yield run, said
        for run in of.values():
            if timeout is not None and run.silent > timeout:
                run.cancel()
                text = f"no round came to its end within {timeout:g} s (--timeout), so its process was ended."
                yield run, [("end", End("failed", f"{text} The same command goes on with it."))]


@dataclass(eq=False)
class _Run:
    """A run under way, as the driver sees it."""

    job: Job
    words: Any
    """The generator of what it has to say."""
    held: ExitStack
    """The driver's lease of its folder, where the driver keeps that."""
    heard: float = float("inf")
    """When it last said something, by this process's clock; infinite while it waits for a worker, or for an owner."""
    begun: bool = False

    @property
    def silent(self) -> float:
        return (time.monotonic() - self.heard) / (1 if self.begun else TO_BEGIN)

    def cancel(self) -> None:
        import ray

        with suppress(Exception):  # it may have ended just now, and the cluster with it
            ray.cancel(self.words, force=True)

    def close(self) -> None:
        self.held.close()


@dataclass
class _Places:
    """How many runs are worth being handed over: twice as many as the cluster has places for."""

    cpus: float
    gpus: float
    _enough: int = 0
    _looked: float = field(default=float("-inf"))

    @property
    def enough(self) -> int:
        if time.monotonic() - self._looked > 5:
            self._looked = time.monotonic()
            self._enough = 2 + 2 * cluster.places(self.cpus, self.gpus)
        return self._enough


# On the worker -------------------------------------------------------------------------------------------------------

_shelf = Shelf(lambda *_: None)
"""The data that this process has read: tasks that follow each other in it read none again."""


@dataclass(frozen=True)
class Room:
    """What a run has on the worker."""

    cpus: float
    gpus: float
    sign: str
    """The name of the file by which the folder of the results is known."""
    fetch: float
    """Seconds between two times that what was written is sent to the driver, where it has to be."""
    environment: Mapping[str, str]


def work(job: Job, patience: bool, room: Room, there: Sequence[Any]) -> Iterator[list[tuple[Any, ...]]]:
    """Do a run; yields what there is to say, several things at once, and how the run ended at last.

    ``there`` stands for what the driver has of the run's folder, where it keeps that.
    """
    end_with(os.getppid())  # the node's daemon: a worker that outlived it would go on to write
    yield [("ready",)]
    os.environ.update(room.environment)
    home, own = job.folder.path, None
    if not there and not (home.parent / room.sign).exists():
        yield [(APART,)]
        return
    known: dict[str, tuple[int, int]] = {}
    if there:
        import ray

        own = Path(tempfile.mkdtemp(prefix="prism_bench-"))
        job = replace(job, folder=RunFolder(own / home.name))
        job.folder.path.mkdir()
        for name, content in ray.get(there[0]).items():
            (job.folder.path / name).write_bytes(content)
        _news(job.folder.path, known)
    said: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    fetched = time.monotonic()

    def tell(event: str, *arguments: Any) -> None:
        nonlocal fetched
        # What the other side knows stays here.
        said.put((event, *(arguments[-1:] if event == "run_started" else arguments)))
        if own is not None and event == "round_done" and time.monotonic() - fetched >= room.fetch:
            said.put(("files", *_news(job.folder.path, known)))
            fetched = time.monotonic()

    def do() -> None:
        torch.set_num_threads(max(1, int(room.cpus)))
        cluster.use_share_of_gpu(room.gpus)
        warnings.showwarning = lambda message, *_, **__: said.put(("warned", str(message)))
        end = _elsewhere(job) or attempt(job, _shelf, tell, patience, to_log=True, own_process=True)
        if own is not None:
            said.put(("files", *_news(job.folder.path, known)))
            end = End(end.how, end.error.replace(str(job.folder.path), str(home)))
        said.put(("end", end))

    threading.Thread(target=do, name="run", daemon=True).start()
    try:
        ended = False
        while not ended:
            words = [said.get()]
            until = time.monotonic() + WORD_SECONDS
            while words[-1][0] != "end":
                try:
                    words.append(said.get(timeout=max(0.0, until - time.monotonic())))
                except queue.Empty:
                    break
            ended = words[-1][0] == "end"
            yield words
    finally:
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)


def _elsewhere(job: Job) -> End | None:
    """That a run can't be done here, as this node has other code or data than the folder's name says."""
    try:
        _, data, code = job.folder.parts
        there = {"code of this package or of a plugin": (job.run.code(), code), "data": (_shelf.digest(job.run), data)}
    except Exception as problem:  # there is no such data here, for one
        return End("failed", f"on node {os.uname().nodename}: {type(problem).__name__}: {problem}")
    for what, (own, wanted) in there.items():
        if own != wanted:
            return End("failed", f"node {os.uname().nodename} has other {what} ({own}) than the driver ({wanted}).")
    return None


def _environment() -> dict[str, str]:
    """The variables that the suite looks at; a node keeps its own place of data."""
    return {key: value for key, value in os.environ.items() if key == "PRISM_BENCH_TRUST"}


def _read(folder: Path) -> Files:
    """What a run's folder holds, but for what is hidden there."""
    names = sorted(os.listdir(folder)) if folder.exists() else []
    return {name: (folder / name).read_bytes() for name in names if not name.startswith(".")}


def _news(folder: Path, known: dict[str, tuple[int, int]]) -> tuple[Files, list[str]]:
    """The files that have changed since the last time, and the names of all; ``known`` is what that goes by."""
    now = {}
    for entry in os.scandir(folder):
        if not entry.name.startswith("."):
            with suppress(FileNotFoundError):
                now[entry.name] = (entry.stat().st_size, entry.stat().st_mtime_ns)
    changed = {name: (folder / name).read_bytes() for name, state in now.items() if known.get(name) != state}
    known.clear()
    known.update(now)
    return changed, list(now)


def _write(changed: Files, names: Sequence[str], folder: Path) -> None:
    """Take over what a worker has written: a checkpoint never without its rounds, and last of all that it is done."""
    for name in sorted(changed, key=lambda name: (name == DONE, name != ROUNDS)):
        files.replace(folder / name, changed[name], durable=name in (ROUNDS, DONE))
    for old in (*folder.glob("checkpoint-*.pt"), folder / LOG):
        if old.name not in names:
            old.unlink(missing_ok=True)
