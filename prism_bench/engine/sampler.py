"""The contract of client samplers: which clients take part in a round, from what is known of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prism_bench.base.settings import Settings


@dataclass(frozen=True)
class Known:
    """What is known of all clients before a round, one entry per client; a million clients are no trouble."""

    samples: np.ndarray
    """How many samples each has."""
    capacity: np.ndarray | None
    """The number of its capacity among the run's; None where capacities are dealt out anew each round."""
    keeps: Sequence[float]
    """The keep ratio of each capacity."""

    def __len__(self) -> int:
        return len(self.samples)


class Sampler(Settings):
    """A sampler plugin: validated settings that draw a round's clients."""

    @abstractmethod
    def draw(self, count: int, known: Known, rng: np.random.Generator) -> np.ndarray:
        """The numbers of ``count`` distinct clients. The generator is the same for every algorithm under one seed."""
