"""A sampler: the clients with the most samples, the same ones in every round."""

from __future__ import annotations

import numpy as np

from prism_bench.plugin import Known, Sampler


class Largest(Sampler):
    """The clients that have the most samples; among equals, who goes first is drawn."""

    def draw(self, count: int, known: Known, rng: np.random.Generator) -> np.ndarray:
        mixed = rng.permutation(len(known))
        return mixed[np.argsort(-known.samples[mixed], kind="stable")][:count]
