"""A data set: images of stripes, upright or level, that need no file."""

from __future__ import annotations

import torch
from pydantic import PositiveInt

from prism_bench.plugin import Dataset, Source, Split


class Stripes(Source):
    """Upright or level stripes in noise, on 8×8 images: two classes, nothing to download."""

    samples: PositiveInt = 400

    def load(self) -> Dataset:
        rng = torch.Generator().manual_seed(0)
        return Dataset(self._part(self.samples, rng), self._part(100, rng), classes=2, mean=128.0, std=80.0)

    def _part(self, count: int, rng: torch.Generator) -> Split:
        labels = torch.randint(2, (count,), generator=rng)
        upright = (torch.arange(8) % 2 * 128).expand(count, 1, 8, 8)
        stripes = torch.where(labels.view(-1, 1, 1, 1) == 1, upright, upright.mT)
        noise = torch.randint(128, (count, 1, 8, 8), generator=rng)
        return Split((stripes + noise).to(torch.uint8), labels)
