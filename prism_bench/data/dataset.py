"""A data set as tensors on one device, and the contract of the sources it comes from."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from prism_bench.base.errors import BadInput
from prism_bench.base.settings import Settings
from prism_bench.core.seeds import stream

CROP_PADDING = 4


@dataclass(frozen=True)
class Split:
    """Raw inputs (uint8 images N×C×H×W, or int16 tokens N×T) and their labels."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: np.ndarray) -> Split:
        index = torch.from_numpy(chosen)
        return Split(self.inputs[index], self.labels[index])

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
    test_owners: Sequence[str] | None = None
    """Whose each test sample is, by the same names."""

    @property
    def signature(self) -> Signature:
        return Signature(tuple(self.train.inputs.shape[1:]), self.classes, self.vocabulary)

    def digest(self) -> str:
        """Equal for equal data: what tells runs on another subset or another source apart."""
        content = hashlib.blake2b(digest_size=4)
        for part in (self.train.inputs, self.train.labels, self.test.inputs, self.test.labels):
            content.update(part.numpy().tobytes())
        content.update("\n".join([*(self.owners or ()), *(self.test_owners or ())]).encode())
        return content.hexdigest()

    def without(self, held: np.ndarray) -> Dataset:
        """The same with a part of the training samples, true in ``held``, left out."""
        owners = None if self.owners is None else np.asarray(self.owners, object)[~held].tolist()
        return replace(self, train=self.train[np.flatnonzero(~held)], owners=owners)

    def validated_on(self, held: np.ndarray) -> Dataset:
        """The same with a part of the training samples in place of the test samples: nothing of those is left."""
        owners = None if self.owners is None else np.asarray(self.owners, object)[held].tolist()
        return replace(self.without(held), test=self.train[np.flatnonzero(held)], test_owners=owners)

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


def held_out(groups: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """True for a share of each group's samples: at least one, and never all. Groups are numbered from 0.

    >>> held_out(np.array([0] * 10 + [1] * 30 + [2]), 0.1, np.random.default_rng(0)).nonzero()[0].shape
    (4,)
    """
    order = rng.permutation(len(groups))
    order = order[np.argsort(groups[order], kind="stable")]
    sizes = np.bincount(groups)
    quota = np.minimum(np.maximum(np.rint(share * sizes), 1), sizes - 1)
    rank = np.arange(len(groups)) - (np.cumsum(sizes) - sizes)[groups[order]]
    chosen = np.zeros(len(groups), bool)
    chosen[order] = rank < quota[groups[order]]
    return chosen


class Source(Settings):
    """A data plugin: validated settings that load a data set."""

    validation: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the training samples that nobody trains on, of each writer or else of each class: what "
        "settings are chosen by (evaluation.on: validation)",
    )

    @abstractmethod
    def load(self) -> Dataset: ...

    def read(self, on: str = "test") -> Dataset:
        """The data set as a run sees it: without the validation samples, and with what it is evaluated ``on``.

        Which samples those are is the same for every seed, as the test set is; where they are evaluated on, the test
        samples are not there at all.
        """
        if on == "validation" and not self.validation:
            raise BadInput("evaluation.on: 'validation' needs validation data; set data.validation, such as 0.1.")
        whole = self.load()
        if not self.validation:
            return whole
        groups = whole.train.labels.numpy() if whole.owners is None else np.unique(whole.owners, return_inverse=True)[1]
        held = held_out(groups, self.validation, stream(0, "validation"))
        return whole.validated_on(held) if on == "validation" else whole.without(held)
