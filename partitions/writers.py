"""Natural skew: each client is a few of the people who wrote the samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from pydantic import PositiveInt

from prism_bench.plugin import BadInput, Partitioner, Population, whole


def by_writer(writers: Sequence[str], clients: int, each: int, rng: np.random.Generator | None) -> Population:
    """Give each client all samples of ``each`` writers; writers left over are left out.

    Writers are drawn at random; without a generator they are taken in the order of their names.

    >>> partition = by_writer(["ann", "bob", "ann", "eve", "bob"], clients=1, each=2, rng=np.random.default_rng(0))
    >>> len({["ann", "bob", "ann", "eve", "bob"][sample] for sample in partition[0]})
    2
    """
    numbers, names = pd.factorize(np.asarray(writers, dtype=object), sort=True)
    if clients * each > len(names):
        raise BadInput(
            f"partition.clients: {clients} clients × {each} writers need {clients * each} writers, "
            f"but the training data has {len(names)}; at most {len(names) // each} clients are possible."
        )
    owner = np.full(len(names), -1, whole(clients))
    order = np.arange(len(names)) if rng is None else rng.permutation(len(names))
    owner[order[: clients * each]] = np.repeat(np.arange(clients), each)
    return Population.from_owners(owner[numbers], clients)


class Writers(Partitioner):
    """All samples of k writers per client, for data that knows its writers."""

    each: PositiveInt = 10

    def split(self, labels: np.ndarray, owners: Sequence[str] | None, rng: np.random.Generator) -> Population:
        return by_writer(self.named(owners), self.clients, self.each, rng)

    @staticmethod
    def named(owners: Sequence[str] | None) -> Sequence[str]:
        """The writers; BadInput where the data doesn't name them."""
        if owners is None:
            raise BadInput("partition.name: needs data that names its writers; try 'iid' or 'dirichlet'.")
        return owners
