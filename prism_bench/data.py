"""Data sets as tensors on a device, and the sources they come from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from prism_bench.config import Settings

CROP_PADDING = 4


@dataclass(frozen=True)
class Split:
    """Raw inputs (uint8 images N×C×H×W) and their labels."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Split:
        return Split(self.inputs.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Dataset:
    """A training and a test part, whole on one device; batches are cut and normalised there."""

    train: Split
    test: Split
    classes: int
    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]
    augment: bool = False
    writers: Sequence[str] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return tuple(self.train.inputs.shape[1:])

    def to(self, device: torch.device) -> Dataset:
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def normalise(self, raw: Tensor) -> Tensor:
        """Raw images (..., C, H, W) as what a network reads."""
        mean, std = (
            torch.tensor(value, device=raw.device, dtype=torch.float32).view(-1, 1, 1)
            for value in (self.mean, self.std)
        )
        return (raw.float() - mean) / std


def flip_and_crop(images: Tensor, offsets: Tensor, flips: Tensor) -> Tensor:
    """Shift each image (N×C×H×W) by its offset (N×2, 0 to 2·padding) within a black border, and mirror where asked.

    One gather for the whole batch, on its device.
    """
    count, _, height, width = images.shape
    padded = F.pad(images, [CROP_PADDING] * 4)
    rows = offsets[:, :1] + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device).expand(count, -1)
    columns = offsets[:, 1:] + torch.where(flips[:, None], columns.flip(1), columns)
    sample = torch.arange(count, device=images.device)
    cropped = padded.permute(0, 2, 3, 1)[sample[:, None, None], rows[:, :, None], columns[:, None, :]]
    return cropped.permute(0, 3, 1, 2)


def draw_augmentation(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and flips for one batch."""
    return rng.integers(0, 2 * CROP_PADDING + 1, (count, 2)), rng.random(count) < 0.5


class Source(Settings):
    """A data plugin: validated settings that load a data set."""

    @abstractmethod
    def load(self) -> Dataset: ...


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
