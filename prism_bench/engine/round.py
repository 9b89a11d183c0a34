"""A round under way on the server: who takes part, what each trains, and what has come back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from prism_bench.core.algorithm import Algorithm, Client
from prism_bench.core.axes import Selection, State, sizes_of
from prism_bench.core.submodel import gather_stacked
from prism_bench.engine.costs import Costs
from prism_bench.engine.hardware import Stopwatch


@dataclass(frozen=True)
class Task:
    """One sub-model that a client trains in a round."""

    client: Client
    selection: Selection
    part: int = 0
    """Which of the client's sub-models, where it trains several."""
    memory: State = field(default_factory=dict)
    """What the client kept of its last participation."""

    @cached_property
    def sizes(self) -> dict[str, int]:
        """How long each axis is that is cut: tasks of equal sizes have sub-models of equal shapes."""
        return dict(sorted(sizes_of(self.selection).items()))


@dataclass(frozen=True)
class Trained:
    """Tasks of equal sizes after training: their tensors stacked, each one's loss, and what each client keeps."""

    tasks: Sequence[Task]
    state: State
    losses: Tensor
    memories: Sequence[State]


class Round:
    """A round: its number (from 0), its cohort, and the tasks in the order in which they are merged.

    Tasks of equal sizes are neighbours, so that an executor may train several in one pass; otherwise they are in the
    order of the cohort.
    """

    sizes: Sequence[str]
    """What each client of the cohort is charged for, in the cohort's order."""
    costs: Sequence[Costs]
    """What that costs each."""

    def __init__(
        self,
        number: int,
        cohort: Sequence[Client],
        tasks: Sequence[Task],
        algorithm: Algorithm,
        weights: Mapping[int, float | Mapping[str, float]],
        clock: Stopwatch,
    ) -> None:
        self.number, self.cohort, self.weights, self.clock = number, cohort, weights, clock
        alike: dict[tuple[tuple[str, int], ...], list[Task]] = {}
        for task in tasks:
            alike.setdefault(tuple(task.sizes.items()), []).append(task)
        self.tasks = [task for equal in alike.values() for task in equal]
        self.merge, self.unsent = algorithm.merge(), algorithm.unsent()
        self.losses: list[Tensor] = []
        self.memories: dict[int, dict[int, State]] = {}

    def groups(self, at_once: int) -> Iterator[list[Task]]:
        """The tasks in their order, up to so many of equal sizes together."""
        start = 0
        while start < len(self.tasks):
            sizes, end = self.tasks[start].sizes, start + 1
            while end < min(start + at_once, len(self.tasks)) and self.tasks[end].sizes == sizes:
                end += 1
            yield self.tasks[start:end]
            start = end

    def gather(self, tasks: Sequence[Task]) -> State:
        """The tasks' sub-models, of equal shapes, stacked: copies, and all that clients get of the server's tensors."""
        with self.clock("create"):
            return gather_stacked(self.merge.state, self.merge.layout, [task.selection for task in tasks])

    def add(self, trained: Trained) -> None:
        """Take in stacked sub-models after training. The order of the tasks shows in the last digits of the sums."""
        with self.clock("merge"):
            for row, task in enumerate(trained.tasks):
                updated = {name: tensor[row] for name, tensor in trained.state.items() if name not in self.unsent}
                self.merge.add(task.selection, updated, self.weights[task.client.number])
                self.memories.setdefault(task.client.number, {})[task.part] = trained.memories[row]
        self.losses.append(trained.losses)
