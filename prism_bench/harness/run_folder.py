"""A run's folder: settings, environment, rounds, checkpoint, done. Killed at any moment, it goes on where it was.

    settings.json                what the run is; its hash is in the folder's name
    environment.json             what it ran on, one entry per start that differs
    rounds.jsonl                 one line per round, appended, each with its own checksum
    checkpoint-ROUND-SUM.pt      the server after that round; the last two while it runs, the last one after
    log.txt                      what went wrong, if something did
    done.json                    only when done: what tables need, and the checksum of rounds.jsonl
    .lease-NUMBER                while a process has it: which one

A line is appended before its checkpoint is written, so a checkpoint always has its rounds; what is beyond the newest
good checkpoint is cut off at the next start and computed again, to the same numbers. Nothing is read without its
checksum: what is damaged is named, counts as not there, and is computed again from what is good.
"""

from __future__ import annotations

import io
import json
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_bench.base.errors import BadInput
from prism_bench.base.files import (
    SEAL,
    Damaged,
    append,
    checksum,
    parsed,
    read_tensors,
    sealed,
    sync,
    sync_folder,
    unsealed,
    write_json,
    write_tensors,
)
from prism_bench.base.settings import identity
from prism_bench.base.version import __version__
from prism_bench.harness.lease import PREFIX, Lease

if TYPE_CHECKING:
    import torch

SETTINGS, ENVIRONMENT, ROUNDS = "settings.json", "environment.json", "rounds.jsonl"
LOG, DONE = "log.txt", "done.json"

SYNC_SECONDS = 10.0
"""How much work a power cut may take, beside the round under way. A killed process takes none."""


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lease: Lease | None = None
        """What says that the folder is this process's, while it is."""
        self._synced = float("-inf")
        self._safe: Path | None = None
        """The newest checkpoint that is known to be on the disk."""

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
    def held(self, wait: bool, sign: bool = False) -> Iterator[None]:
        """Have the run to oneself, as `Lease.held`. What is written meanwhile is written only while that is so."""
        self.path.mkdir(parents=True, exist_ok=True)
        lease = Lease(self.path)
        with lease.held(wait, sign):
            self._lease = lease
            try:
                yield
            finally:
                self._lease = None

    def _check(self) -> None:
        if self._lease is not None:
            self._lease.check()

    def summary(self) -> dict[str, Any] | None:
        """What tables need of a finished run; None where it is not finished, or something of it is damaged."""
        done = self._done()
        return None if done is None else done[0]

    def settings(self) -> dict[str, Any]:
        """What the run was started with; Damaged where the file doesn't say that any more."""
        file = self.path / SETTINGS
        settings = parsed(file.read_bytes())
        if identity(settings) != self.path.name.partition("-")[0]:
            raise Damaged("is not what the run was started with")
        found: dict[str, Any] = settings
        return found

    def rounds(self) -> list[dict[str, Any]]:
        """The records of a finished run, one per round."""
        done = self._done()
        if done is None:
            raise BadInput(f"{self.path}: is no finished run.")
        return [{key: value for key, value in parsed(line).items() if key != SEAL} for line in done[1].splitlines()]

    def forget(self) -> None:
        """Remove what earlier starts left; Busy where another process is at it."""
        if self.path.exists():
            with self.held(wait=False, sign=True):
                for file in [*(self.path / name for name in (DONE, ROUNDS, ENVIRONMENT, LOG)), *self._checkpoints()]:
                    file.unlink(missing_ok=True)

    def start(
        self, settings: dict[str, Any], environment: dict[str, Any]
    ) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        """Where the run stands: the records of the rounds that count, and the server after the last of them."""
        self.mend(settings)
        if not (self.path / SETTINGS).exists():
            write_json(settings, self.path / SETTINGS, durable=True)
            for folder in self.path.parents[:3]:  # a power cut could take the folder itself
                sync_folder(folder)
        for draft in self.path.glob(".*"):
            if not draft.name.startswith(PREFIX):  # cut off by a kill in the middle of a write
                draft.unlink(missing_ok=True)
        records, ends = self._records()
        saved = self._newest_good(len(records))
        count = 0 if saved is None else saved["round"]
        if (self.path / ROUNDS).exists():
            os.truncate(self.path / ROUNDS, ends[count])
        self._note(environment, count)
        return records[:count], saved

    def mend(self, settings: dict[str, Any]) -> None:
        """Write the settings again where the file is damaged or was edited: they are known, by the folder's name."""
        try:
            self.settings()
        except FileNotFoundError:
            return
        except (OSError, Damaged):
            self._say(
                f"{self.path / SETTINGS}: is not what the run was started with, and is written again as it was. Other "
                "settings belong into an experiment's file or --set, and are another run."
            )
            write_json(settings, self.path / SETTINGS, durable=True)

    def append(self, record: dict[str, Any]) -> None:
        """Add a round."""
        self._check()
        # JSON gives every float back as it was.
        append(self.path / ROUNDS, json.dumps(sealed(record)).encode() + b"\n")

    def checkpoint(self, round: int, tensors: dict[str, Any]) -> None:
        """Keep the server after that round, and the checkpoint before it in case this one gets damaged.

        Now and then one is waited for until it is on the disk, and then kept until the next such one.
        """
        self._check()
        before = self._checkpoints()
        file = write_tensors(tensors | {"round": round}, self.path, f"checkpoint-{round:07d}")
        if time.monotonic() - self._synced >= SYNC_SECONDS:
            self._sync(file)
        for old in before[1:]:
            if old != self._safe:
                old.unlink(missing_ok=True)

    def finish(self, summary: dict[str, Any], keep_model: bool) -> None:
        """The run is done: what was written is on the disk, and nothing is left to fall back to."""
        self._check()
        checkpoints = self._checkpoints()
        self._sync(*checkpoints[: 1 if keep_model else 0])
        rounds = checksum((self.path / ROUNDS).read_bytes())
        write_json(sealed({"rounds": rounds, "summary": summary}), self.path / DONE, durable=True)
        for file in [*checkpoints[1 if keep_model else 0 :], self.path / LOG]:
            file.unlink(missing_ok=True)

    def _sync(self, *checkpoints: Path) -> None:
        for file in (self.path / ROUNDS, *checkpoints):
            sync(file)
        sync_folder(self.path)
        self._safe = next(iter(checkpoints), None)
        self._synced = time.monotonic()

    def environments(self) -> list[dict[str, Any]]:
        """What the run ran on: one entry, or more where a later start differed."""
        file = self.path / ENVIRONMENT
        try:
            value = parsed(file.read_bytes())
            # A plain list is what versions without checksums wrote.
            found: list[dict[str, Any]] = value if isinstance(value, list) else unsealed(value)["environments"]
        except FileNotFoundError:
            return []
        except (OSError, Damaged) as error:
            self._say(f"{file}: can't be read ({error}); what the run ran on is not known.")
            return []
        return found

    def _done(self) -> tuple[dict[str, Any], bytes] | None:
        """The summary and the lines of a finished run; None where it is not finished, or something is damaged."""
        file = self.path / DONE
        try:
            done = parsed(file.read_bytes())
            if isinstance(done, dict) and done.keys() == {"checksum", "summary"}:
                self._say(f"{self.path.parent}: holds runs of a version whose summaries had no checksum.")
                done = {"rounds": done["checksum"], "summary": done["summary"]}
            else:
                done = unsealed(done)
            summary, digest = done["summary"], done["rounds"]
            file = self.path / ROUNDS
            content = file.read_bytes()
            if checksum(content) != digest:
                raise Damaged("is not what the run wrote there")
            file = self.path / SETTINGS
            if file.exists():
                self.settings()
        except (OSError, Damaged) as error:
            if file.name != DONE or file.exists():
                self._say(f"{file}: {error}. The run counts as not done; to start it again makes it again.")
            return None
        return summary, content

    def _say(self, text: str) -> None:
        warnings.warn(text, stacklevel=4)

    def _records(self) -> tuple[list[dict[str, Any]], list[int]]:
        """The good lines of rounds.jsonl in their order, and where each ends, from none of them on."""
        records: list[dict[str, Any]] = []
        ends = [0]
        try:
            content = (self.path / ROUNDS).read_bytes()
        except FileNotFoundError:
            content = b""
        for line in io.BytesIO(content):
            try:
                record = unsealed(parsed(line))
            except Damaged as error:
                # An end that is cut off is what a kill leaves, and nothing to worry about.
                if line.endswith(b"\n"):
                    self._say(f"{self.path / ROUNDS}: line {len(ends)}: {error}; the run goes back to before it.")
                break
            if not line.endswith(b"\n") or record.get("round") != len(ends):
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
            telling = ("torch", "numpy", "platform", "processor", "device", "threads")
            changes = [
                f"{key} {last.get(key)} → {environment[key]}" for key in telling if last.get(key) != environment[key]
            ]
            if changes:
                text = f"goes on under other conditions ({', '.join(changes)}): the last digits may differ."
                warnings.warn(f"{self.path}: {text}", stacklevel=3)
        if last != environment:
            entries = [*known, {"from_round": round + 1, **environment}]
            write_json(sealed({"environments": entries}), self.path / ENVIRONMENT)


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
        # The kind of processor decides which instructions add up, in which order, and so the last digits.
        "platform": f"{platform.system()} {platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "processor": _processor(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
    }


@cache
def _processor() -> str:
    """Maker, family and model: libraries choose their code by them, also where the instructions are the same."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.processor()
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    parts = [said[key] for key in ("vendor_id", "cpu family", "model") if key in said]
    return " ".join(parts) or platform.processor()


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
