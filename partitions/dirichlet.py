"""Label skew: one Dir(α) class distribution a client, the same number of samples each.

Clients' wishes seldom add up to what the data has. Serving them one after another would leave the last ones with
whatever is left over; here all are served at once. A class that is asked for too much is cut for every client by
the same factor, and each makes up for it from its other classes in its own proportions (iterative proportional
fitting, the smallest change in relative entropy). No client is worse off for its number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from prism_bench.partition import Partition, Partitioner, samples_each


def dirichlet(
    labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator, samples: int | None = None
) -> Partition:
    """Give each client ``samples`` samples (all that can be dealt, unless given), without replacement.

    >>> labels = np.arange(1000) % 10
    >>> partition = dirichlet(labels, clients=20, alpha=0.1, rng=np.random.default_rng(0))
    >>> partition.sizes.tolist() == [50] * 20
    True
    >>> bool(partition.describe(labels)["distance"].mean() > 0.5)
    True
    """
    samples = samples_each(len(labels), clients, samples)
    # Classes that do not occur have no share to draw.
    labels = np.unique(labels, return_inverse=True)[1]
    supply = np.bincount(labels)
    wishes = rng.dirichlet(np.full(len(supply), alpha), clients)
    counts = _round(_fit(wishes, samples, supply), samples, supply, rng)

    owners = np.full(len(labels), -1)
    for label, column in enumerate(counts.T):
        pool = rng.permutation(np.flatnonzero(labels == label))
        owners[pool[: column.sum()]] = np.repeat(np.arange(clients), column)
    return Partition.from_owners(owners, clients)


def _fit(wishes: np.ndarray, samples: int, supply: np.ndarray, rounds: int = 500) -> np.ndarray:
    """Expected samples per client and class: rows add up to ``samples``, no column exceeds the supply."""
    # A share of exactly zero could never be raised, even where a class must be used up.
    shares = np.maximum(wishes, 1e-12)
    expected: np.ndarray = samples * shares / shares.sum(1, keepdims=True)
    for _ in range(rounds):
        asked = expected.sum(0)
        if np.all(asked <= supply * (1 + 1e-6)):
            break
        expected *= np.minimum(1, supply / asked)
        expected *= samples / expected.sum(1, keepdims=True)
    return expected


def _round(expected: np.ndarray, samples: int, supply: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Whole numbers within one of the expected ones, with the same row sums, no column above the supply."""
    clients, classes = expected.shape
    # Rounding the running sum from a random start keeps the row's sum and is right on average for every entry.
    start = rng.random((clients, 1))
    edges = np.floor(np.cumsum(expected, 1) + start)
    edges[:, -1] = samples
    counts = np.diff(np.minimum(edges, samples), prepend=0).astype(int)
    # A class may still be over by a few: move single samples, first where rounding had gone the other way.
    for over in range(classes):
        for under in np.argsort(counts.sum(0) - supply):
            excess = min(counts[:, over].sum() - supply[over], supply[under] - counts[:, under].sum())
            while excess > 0:
                too_many, too_few = (counts[:, label] - expected[:, label] for label in (over, under))
                gain = np.where(counts[:, over] > 0, too_many - too_few, -np.inf)
                moved = np.argsort(-gain, kind="stable")[:excess]
                moved = moved[counts[moved, over] > 0]
                counts[moved, over] -= 1
                counts[moved, under] += 1
                excess -= len(moved)
    return counts


class Dirichlet(Partitioner):
    """One Dir(α) class distribution a client, an equal number of samples each; small α: few classes a client."""

    alpha: PositiveFloat
    samples: PositiveInt | None = None

    def split(self, labels: np.ndarray, writers: Sequence[str] | None, rng: np.random.Generator) -> Partition:
        return dirichlet(labels, self.clients, self.alpha, rng, self.samples)
