"""Clients train in processes of their own on this machine. One that dies is replaced, and its tasks are done again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt

from prism_bench.base.settings import Settings
from prism_bench.base.system import end_with_parent
from prism_bench.core.algorithm import Client
from prism_bench.core.axes import State
from prism_bench.engine.executors import Executor
from prism_bench.engine.hardware import cores, keep_memory
from prism_bench.engine.local import LocalTrainer
from prism_bench.engine.round import Round, Task, Trained

Arrays = dict[str, np.ndarray]
"""Tensors on their way between processes: torch's own way there keeps a file open for each."""

_trainer: LocalTrainer
"""What a worker process trains with; it is sent once."""


class Processes(Executor):
    """Clients train in processes of their own on this machine: for small models and many cores, where threads of one
    process wait for each other. A process that dies is replaced, and its tasks are done again.
    """

    class Params(Settings):
        workers: PositiveInt | Literal["auto"] = Field("auto", description="processes; auto: one per core")

    elsewhere = True

    TRIES = 3
    """How often in a row workers may be lost without one result in between."""

    _pool: ProcessPoolExecutor | None = None

    def train(self, round: Round) -> Iterator[Trained]:
        groups = list(round.groups(self.at_once))
        under_way: dict[int, Future[Any]] = {}
        lost, done = 0, 0
        while done < len(groups):
            try:
                # No more than two groups per worker are gathered ahead.
                for place in range(done, min(len(groups), done + 2 * self.workers)):
                    if place not in under_way:
                        under_way[place] = self.send(round, groups[place])
                state, losses, memories = under_way[done].result()
            except BrokenProcessPool:
                lost += 1
                self.close()
                under_way.clear()
                if lost == self.TRIES:
                    raise RuntimeError(
                        f"worker processes died {lost} times in a row in round {round.number + 1}. Memory may have run "
                        "out; fewer workers or a smaller execution.at_once may help."
                    ) from None
                continue
            under_way.pop(done)
            lost, done = 0, done + 1
            device = self.trainer.device
            kept = [_tensors(memory, device) for memory in memories]
            yield Trained(groups[done - 1], _tensors(state, device), torch.from_numpy(losses).to(device), kept)

    @property
    def workers(self) -> int:
        return cores() if self.params.workers == "auto" else int(self.params.workers)

    def send(self, round: Round, tasks: Sequence[Task]) -> Future[Any]:
        """Have a group of tasks trained by whichever worker is free."""
        if self._pool is None:
            # A fork would carry over the threads' locks of this process without their threads.
            self._pool = ProcessPoolExecutor(self.workers, get_context("spawn"), _start, (self.trainer,))
        # What a client told the server is the server's now.
        clients = [(replace(task.client, report={}), _arrays(task.memory)) for task in tasks]
        return self._pool.submit(_train, round.number, clients, _arrays(round.gather(tasks)))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _start(trainer: LocalTrainer) -> None:
    global _trainer
    end_with_parent()
    _trainer = trainer
    torch.set_num_threads(1)  # the workers are what goes on side by side
    keep_memory()


def _train(
    round: int, clients: Sequence[tuple[Client, Arrays]], arrays: Arrays
) -> tuple[Arrays, np.ndarray, list[Arrays]]:
    device = _trainer.device
    tasks = [Task(client, {}, memory=_tensors(memory, device)) for client, memory in clients]
    trained = _trainer.train(round, tasks, _tensors(arrays, device))
    return _arrays(trained.state), trained.losses.cpu().numpy(), [_arrays(memory) for memory in trained.memories]


def _arrays(state: State) -> Arrays:
    return {name: tensor.cpu().numpy() for name, tensor in state.items()}


def _tensors(arrays: Arrays, device: torch.device) -> State:
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
