"""A partition: samples sorted by their label and cut into equal pieces, so that most clients have one class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prism_bench.plugin import Partitioner, Population, samples_each


class OneClass(Partitioner):
    """Samples sorted by label and dealt in equal pieces: most clients have one class only."""

    def split(self, labels: np.ndarray, owners: Sequence[str] | None, rng: np.random.Generator) -> Population:
        each = samples_each(len(labels), self.clients, None)
        mixed = rng.permutation(len(labels))
        order = mixed[np.argsort(labels[mixed], kind="stable")][: each * self.clients]
        return Population(order, each * np.arange(self.clients + 1))
