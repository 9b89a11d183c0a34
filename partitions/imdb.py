"""IMDB as the paper splits it: 100 clients with 375 reviews each, iid or with skewed labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from prism_bench.plugin import Partitioner, Population

from .dirichlet import dirichlet
from .iid import iid


def imdb(
    labels: np.ndarray, rng: np.random.Generator, clients: int = 100, samples: int = 375, alpha: float | None = None
) -> Population:
    """Give each client ``samples`` reviews: any, or with ``alpha`` in the proportions of one Dir(α) draw per client.

    >>> labels = np.arange(37_500) % 2
    >>> imdb(labels, np.random.default_rng(0)).summary(labels).partition(", classes")[0]
    '100 clients, samples 375'
    >>> skewed = imdb(labels, np.random.default_rng(0), clients=10, alpha=0.1).describe(labels)
    >>> bool(skewed["distance"].median() > 0.4)
    True
    """
    if alpha is None:
        return iid(len(labels), clients, rng, samples)
    return dirichlet(labels, clients, alpha, rng, samples)


class ImdbReviews(Partitioner):
    """375 reviews per client, as in the paper: iid, or with alpha one Dir(α) label distribution per client."""

    samples: PositiveInt = 375
    alpha: PositiveFloat | None = None

    def split(self, labels: np.ndarray, owners: Sequence[str] | None, rng: np.random.Generator) -> Population:
        return imdb(labels, rng, self.clients, self.samples, self.alpha)
