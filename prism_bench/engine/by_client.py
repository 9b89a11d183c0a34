"""How good a model is for each client: on what the client itself would see."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prism_bench.data.dataset import Dataset
from prism_bench.data.population import Population

WORST = 0.1
"""The share of the clients whose mean is shown beside that of all."""


class ByClient:
    """Weights of test samples, or of their classes, per client.

    Where the data names its writers and each writer is with one client, a client's test samples are its writers' own;
    else all of the test set, each class weighted by its share among the client's training samples.
    """

    def __init__(self, data: Dataset, population: Population) -> None:
        self.clients = len(population)
        groups = _owners(data, population)
        if groups is None:
            self.group = data.test.labels.cpu().numpy()
            labels = data.train.labels.cpu().numpy()[population.order]
            owner = np.repeat(np.arange(self.clients), population.sizes)
            # Pairs that occur, which are no more than the samples: clients × classes may be many times that.
            pairs, counts = np.unique(owner * data.classes + labels, return_counts=True)
            self.client, self.part = np.divmod(pairs, data.classes)
            self.weight = counts.astype(float)
        else:
            self.group = groups
            self.client = self.part = np.unique(groups[groups >= 0])
            self.weight = np.ones(len(self.client))

    def accuracies(self, correct: np.ndarray) -> np.ndarray:
        """Each client's, in %; not a number for one that has no test samples."""
        known = self.group >= 0
        group = self.group[known]
        right, all_of = (
            np.bincount(group, weights, max(self.part.max(), group.max()) + 1) for weights in (correct[known], None)
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            share = (right / all_of)[self.part]
            there = np.isfinite(share)
            summed, weight = (
                np.bincount(self.client[there], values[there], self.clients)
                for values in (self.weight * share, self.weight)
            )
            accuracies: np.ndarray = 100 * summed / weight
        return accuracies


def worst(accuracies: np.ndarray, share: float = WORST) -> float:
    """The mean over the worst share of the clients that have any test samples.

    >>> worst(np.array([50.0, 90.0, np.nan, 70.0]), share=0.5)
    60.0
    """
    known = np.sort(accuracies[~np.isnan(accuracies)])
    return float(known[: max(1, round(share * len(known)))].mean())


def _owners(data: Dataset, population: Population) -> np.ndarray | None:
    """The client of each test sample, by whom it is from; None where the data or the partition doesn't say."""
    if data.owners is None or data.test_owners is None:
        return None
    names, owner = np.unique(data.owners, return_inverse=True)
    client = np.repeat(np.arange(len(population)), population.sizes)
    first = np.full(len(names), -1)
    first[owner[population.order]] = client
    if (first[owner[population.order]] != client).any():
        return None  # a writer's samples are with several clients
    place = np.searchsorted(names, data.test_owners).clip(max=len(names) - 1)
    return np.where(names[place] == np.asarray(data.test_owners), first[place], -1)


def mixed(each: Sequence[np.ndarray], dealt: np.ndarray | None, shares: Sequence[float]) -> np.ndarray:
    """Each client's accuracy with the model of its capacity; where capacities are redrawn, the mean over them."""
    if dealt is None:
        return np.average(each, axis=0, weights=shares)
    chosen: np.ndarray = np.choose(dealt, each)
    return chosen
