"""CIFAR-10: 60,000 colour images of 32×32 in ten classes; and the readers that it shares with CIFAR-100."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from prism_bench.base.errors import BadInput
from prism_bench.data import batches
from prism_bench.data.dataset import Dataset, Split
from prism_bench.data.sources import OnProgress, Raw, RawForm, StoredSource, check_images, decode, moments, rows

SHAPE = (3, 32, 32)
BATCHES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}

Part = tuple[Tensor, Tensor]


def read_hub(raw: Raw, tell: OnProgress, label: str = "label") -> dict[str, Part]:
    """Read the parquet files of the Hub; ``label`` is the column of the classes."""
    parts = {}
    for split in BATCHES:
        images, labels = [], []
        for piece in rows(raw, split, {"img": "image", label: "label"}, tell):
            images.append(decode(piece["img"], "RGB", raw.place))
            labels.append(torch.tensor(piece[label]))
        parts[split] = (torch.cat(images), torch.cat(labels))
    return parts


def read_batches(
    raw: Raw,
    tell: OnProgress,
    title: str = "CIFAR-10",
    files: Mapping[str, Sequence[str]] = BATCHES,
    key: str = "labels",
    classes: int = 10,
) -> dict[str, Part]:
    """Read the pickles of the Python version, which are called differently in each data set."""
    parts = {}
    for split, names in files.items():
        images, labels = [], []
        for done, name in enumerate(names, start=1):
            file = raw.file(name)
            batch = _batch(file, title)
            for wanted in ("data", key):
                if wanted.encode() not in batch:
                    raise BadInput(f"{file}: has no '{wanted}'; it is no batch of {title}'s Python version.")
            try:
                images.append(torch.from_numpy(np.asarray(batch[b"data"], np.uint8).reshape(-1, *SHAPE)))
                labels.append(torch.tensor(batch[key.encode()], dtype=torch.int64))
            except (ValueError, TypeError, OverflowError, RuntimeError) as error:
                raise BadInput(f"{file}: 'data' or '{key}' is not what {title} has there: {error}.") from None
            check_images(images[-1], labels[-1], SHAPE, classes, file)
            tell(f"{split} batches", done, len(names))
        parts[split] = (torch.cat(images), torch.cat(labels))
    return parts


def _batch(file: Path, title: str) -> Mapping[bytes, Any]:
    try:
        return batches.read(file)
    except (OSError, ValueError) as error:
        raise BadInput(f"{file}: can't be read as a batch of {title} ({error}); download it again.") from None


class CIFAR10(StoredSource):
    """CIFAR-10: 50,000 training and 10,000 test images, 3×32×32, ten classes; flipped and cropped in training."""

    title = "CIFAR-10"
    complete = 60_000
    classes: ClassVar[int] = 10
    hub = "uoft-cs/cifar10"
    forms = (
        RawForm("the Hub's layout", ("uoft-cs/cifar10",), ("**/*.parquet",), read_hub),
        RawForm(
            "CIFAR-10's Python version", ("cifar-10-batches-py", "."), ("data_batch_[1-5]", "test_batch"), read_batches
        ),
    )

    def prepare(self, raw: Raw, tell: OnProgress) -> dict[str, Any]:
        parts: Mapping[str, Part] = raw.form.read(raw, tell)
        for images, labels in parts.values():
            check_images(images, labels, SHAPE, self.classes, raw.place)
        mean, std = moments(parts["train"][0])
        return {**parts, "mean": mean, "std": std}

    def assemble(self, tensors: Mapping[str, Any]) -> Dataset:
        return Dataset(
            Split(*tensors["train"]),
            Split(*tensors["test"]),
            classes=self.classes,
            mean=tuple(tensors["mean"]),
            std=tuple(tensors["std"]),
            augment=True,
        )
