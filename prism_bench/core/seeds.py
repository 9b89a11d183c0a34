"""One seeded stream per axis of randomness, derived and never carried along.

A stream is a function of the run's seed, its purpose and its position (round, client, ...). Nothing is consumed from
a shared generator, so two algorithms under one seed see the same clients with the same data in the same
order, and a resumed run needs no generator state.
"""

from __future__ import annotations

import zlib
from typing import Literal

import numpy as np

Purpose = Literal[
    "data",
    "validation",
    "partition",
    "cohort",
    "capacity",
    "redraw",
    "weights",
    "batches",
    "augment",
    "selection",
    "noise",
    "view",
    "evaluation",
]


def stream(seed: int, purpose: Purpose, *position: int) -> np.random.Generator:
    """The generator for one purpose at one position. A purpose has positions of one length: a zero more at the end
    makes no other stream.

    >>> int(stream(0, "cohort", 3).integers(1 << 60)) == int(stream(0, "cohort", 3).integers(1 << 60))
    True
    >>> int(stream(0, "cohort", 3).integers(1 << 60)) == int(stream(0, "batches", 3).integers(1 << 60))
    False
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *position])
