"""Work that goes on side by side in threads of the CPU, with results in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

In = TypeVar("In")
Out = TypeVar("Out")


def workers(device: torch.device) -> int:
    """How many items are worth being worked on side by side: on a CPU one per thread, on any other device one."""
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
