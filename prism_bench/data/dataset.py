"""A data set as tensors on one device, and the contract of the sources it comes from."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from prism_bench.base.settings import Settings

CROP_PADDING = 4


@dataclass(frozen=True)
class Split:
    """Raw inputs (uint8 images N×C×H×W, or int16 tokens N×T) and their labels."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Split:
        return Split(self.inputs.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Signature:
    """What a network has to know of a data set: a sample's shape, the classes and, for text, the vocabulary's size."""

    shape: tuple[int, ...]
    classes: int
    vocabulary: int | None = None

    def example(self, batch: int, device: torch.device | str = "meta") -> Tensor:
        """A batch as a network reads it: images as floats, tokens as whole numbers."""
        dtype = torch.float32 if self.vocabulary is None else torch.int64
        return torch.zeros(batch, *self.shape, dtype=dtype, device=device)


@dataclass(frozen=True)
class Dataset:
    """A training and a test part, whole on one device; batches are cut and normalised there."""

    train: Split
    test: Split
    classes: int
    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0
    augment: bool = False
    owners: Sequence[str] | None = None
    """Whose each training sample is, where the data says so: a writer, a FedML client."""
    vocabulary: int | None = None

    @property
    def signature(self) -> Signature:
        return Signature(tuple(self.train.inputs.shape[1:]), self.classes, self.vocabulary)

    def digest(self) -> str:
        """Equal for equal data: what tells runs on another subset or another source apart."""
        content = hashlib.blake2b(digest_size=4)
        for part in (self.train.inputs, self.train.labels, self.test.inputs, self.test.labels):
            content.update(part.numpy().tobytes())
        content.update("\n".join(self.owners or ()).encode())
        return content.hexdigest()

    def to(self, device: torch.device) -> Dataset:
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def prepare(self, raw: Tensor) -> Tensor:
        """Raw images (..., C, H, W) or tokens (..., T) as what a network reads."""
        if self.vocabulary is not None:
            return raw.long()
        mean, std = (
            torch.tensor(value, device=raw.device, dtype=torch.float32).view(-1, 1, 1)
            for value in (self.mean, self.std)
        )
        return channels_last((raw.float() - mean) / std)


def channels_last(images: Tensor) -> Tensor:
    """One model's images N×C×H×W, on a CPU with a pixel's channels side by side: pooling takes a twentieth of the
    time, and convolutions take less, too. With clients stacked in front, or elsewhere than on a CPU, as they are.
    """
    if images.ndim != 4 or images.device.type != "cpu":
        return images
    # A copy even where there is one channel, and both orders are the same: what follows goes by the strides.
    return images.movedim(1, -1).clone(memory_format=torch.contiguous_format).movedim(-1, 1)


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
    # As they came: how images lie in memory is decided in one place, `channels_last`.
    return cropped.permute(0, 3, 1, 2).contiguous()


def draw_augmentation(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and flips for one batch."""
    return rng.integers(0, 2 * CROP_PADDING + 1, (count, 2)), rng.random(count) < 0.5


class Source(Settings):
    """A data plugin: validated settings that load a data set."""

    @abstractmethod
    def load(self) -> Dataset: ...
