"""A folder is one process's at a time, also where machines share it and their file system knows no locks.

Who has a folder says so in a file there, ``.lease-NUMBER``: host, process, start, and a heartbeat that moves every
`BEAT` seconds. The file is made in one step that fails where it is there already. An owner that is dead is followed by
who makes the next number; of several that try, one succeeds. Dead is a process that this machine knows to have ended,
at once; and one of another machine whose heartbeat has stood still for `STALE` seconds by the clock of who waits:
clocks are never compared. An owner that was taken for dead, as it was stopped or cut off for so long, finds out
before it writes anything more: its file is gone.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

BEAT = 10.0
"""Seconds between heartbeats."""
STALE = 60.0
"""Seconds without a heartbeat after which an owner on another machine counts as dead."""
PAUSES = (0.05, 1.0)
"""Seconds between two looks at a lease that is waited for: at first, and later on."""

PREFIX = ".lease-"
_NUMBERED = re.compile(re.escape(PREFIX) + r"(\d+)")


class Busy(Exception):
    """Another process has the folder."""


class TakenOver(Busy):
    """Another process has the folder by now: this one counted as dead."""


class Lease:
    """The right to write in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder
        self._text = ""
        self._beats = 0
        self._over = threading.Event()
        self._writing = threading.Lock()

    @contextmanager
    def held(self, wait: bool, sign: bool = False) -> Iterator[None]:
        """Have the folder to oneself. Where another process has it, wait for that one or raise Busy; with ``sign``, as
        soon as it has given a sign of life.
        """
        self.acquire(wait, sign)
        try:
            yield
        finally:
            self.release()

    def acquire(self, wait: bool, sign: bool = False) -> None:
        seen: tuple[int, bytes] | None = None
        since, pause = time.monotonic(), PAUSES[0]
        while True:
            found = self._newest()
            free = found is None or _known_dead(found[1])
            if not free and found == seen:
                free = time.monotonic() - since > STALE
            if free and self._claim(found):
                break
            if not wait and (free or not sign or seen not in (None, found) or _known_alive(found)):
                raise Busy(str(self.folder))
            if found != seen:
                seen, since = found, time.monotonic()
            time.sleep(pause)
            pause = min(PAUSES[1], 1.5 * pause)
        self._over.clear()
        threading.Thread(target=self._beat, args=(self.file,), name="lease", daemon=True).start()

    def check(self) -> None:
        """TakenOver where it is another's by now."""
        try:
            # Opening asks the server anew, also where names and times are remembered for a while.
            content = self.file.read_bytes()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            content = b""
        if _token(content) != self._text:
            raise TakenOver(
                f"{self.folder}: another process has taken it over, as this one gave no sign of life for {STALE:g} s."
            )

    def release(self) -> None:
        self._over.set()
        with self._writing, suppress(OSError, Busy):
            self.check()
            self.file.unlink()

    def _claim(self, dead: tuple[int, bytes] | None) -> bool:
        """Follow an owner that is dead, or none; whether that was done."""
        number = dead[0] if dead is not None else 0
        self._text, self._beats = secrets.token_hex(8), 0
        self.file = self.folder / f"{PREFIX}{number + 1}"
        draft = self.folder / f"{PREFIX}{self._text}.draft"
        draft.write_bytes(self._content())
        try:
            _move_if_free(draft, self.file)
        except (FileExistsError, FileNotFoundError):
            return False  # somebody else was faster, and may have removed the draft
        finally:
            draft.unlink(missing_ok=True)
        newest = self._newest()
        before = _read(self.folder / f"{PREFIX}{number}") if dead is not None else None
        if newest is None or newest[0] != number + 1 or (dead is not None and before != dead[1]):
            # The dead owner was followed, and that one had ended, before the new file was there.
            self.file.unlink(missing_ok=True)
            return False
        for name in os.listdir(self.folder):
            if name.startswith(PREFIX) and name != self.file.name:
                (self.folder / name).unlink(missing_ok=True)
        return True

    def _newest(self) -> tuple[int, bytes] | None:
        """The lease with the highest number, and what it says."""
        while True:
            numbers = [int(match[1]) for name in os.listdir(self.folder) if (match := _NUMBERED.fullmatch(name))]
            if not numbers:
                return None
            content = _read(self.folder / f"{PREFIX}{max(numbers)}")
            if content is not None:
                return max(numbers), content

    def _beat(self, file: Path) -> None:
        while not self._over.wait(BEAT):
            with self._writing:
                try:
                    if self._over.is_set() or file != self.file:
                        return
                    self.check()
                    self._beats += 1
                    # In place and of equal length: a file that another owner has removed does not come back.
                    with open(file, "r+b") as stream:
                        stream.write(self._content())
                except Busy:
                    return
                except OSError:
                    continue  # the disk may be full; what follows may be better

    def _content(self) -> bytes:
        process = os.getpid()
        said = {
            "host": platform.node(),
            "machine": _machine(),
            "process": process,
            "start": _start_of(process),
            "lease": self._text,
            "heartbeat": f"{self._beats:012d}",
        }
        return json.dumps(said).encode() + b"\n"


def _move_if_free(draft: Path, file: Path) -> None:
    """Give a file another name, in one step that fails where there is one of that name."""
    try:
        os.link(draft, file)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EACCES, errno.EINVAL):
            raise
        # A file system without hard links: what is not written yet is somebody's, too.
        with open(file, "xb") as stream:
            stream.write(draft.read_bytes())


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise
        return None


def _said(content: bytes) -> dict[str, Any]:
    """What a lease says; nothing where it is being written, or damaged."""
    with suppress(ValueError):
        said = json.loads(content)
        if isinstance(said, dict):
            return said
    return {}


def _token(content: bytes) -> str:
    return str(_said(content).get("lease"))


def _known_dead(content: bytes) -> bool:
    """Whether the owner was a process of this machine, which has ended."""
    said = _said(content)
    process = said.get("process")
    if said.get("machine") != _machine() or not isinstance(process, int):
        return False
    if os.name != "posix":
        return False  # the system has no harmless way to ask
    start = _start_of(process)
    if start is None:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass
        return said.get("start") is not None
    return said.get("start") != start


def _known_alive(found: tuple[int, bytes] | None) -> bool:
    """Whether the owner is a process of this machine, which lives."""
    said = _said(found[1]) if found is not None else {}
    return said.get("machine") == _machine() and said.get("start") is not None


@cache
def _machine() -> str:
    """Where a process's number means one process: a machine since it was started, or a container of it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return platform.node()


def _start_of(process: int) -> str | None:
    """When a process of this machine began, by the system's count; None where it has ended, or that is not known."""
    try:
        # The name, which comes second, may hold anything.
        fields = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
