"""An equal random share for every client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import PositiveInt

from prism_bench.errors import BadInput
from prism_bench.partition import Partition, Partitioner


def iid(total: int, clients: int, rng: np.random.Generator, samples: int | None = None) -> Partition:
    """Deal ``total`` samples to clients at random, the same number each (all that can be dealt, unless given).

    >>> iid(10, 3, np.random.default_rng(0)).sizes.tolist()
    [3, 3, 3]
    """
    samples = samples_each(total, clients, samples)
    owners = np.full(total, -1)
    owners[rng.permutation(total)[: clients * samples]] = np.repeat(np.arange(clients), samples)
    return Partition.from_owners(owners, clients)


def samples_each(total: int, clients: int, samples: int | None) -> int:
    """How many samples each client gets; BadInput where there are too few."""
    each = total // clients if samples is None else samples
    if each < 1 or each * clients > total:
        wanted = f"{samples} samples" if samples else "at least one sample"
        raise BadInput(
            f"partition.clients: {clients} clients with {wanted} each need {max(each, 1) * clients} samples, "
            f"but the training data has {total}; at most {total // max(each, 1)} clients are possible."
        )
    return each


class IID(Partitioner):
    """An equal random share for every client."""

    samples: PositiveInt | None = None

    def split(self, labels: np.ndarray, writers: Sequence[str] | None, rng: np.random.Generator) -> Partition:
        return iid(len(labels), self.clients, rng, self.samples)
