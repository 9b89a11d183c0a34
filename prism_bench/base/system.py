"""What a process asks of the system that it runs on."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading


def open_standard_streams() -> None:
    """Make sure that 0, 1 and 2 are open: a file of ours would get the number of a closed one, and be printed into."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


def end_with_parent() -> None:
    """End this process, which another one started by `multiprocessing`, at once when that one ends, however it does."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if sys.platform == "linux":
        end_with(parent.pid)
    else:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def end_with(parent: int | None) -> None:
    """The same by the number of whatever process started this one; on Linux alone."""
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before it could be asked for
            os._exit(1)


def how_it_ended(code: int | None) -> str:
    """In words: the name of the signal that ended a process, or its exit code."""
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:  # those without a name of their own, such as most real-time signals
        return f"signal {-code}"
