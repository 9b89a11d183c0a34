"""What a run computes with: threads of the CPU, memory that stays warm, and the precision of products."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from prism_bench.config import Execution

SMALL_STEP = 3e7
"""MACs of a client's local step below which overhead outweighs arithmetic on a CPU, as measured on two cores."""

In = TypeVar("In")
Out = TypeVar("Out")


@contextmanager
def threads(execution: Execution, step_macs: float) -> Iterator[None]:
    """Use so many threads of the CPU meanwhile, and keep the memory that was used once.

    With small operations threads wait for each other in Python, and a second one gains nothing.
    """
    before = torch.get_num_threads()
    auto = 1 if step_macs < SMALL_STEP else before
    torch.set_num_threads(auto if execution.threads == "auto" else execution.threads)
    keep_memory()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def workers(device: torch.device) -> int:
    """How many items are worth being worked on side by side: one a thread on a CPU, else the device does one."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def in_threads(
    function: Callable[[In], Out], items: Iterable[In], count: int, stop: threading.Event | None = None
) -> Iterator[Out]:
    """Results in the order of the items, ``count`` of which are worked on at a time; few more are asked for ahead.

    Torch's threads are shared out: two cores do two items by one thread each, which leaves no core waiting for the
    other within an operation. What the caller does meanwhile has that many, too. ``stop`` is set where the results are
    no longer wanted, for the function to look at.
    """
    if count <= 1:
        yield from map(function, items)
        return
    before = torch.get_num_threads()
    each = max(1, before // count)
    waiting: deque[Future[Out]] = deque()
    with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(each,)) as pool:
        try:
            torch.set_num_threads(each)
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BaseException:
            if stop is not None:
                stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            torch.set_num_threads(before)


@contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """Multiply float32 numbers meanwhile as they are, or rounded to tf32."""
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = cuda.allow_tf32, cudnn.allow_tf32
    cuda.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        cuda.allow_tf32, cudnn.allow_tf32 = before


def keep_memory() -> None:
    """Have glibc hold on to large blocks of memory that were freed, unless the environment sets its thresholds.

    By default it gives each large tensor back to the system at once, and the next one costs a page fault for every
    4 KiB: up to a third of the time of training and evaluation.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")) for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    trim_threshold, mmap_threshold, arenas = -1, -3, -8
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(mmap_threshold, 2**30)
    # One arena for all threads: those of other threads give memory back all the same.
    mallopt(arenas, 1)
