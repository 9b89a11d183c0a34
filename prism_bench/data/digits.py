"""The embedded data: scikit-learn's handwritten digits."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from prism_bench.data.dataset import Dataset, Source, Split


class Digits(Source):
    """1,797 real handwritten digits, 8×8, that ship with scikit-learn: nothing to download."""

    test_share: float = Field(0.25, gt=0, lt=1)

    def load(self) -> Dataset:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        images, labels = load_digits(return_X_y=True)
        # One fixed split for every seed: the test set is part of the benchmark.
        parts = train_test_split(images, labels, test_size=self.test_share, stratify=labels, random_state=0)
        train_x, test_x, train_y, test_y = (torch.from_numpy(np.ascontiguousarray(part)) for part in parts)
        train, test = (
            Split(x.view(-1, 1, 8, 8).to(torch.uint8), y.long()) for x, y in ((train_x, train_y), (test_x, test_y))
        )
        raw = train.inputs.float()
        return Dataset(train, test, classes=10, mean=raw.mean().item(), std=raw.std().item())
