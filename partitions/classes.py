"""Label skew of another kind: each client has samples of a few classes only, as many of each.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, cut the
sorted data into shards and deal each client two; HeteroFL and FedRolex test on such a partition.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field, PositiveInt

from prism_bench.plugin import BadInput, Partitioner, Population, whole


def by_classes(
    labels: np.ndarray, clients: int, each: int, rng: np.random.Generator, samples: int | None = None
) -> Population:
    """Give each client ``samples`` samples (all that can be dealt, unless given) of ``each`` different classes.

    Which classes is drawn, and every class goes to as many clients as any other, give or take one. Without ``samples``
    the rarest class decides how many samples there are per client; what is left over is left out.

    >>> labels = np.arange(1000) % 10
    >>> population = by_classes(labels, clients=20, each=2, rng=np.random.default_rng(0))
    >>> population.summary(labels).partition(", distance")[0]
    '20 clients, samples 50, classes 2'
    """
    # Classes that do not occur have nothing to give.
    names, supply = np.unique(labels, return_counts=True)
    if each > len(names):
        raise BadInput(f"partition.each: {each} classes per client, but the training data has {len(names)}.")
    held = _deal(clients, each, len(names), rng)
    holders = np.bincount(held.ravel(), minlength=len(names))
    if samples is None:
        samples = each * int((supply[holders > 0] // holders[holders > 0]).min())
    # Where the classes don't share evenly, the first of a client's classes have one sample more.
    quota = samples // each + (np.arange(each) < samples % each)
    asked = np.bincount(held.ravel(), np.tile(quota, clients), len(names)).astype(int)
    short = int(np.argmax(asked - supply))
    if quota.min() < 1 or asked[short] > supply[short]:
        scarce = int(np.argmin(supply / np.maximum(holders, 1)))
        raise BadInput(
            f"partition.clients: {clients} clients with {samples or 'some'} samples of {each} classes each are too "
            f"many: class {names[scarce]} has {supply[scarce]} samples for {holders[scarce]} clients."
        )
    owners = np.full(len(labels), -1, whole(clients))
    for number, name in enumerate(names):
        client, place = np.nonzero(held == number)
        dealt = np.repeat(client, quota[place])
        owners[rng.permutation(np.flatnonzero(labels == name))[: len(dealt)]] = dealt
    return Population.from_owners(owners, clients)


def _deal(clients: int, each: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    """The classes per client: those that the fewest clients have so far, and among equals at random."""
    held, dealt = np.empty((clients, each), int), np.zeros(classes, int)
    for client in range(clients):
        held[client] = np.lexsort((rng.random(classes), dealt))[:each]
        dealt[held[client]] += 1
    # Else the classes that are rarer among clients would come first, and have the odd sample more.
    return rng.permuted(held, axis=1)


class Classes(Partitioner):
    """Samples of a few classes per client, an equal number of each: with two the shards of HeteroFL and FedRolex."""

    each: PositiveInt = Field(2, description="classes per client")
    samples: PositiveInt | None = Field(None, description="samples per client; none: all that can be dealt")

    def split(self, labels: np.ndarray, owners: Sequence[str] | None, rng: np.random.Generator) -> Population:
        return by_classes(labels, self.clients, self.each, rng, self.samples)
