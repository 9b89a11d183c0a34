"""FEMNIST with nothing drawn: the first writers by name, ten neighbours per client.

The paper's 100 clients have 10 of the first 1,000 writers each; which ones go together is our reading.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prism_bench.plugin import Population

from .writers import Writers, by_writer


def femnist(writers: Sequence[str], clients: int = 100, each: int = 10) -> Population:
    """Give each client all samples of the next ``each`` writers in the order of their names: nothing is drawn.

    >>> partition = femnist(["eve", "bob", "ann", "bob", "dan"], clients=2, each=2)
    >>> partition[0].tolist(), partition[1].tolist()
    ([1, 2, 3], [0, 4])
    """
    return by_writer(writers, clients, each, rng=None)


class FemnistWriters(Writers):
    """All samples of k writers per client, the writers in the order of their names."""

    def split(self, labels: np.ndarray, owners: Sequence[str] | None, rng: np.random.Generator) -> Population:
        return femnist(self.named(owners), self.clients, self.each)
