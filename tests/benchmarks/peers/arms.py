"""An arm as the driver sees it: an environment, a process in it, and what its rounds took."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
PATIENCE = 600
"""Seconds that an arm may take to get ready, and for a round."""
SETTLING = 0.3
"""Seconds from going on to the round: what a framework does on a timer has come due meanwhile."""


class Failed(Exception):
    """An arm that can't go on, and why."""


def environment(arm: str, folder: Path, torch: str) -> str:
    """The Python of the arm's environment, which is made where it is missing or has other requirements."""
    arm = arm.partition("_")[0]
    listed = HERE / f"{arm}.txt"
    if not listed.exists():
        return sys.executable
    home = folder.absolute() / arm
    python, stamp, wanted = home / "bin" / "python", home / "installed.txt", f"{listed.read_text()}torch=={torch}\n"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"{arm}: installing into {home}", file=sys.stderr)
        shutil.rmtree(home, ignore_errors=True)
        _run(sys.executable, "-m", "venv", home)
        _run(python, "-m", "pip", "install", "--quiet", "--requirement", listed, f"torch=={torch}")
        stamp.write_text(wanted)
    return str(python)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
        raise Failed(f"no environment: {(done.stderr or done.stdout).strip().splitlines()[-1]}")


class Arm:
    """One worker, from its start to its final weights. The first thing that goes wrong is kept as its ``error``."""

    def __init__(self, name: str, error: str = "") -> None:
        self.name, self.error = name, error
        self.facts: dict[str, str] = {}
        self.rounds: list[tuple[float, float]] = []
        """Seconds and CPU-seconds of each."""
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def trying(self) -> Iterator[None]:
        """What fails inside ends this arm, and no other."""
        try:
            yield
        except (Failed, OSError) as problem:
            self.error = str(problem)
            self.stop()

    def start(self, python: str, work: Path, threads: int, early: int, variables: Mapping[str, str]) -> None:
        self._weights = work.with_name(f"{self.name}-{threads}")
        self._log = self._weights.with_suffix(".log")
        self._connection, theirs = Pipe()
        command = [python, HERE / "worker.py", self.name, work, threads, early, self._weights, theirs.fileno()]
        with self._log.open("wb") as log, theirs:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                env=variables,
                cwd=work.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def get_ready(self) -> None:
        self.facts = self._receive()
        self._receive()
        _send(signal.SIGSTOP, self._family())

    def round(self, measured: bool = True) -> None:
        """Let it do one round. It is stopped before and after: some frameworks look for work all the time."""
        _send(signal.SIGCONT, self._family())
        time.sleep(SETTLING)
        cpu, start = self._cpu_seconds(), time.perf_counter()
        with suppress(BrokenPipeError):
            self._connection.send("go")
        self._receive()
        seconds = time.perf_counter() - start
        if measured:
            self.rounds.append((seconds, self._cpu_seconds() - cpu))
        _send(signal.SIGSTOP, self._family())

    def finish(self) -> None:
        """Wait for its final weights, and let it end."""
        _send(signal.SIGCONT, self._family())
        self._receive()
        self.stop(patience=30)

    def weights(self, when: str) -> dict[str, np.ndarray]:
        """Those that it handed in: ``early`` or ``final``."""
        with np.load(f"{self._weights}-{when}.npz") as file:
            return dict(file)

    def stop(self, patience: float = 0) -> None:
        """End it with all that it started, unless it ends by itself in that time."""
        if self._process is None:
            return
        family = self._family()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        _send(signal.SIGKILL, family)
        self._process.wait()
        self._process = None

    def _receive(self) -> Any:
        try:
            if not self._connection.poll(PATIENCE):
                raise Failed(f"no answer in {PATIENCE} s")
            return self._connection.recv()
        except (EOFError, OSError):
            said = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()] or ["no word"]
            print(f"{self.name}:", *said[-20:], sep="\n", file=sys.stderr)
            raise Failed(f"ended early: {said[-1].strip()}") from None

    def _cpu_seconds(self) -> float:
        """So far, of its process and of all that descend from it and live."""
        seconds = 0.0
        for pid in self._family():
            with suppress(OSError):
                # The number that clock_getcpuclockid(3) gives: finer than the ticks in /proc.
                seconds += time.clock_gettime(~pid << 3 | 2)
        return seconds

    def _family(self) -> set[int]:
        """Its process and all that descend from it."""
        parents = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        family, young = set(), {self._process.pid}
        while young:
            family |= young
            young = {child for child, parent in parents.items() if parent in young}
        return family


def _send(number: signal.Signals, family: set[int]) -> None:
    for pid in family:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
