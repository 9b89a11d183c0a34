"""What the tests of the Ray integration know of processes: whose they are, and what they listen to."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path

METHODS = Path(__file__).parent / "integrations"
"""Where Ray's workers find the methods of these tests."""


class Marked:
    """Everything that is started with this environment carries its mark, and works in a folder of its own."""

    def __init__(self):
        # Ray's sockets lie below, and their paths may have 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
        self.mark = secrets.token_hex(8)
        self.environment = {
            "RAY_TMPDIR": str(self.folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # listens on the loopback alone
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(METHODS),
            "RAY_TEST_MARK": self.mark,
        }

    def alive(self, grace=0.0):
        """The processes that carry the mark, but for this one, after waiting so long for them to end."""
        deadline = time.monotonic() + grace
        while True:
            found = []
            for entry in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
                    mine = f"RAY_TEST_MARK={self.mark}".encode() in (entry / "environ").read_bytes()
                    if mine and not zombie and int(entry.name) != os.getpid():
                        found.append(int(entry.name))
            if not found or time.monotonic() >= deadline:
                return found
            time.sleep(0.2)

    def end(self):
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def beyond_loopback(pids):
    """The sockets of these processes that listen or talk beyond this machine's loopback."""
    mine = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    mine.add(os.readlink(entry).removeprefix("socket:[").removesuffix("]"))
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, remote, _, *_, inode = line.split()[:10]
            if inode in mine:
                for address in (local, remote):
                    raw = bytes.fromhex(address.partition(":")[0])
                    text = socket.inet_ntop(family, b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4)))
                    nobody_yet = address == remote and address.endswith(":0000")
                    if not nobody_yet and text.removeprefix("::ffff:") not in ("127.0.0.1", "::1"):
                        found.append(f"{local} {remote}")
    return found
