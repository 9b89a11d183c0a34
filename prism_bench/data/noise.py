"""Random samples: for what costs and time depend on, which is their shape."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field, PositiveInt

from prism_bench.data.dataset import Dataset, Source, Split


class Noise(Source):
    """Random images, or words where there is a vocabulary: for costs and time, never for accuracy."""

    shape: tuple[PositiveInt, ...] = Field((3, 32, 32), min_length=1, description="of a sample: [3, 32, 32], or [500]")
    classes: PositiveInt = 10
    train: PositiveInt = Field(50_000, description="training samples")
    test: PositiveInt = Field(500, description="test samples")
    vocabulary: int | None = Field(
        None, gt=0, le=np.iinfo(np.int16).max, description="how many words there are; none: images"
    )
    seed: int = Field(0, ge=0)

    def load(self) -> Dataset:
        rng = np.random.default_rng(self.seed)
        top, kind = (256, np.uint8) if self.vocabulary is None else (self.vocabulary, np.int16)

        def part(count: int) -> Split:
            inputs = rng.integers(0, top, (count, *self.shape), kind)
            return Split(torch.from_numpy(inputs), torch.from_numpy(rng.integers(0, self.classes, count)))

        return Dataset(
            part(self.train), part(self.test), self.classes, mean=127.5, std=64.0, vocabulary=self.vocabulary
        )
