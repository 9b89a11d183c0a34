"""A run's folder: settings, environment, rounds, checkpoint, done. Killed at any moment, it goes on where it was.

    settings.json                what the run is; its hash is in the folder's name
    environment.json             what it ran on, one entry per start that differs
    rounds.jsonl                 one line per round, appended
    checkpoint-ROUND-SUM.pt      the server after that round; the last two while it runs, the last one after
    log.txt                      what went wrong, if something did
    done.json                    only when done: what tables need, and the checksum of rounds.jsonl

A line is appended before its checkpoint is written, so a checkpoint always has its rounds; what is beyond the newest
good checkpoint is cut off at the next start and computed again, to the same numbers.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_bench.base.errors import BadInput
from prism_bench.base.files import checksum, read_tensors, write_json, write_tensors
from prism_bench.base.settings import identity
from prism_bench.base.version import __version__

if TYPE_CHECKING:
    import torch

SETTINGS, ENVIRONMENT, ROUNDS = "settings.json", "environment.json", "rounds.jsonl"
LOG, DONE, LOCK = "log.txt", "done.json", ".lock"


class Busy(Exception):
    """Another process has the run."""


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, out: Path, settings: str, data: str, code: str) -> RunFolder:
        """By hashes of each: a run with other settings, on other data or of an edited method is another run."""
        return cls(out / "runs" / f"{settings}-{data}-{code}")

    @property
    def parts(self) -> tuple[str, str, str]:
        """The hashes of its settings, data and code."""
        settings, data, code = self.path.name.split("-")
        return settings, data, code

    @contextmanager
    def held(self, wait: bool) -> Iterator[None]:
        """Have the run to oneself; where another process has it, wait for that one or raise Busy.

        The lock goes with its process, however that ends.
        """
        from filelock import FileLock, Timeout

        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / LOCK)
        try:
            lock.acquire(timeout=-1 if wait else 0)
        except Timeout:
            raise Busy(str(self.path)) from None
        try:
            yield
        finally:
            lock.release()

    def summary(self) -> dict[str, Any] | None:
        """What tables need of a finished run; None where it is not finished."""
        done = self._done()
        self.verify()
        return None if done is None else done["summary"]

    def settings(self) -> dict[str, Any]:
        """What the run was started with."""
        settings: dict[str, Any] = json.loads((self.path / SETTINGS).read_text("utf-8"))
        return settings

    def rounds(self) -> list[dict[str, Any]]:
        """The records of a finished run, one per round."""
        done, file = self._done(), self.path / ROUNDS
        content = file.read_bytes() if file.exists() else b""
        if done is None or checksum(content) != done["checksum"]:
            raise BadInput(f"{file}: is not what the run wrote there; remove {self.path} to run it again.")
        return [json.loads(line) for line in content.splitlines()]

    def forget(self) -> None:
        """Remove what earlier starts left; Busy where another process is at it."""
        if self.path.exists():
            with self.held(wait=False):
                for file in [*(self.path / name for name in (DONE, ROUNDS, ENVIRONMENT, LOG)), *self._checkpoints()]:
                    file.unlink(missing_ok=True)

    def start(
        self, settings: dict[str, Any], environment: dict[str, Any]
    ) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        """Where the run stands: the records of the rounds that count, and the server after the last of them."""
        self.verify()
        if not (self.path / SETTINGS).exists():
            write_json(settings, self.path / SETTINGS, durable=True)
        for draft in self.path.glob(".*"):
            if draft.name != LOCK:  # cut off by a kill in the middle of a write
                draft.unlink(missing_ok=True)
        records, ends = self._records()
        saved = self._newest_good(len(records))
        count = 0 if saved is None else saved["round"]
        if (self.path / ROUNDS).exists():
            os.truncate(self.path / ROUNDS, ends[count])
        self._note(environment, count)
        return records[:count], saved

    def append(self, record: dict[str, Any]) -> None:
        """Add a round."""
        # JSON gives every float back as it was. A process that is killed leaves what it wrote to the system.
        with (self.path / ROUNDS).open("ab") as stream:
            stream.write(json.dumps(record).encode() + b"\n")

    def checkpoint(self, round: int, tensors: dict[str, Any]) -> None:
        """Keep the server after that round, and the checkpoint before it in case this one gets damaged."""
        before = self._checkpoints()
        write_tensors(tensors | {"round": round}, self.path, f"checkpoint-{round:07d}")
        for file in before[1:]:
            file.unlink(missing_ok=True)

    def finish(self, summary: dict[str, Any], keep_model: bool) -> None:
        """The run is done: what was written is on the disk, and nothing is left to fall back to."""
        with (self.path / ROUNDS).open("rb") as stream:
            os.fsync(stream.fileno())
            digest = checksum(stream.read())
        write_json({"checksum": digest, "summary": summary}, self.path / DONE, durable=True)
        for file in [*self._checkpoints()[1 if keep_model else 0 :], self.path / LOG]:
            file.unlink(missing_ok=True)

    def environments(self) -> list[dict[str, Any]]:
        """What the run ran on: one entry, or more where a later start differed."""
        try:
            found: list[dict[str, Any]] = json.loads((self.path / ENVIRONMENT).read_text("utf-8"))
        except (OSError, ValueError):
            return []
        return found

    def _done(self) -> dict[str, Any] | None:
        try:
            done: dict[str, Any] = json.loads((self.path / DONE).read_text("utf-8"))
            if not {"summary", "checksum"} <= done.keys():
                raise ValueError("'summary' or 'checksum' is missing")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, AttributeError) as error:
            warnings.warn(f"{self.path / DONE}: can't be read ({error}); the run counts as not done.", stacklevel=3)
            return None
        return done

    def verify(self) -> None:
        """BadInput where the settings on disk are not those whose hash is in the folder's name."""
        file = self.path / SETTINGS
        if not file.exists():
            return
        try:
            same = identity(json.loads(file.read_text("utf-8"))) == self.path.name.partition("-")[0]
        except (OSError, ValueError):
            same = False
        if not same:
            raise BadInput(
                f"{file}: is not what the run was started with. Other settings belong into an experiment's file or "
                f"--set, and are another run; to run this one again, remove {self.path}."
            )

    def _records(self) -> tuple[list[dict[str, Any]], list[int]]:
        """The whole lines of rounds.jsonl in their order, and where each ends, from none of them on."""
        records: list[dict[str, Any]] = []
        ends = [0]
        try:
            content = (self.path / ROUNDS).read_bytes()
        except FileNotFoundError:
            content = b""
        for line in content.splitlines(keepends=True):
            try:
                record = json.loads(line)
                if not line.endswith(b"\n") or record["round"] != len(records) + 1:
                    break
            except (ValueError, KeyError, TypeError):
                break
            records.append(record)
            ends.append(ends[-1] + len(line))
        return records, ends

    def _checkpoints(self) -> list[Path]:
        """The newest first."""
        return sorted(self.path.glob("checkpoint-*.pt"), reverse=True)

    def _newest_good(self, rounds: int) -> dict[str, Any] | None:
        files = self._checkpoints()
        for file in files:
            saved = read_tensors(file)
            if saved is None:
                warnings.warn(f"{file}: is damaged (its checksum is wrong); going back to one before it.", stacklevel=3)
                file.unlink(missing_ok=True)
            elif saved["round"] <= rounds:
                return saved
        if files:
            warnings.warn(f"{self.path}: no checkpoint can be used; the run starts anew.", stacklevel=3)
        return None

    def _note(self, environment: dict[str, Any], round: int) -> None:
        """Record what the run goes on with; say so where that may change its last digits."""
        known = self.environments() if round else []
        last = {key: value for key, value in known[-1].items() if key != "from_round"} if known else None
        if last is not None:
            telling = ("torch", "numpy", "platform", "device", "threads")
            changes = [
                f"{key} {last.get(key)} → {environment[key]}" for key in telling if last.get(key) != environment[key]
            ]
            if changes:
                text = f"goes on under other conditions ({', '.join(changes)}): the last digits may differ."
                warnings.warn(f"{self.path}: {text}", stacklevel=3)
        if last != environment:
            write_json([*known, {"from_round": round + 1, **environment}], self.path / ENVIRONMENT)


def environment(device: torch.device) -> dict[str, Any]:
    """What produced a result, beside its settings."""
    import numpy as np
    import torch

    return {
        "prism_bench": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        # The kind of processor decides which instructions add up, and so the last digits.
        "platform": f"{platform.system()} {platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
    }


@cache
def _commit() -> str | None:
    """The source tree's commit, where the package runs from one."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    # Results that are being written anew don't count: what matters is the code.
    edited = _git(root, "status", "--porcelain", "--", "prism_bench", "baselines", "partitions")
    return f"{commit}-dirty" if commit and edited else commit or None


def _git(root: Path, *arguments: str) -> str:
    try:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
