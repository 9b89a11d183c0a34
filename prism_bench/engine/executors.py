"""Where the tasks of a round train. Results come in the order of the round's tasks, whatever finished first, so that
the numbers don't depend on where they were computed.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor

from prism_bench.base.settings import Settings, validate
from prism_bench.core.axes import State
from prism_bench.core.threads import in_threads, workers
from prism_bench.engine.local import LocalTrainer
from prism_bench.engine.round import Round, Task, Trained
from prism_bench.engine.sections import Execution

MakeExecutor = Callable[[LocalTrainer, Execution, int], "Executor"]
"""Makes a run's executor of what trains a client, how the run is carried out, and how many clients fit in one pass."""


class Executor(ABC):
    """An executor plugin. It lives as long as its run: what it starts, `close` ends.

    ``trainer`` is all that training needs, holds nothing of the server's and can be pickled: a copy of it in another
    process trains alike. A worker that is lost may be replaced by another, as a task's numbers follow from the task.
    """

    Params: ClassVar[type[Settings]] = Settings
    """Its own settings: what stands beside the name in ``execution.on``."""

    elsewhere: ClassVar[bool] = False
    """Whether it starts processes that must find the classes that a run is made of."""

    def __init__(self, trainer: LocalTrainer, execution: Execution, at_once: int, params: Any = None) -> None:
        self.trainer, self.execution, self.at_once = trainer, execution, at_once
        self.params: Any = self.Params() if params is None else params

    @classmethod
    def settings(cls, execution: Execution) -> Any:
        """Its own settings, validated."""
        given = {} if isinstance(execution.on, str) else execution.on
        return validate(cls.Params, {key: value for key, value in given.items() if key != "name"}, "execution.on")

    @classmethod
    def make(cls, trainer: LocalTrainer, execution: Execution, at_once: int) -> Executor:
        """As the settings ask for it."""
        return cls(trainer, execution, at_once, cls.settings(execution))

    @abstractmethod
    def train(self, round: Round) -> Iterator[Trained]:
        """Train all of the round's tasks. Yields them in their order, one or several of equal sizes at a time."""

    def report(self, clients: Sequence[int]) -> Sequence[dict[str, Tensor]]:
        """What each of these clients tells the server before it selects."""
        return [self.trainer.report(client) for client in clients]

    def close(self) -> None:  # noqa: B027 - an optional hook
        """The run is over, or has failed: end what was started."""


class Threads(Executor):
    """Clients train in this process: side by side in threads, and stacked in one pass where that is faster."""

    def train(self, round: Round) -> Iterator[Trained]:
        """A group that the device has no memory for is done again from the start, half as many clients at a time, and
        so are all that follow.
        """
        stop = threading.Event()

        def train(group: tuple[list[Task], State]) -> list[Trained]:
            tasks, state = group
            try:
                return [self.trainer.train(round.number, tasks, state, stop)]
            except torch.OutOfMemoryError:
                if len(tasks) == 1:
                    raise
            del group, state
            self.at_once = -(-len(tasks) // 2)
            halves = (tasks[: self.at_once], tasks[self.at_once :])
            return [done for half in halves for done in train((half, round.gather(half)))]

        groups = list(round.groups(self.at_once))
        gathered = ((tasks, round.gather(tasks)) for tasks in groups)
        # Compiled code is shared by threads that would get in each other's way.
        count = 1 if self.execution.compile else workers(self.trainer.device)
        return chain.from_iterable(in_threads(train, gathered, min(len(groups), count), stop))
