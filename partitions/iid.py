"""An equal random share for every client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import PositiveInt

from prism_bench.plugin import Partitioner, Population, samples_each, whole


def iid(total: int, clients: int, rng: np.random.Generator, samples: int | None = None) -> Population:
    """Deal ``total`` samples to clients at random, the same number each (all that can be dealt, unless given).

    >>> iid(10, 3, np.random.default_rng(0)).sizes.tolist()
    [3, 3, 3]
    """
    samples = samples_each(total, clients, samples)
    dealt = rng.permutation(np.arange(total, dtype=whole(total)))[: clients * samples]
    return Population(np.sort(dealt.reshape(clients, samples)).ravel(), samples * np.arange(clients + 1))


class IID(Partitioner):
    """An equal random share for every client."""

    samples: PositiveInt | None = None

    def split(self, labels: np.ndarray, owners: Sequence[str] | None, rng: np.random.Generator) -> Population:
        return iid(len(labels), self.clients, rng, self.samples)
