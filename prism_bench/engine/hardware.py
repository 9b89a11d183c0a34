"""What a run computes with: its device, threads, memory that stays warm, clocks, the precision of products."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.profiler import record_function

from prism_bench.base.errors import BadInput
from prism_bench.core.algorithm import Forward
from prism_bench.core.axes import State
from prism_bench.engine.sections import Execution
from prism_bench.engine.stages import STAGES

SMALL_STEP = 3e7
"""MACs of a client's local step below which overhead outweighs arithmetic on a CPU, as measured on two cores."""

CACHED = 2**21
"""Bytes of a client's training up to which stacking clients pays on a CPU; measured on one with 1 MiB of L2 cache."""


def choose_device(wanted: str) -> torch.device:
    """The device of that name; 'auto' takes a GPU where there is one."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return torch.device(next(name for name, there in present.items() if there))
    kind, _, number = wanted.partition(":")
    gpus = torch.cuda.device_count() if present["cuda"] else 0
    if not present[kind] or (number and int(number) >= gpus):
        names = [*(f"cuda:{gpu}" for gpu in range(gpus)), *(name for name in ("mps", "cpu") if present[name])]
        raise BadInput(f"device: '{wanted}' is not available on this machine. Available: {', '.join(names)}.")
    return torch.device(wanted)


def pinned(wanted: str, job: int) -> str:
    """The device of one of several jobs that run side by side: the visible GPUs in turn, unless one was named."""
    gpus = torch.cuda.device_count() if wanted in ("auto", "cuda") and torch.cuda.is_available() else 0
    return f"cuda:{job % gpus}" if gpus else wanted


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def clients_at_once(execution: Execution, device: torch.device, client_bytes: float) -> int:
    """How many clients train in one pass, where each takes so many bytes.

    On a CPU, stacking saves the overhead of many small operations and loses once they no longer fit into the caches
    (``tox -e bench``). On a GPU as many as fit into half of the memory that is free.
    """
    if execution.at_once != "auto":
        return execution.at_once
    if device.type == "cpu":
        return 8 if client_bytes < CACHED else 1
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 2**32
    return max(1, min(64, int(free / 2 / client_bytes)))


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


def compute(forward: Forward, precision: str) -> Forward:
    """A forward that computes in that precision. The tensors it is called with, and its logits, are float32."""
    if precision != "bfloat16":
        return forward

    def in_bfloat16(params: State, x: Tensor) -> Tensor:
        short = {name: tensor.bfloat16() for name, tensor in params.items()}
        return forward(short, x.bfloat16() if x.is_floating_point() else x).float()

    return in_bfloat16


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


class Stopwatch:
    """Seconds by stage. It waits for the device, so that a stage pays for its own work. A stage that begins within
    another interrupts that one's clock.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self.inside: list[str] = []
        self.since = 0.0

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        self._charge()
        self.inside.append(stage)
        try:
            with record_function(stage):  # its name in a trace
                yield
        finally:
            self._charge()
            self.inside.pop()

    def _charge(self) -> None:
        if self.device.type in ("cuda", "mps"):
            getattr(torch, self.device.type).synchronize()
        now = time.perf_counter()
        if self.inside:
            self.seconds[self.inside[-1]] += now - self.since
        self.since = now
