"""Label skew: one Dir(α) class distribution per client, the same number of samples each.

Clients' wishes seldom add up to what the data has. Serving them one after another would leave the last ones with
whatever is left over; here all are served at once. A class that is asked for too much is cut for every client by
the same factor, and each makes up for it from its other classes in its own proportions (iterative proportional
fitting, the smallest change in relative entropy). No client is worse off for its number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from prism_bench.plugin import Partitioner, Population, samples_each, whole


def dirichlet(
    labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator, samples: int | None = None
) -> Population:
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
    supply = np.unique(labels, return_counts=True)[1]
    counts = _counts(clients, samples, supply, alpha, rng)
    owners = np.full(len(labels), -1, whole(clients))
    pools = np.split(np.argsort(labels, kind="stable"), np.cumsum(supply)[:-1])
    for pool, count in zip(pools, counts, strict=True):
        dealt = np.repeat(np.arange(clients, dtype=owners.dtype), count)
        owners[rng.permutation(pool)[: len(dealt)]] = dealt
    return Population.from_owners(owners, clients)


def _counts(clients: int, samples: int, supply: np.ndarray, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Samples per class and client: each client's add up to ``samples``, each class's are within the supply."""
    wishes = np.empty((len(supply), clients), np.float32)
    for block in _blocks(clients):
        wishes[:, block] = rng.dirichlet(np.full(len(supply), alpha), wishes[0, block].size).T
    # A share of exactly zero could never be raised, even where a class must be used up.
    np.maximum(wishes, 1e-12, out=wishes)
    return _round(wishes, _fit(wishes, samples, supply), samples, supply, rng)


def _blocks(clients: int, size: int = 1 << 14) -> list[slice]:
    """Some clients at a time: what is worked out on the way stays in the caches, and is no memory to speak of."""
    return [slice(start, start + size) for start in range(0, clients, size)]


def _fit(wishes: np.ndarray, samples: int, supply: np.ndarray, rounds: int = 500) -> np.ndarray:
    """One factor per class, for the wishes of all clients, with which no class is asked for beyond its supply."""
    factors = np.ones(len(supply), wishes.dtype)
    for _ in range(rounds):
        asked = sum(
            _expected(wishes[:, block], factors, samples).sum(1).astype(float) for block in _blocks(wishes.shape[1])
        )
        if np.all(asked <= supply * (1 + 1e-5)):
            break
        factors *= np.minimum(1, supply / asked)
    return factors


def _expected(wishes: np.ndarray, factors: np.ndarray, samples: int) -> np.ndarray:
    """Expected samples per class and client: each client's add up to ``samples``."""
    shares: np.ndarray = wishes * factors[:, None]
    shares *= samples / shares.sum(0)
    return shares


def _round(
    wishes: np.ndarray, factors: np.ndarray, samples: int, supply: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Whole numbers within one of the expected ones, with the same sums per client, no class above its supply."""
    counts = np.empty(wishes.shape, np.min_scalar_type(samples))
    for block in _blocks(wishes.shape[1]):
        # Rounding the running sum from a random start keeps the client's sum and is right on average for every entry.
        running = np.cumsum(_expected(wishes[:, block], factors, samples), 0)
        edges = np.minimum(np.floor(running + rng.random(running.shape[1])), samples)
        edges[-1] = samples
        counts[:, block] = np.diff(edges, axis=0, prepend=0)
    # A class may still be over by a few: move single samples, first where rounding had gone the other way.
    left = supply - counts.sum(1, dtype=np.int64)
    for over in np.flatnonzero(left < 0):
        for under in np.argsort(-left, kind="stable"):
            while (excess := min(-left[over], left[under])) > 0:
                holders = np.flatnonzero(counts[over])
                expected = _expected(wishes[:, holders], factors, samples)
                too_many, too_few = (counts[label, holders] - expected[label] for label in (over, under))
                moved = holders[np.argsort(too_few - too_many, kind="stable")[:excess]]
                counts[over, moved] -= 1
                counts[under, moved] += 1
                left[over] += len(moved)
                left[under] -= len(moved)
    return counts


class Dirichlet(Partitioner):
    """One Dir(α) class distribution per client, an equal number of samples each; small α: few classes per client."""

    alpha: PositiveFloat
    samples: PositiveInt | None = None

    def split(self, labels: np.ndarray, owners: Sequence[str] | None, rng: np.random.Generator) -> Population:
        return dirichlet(labels, self.clients, self.alpha, rng, self.samples)
