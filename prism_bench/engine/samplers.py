"""The samplers that come with the suite."""

from __future__ import annotations

import numpy as np

from prism_bench.engine.sampler import Known, Sampler


class Uniform(Sampler):
    """Every client is equally likely to take part."""

    def draw(self, count: int, known: Known, rng: np.random.Generator) -> np.ndarray:
        # Costs what the active clients do, however many there are in all.
        return rng.choice(len(known), count, replace=False)


class BySamples(Sampler):
    """Clients take part with a probability in proportion to how many samples they have."""

    def draw(self, count: int, known: Known, rng: np.random.Generator) -> np.ndarray:
        return rng.choice(len(known), count, replace=False, p=known.samples / known.samples.sum())
