"""FEMNIST: handwritten characters by writer, 62 classes in the order 0-9, A-Z, a-z.

The image convention, for every source: one grey channel of 28×28 bytes, black ink (0) on white paper (255), as the Hub
has it. LEAF's JSON and TFF's HDF5 hold the same as numbers from 0 (ink) to 1 (paper), scaled here by 255. A network
reads them less the training images' mean, over their standard deviation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from prism_bench.base.errors import BadInput
from prism_bench.core.seeds import stream
from prism_bench.data.dataset import Dataset, Split, held_out
from prism_bench.data.sources import OnProgress, Raw, RawForm, StoredSource, check_images, decode, moments, rows

CLASSES = 62
SHAPE = (1, 28, 28)
PIXELS = 28 * 28


@dataclass(frozen=True)
class Handwriting:
    """Images N×1×28×28, their labels and who wrote them."""

    images: Tensor
    labels: Tensor
    writers: np.ndarray

    @classmethod
    def join(cls, parts: Iterable[Handwriting]) -> Handwriting:
        images, labels, writers = zip(*((part.images, part.labels, part.writers) for part in parts), strict=True)
        return cls(torch.cat(images), torch.cat(labels), np.concatenate(writers))

    def __getitem__(self, chosen: np.ndarray) -> Handwriting:
        index = torch.from_numpy(np.flatnonzero(chosen))
        return Handwriting(self.images[index], self.labels[index], self.writers[chosen])


def scaled(pixels: np.ndarray, where: str) -> Tensor:
    """N images of numbers from 0 to 1, as bytes."""
    if pixels.size == 0 or pixels.size % PIXELS or not (pixels.min() >= 0 and pixels.max() <= 1):
        raise BadInput(f"{where}: needs images of 784 numbers from 0 (ink) to 1 (paper).")
    return torch.from_numpy(np.rint(pixels * 255).astype(np.uint8)).view(-1, *SHAPE)


def _read_hub(raw: Raw, tell: OnProgress) -> dict[str, Handwriting]:
    parts = []
    for piece in rows(raw, "train", {"image": "image", "writer_id": "text", "character": "label"}, tell):
        images = decode(piece["image"], "L", raw.place)
        parts.append(Handwriting(images, torch.tensor(piece["character"]), np.array(piece["writer_id"])))
    return {"all": Handwriting.join(parts)}


def _read_leaf(raw: Raw, tell: OnProgress) -> dict[str, Handwriting]:
    parts: dict[str, list[Handwriting]] = {}
    for done, file in enumerate(raw.files, start=1):
        split = "all" if file.parent.name == "all_data" else file.parent.name
        parts.setdefault(split, []).append(Handwriting.join(_leaf_writers(file)))
        tell("JSON files", done, len(raw.files))
    return {split: Handwriting.join(several) for split, several in parts.items()}


def _leaf_writers(file: Path) -> Iterable[Handwriting]:
    try:
        tree = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{file}: can't be read as JSON: {error}.") from None
    users = tree.get("user_data") if isinstance(tree, dict) else None
    if not isinstance(users, dict) or not users:
        raise BadInput(f"{file}: has no 'user_data' with writers below it; LEAF's files have {{users, user_data}}.")
    for name, user in users.items():
        where = f"{file}: user_data.{name}"
        try:
            pixels, labels = np.asarray(user["x"], np.float32), torch.tensor(user["y"], dtype=torch.int64)
        except (KeyError, TypeError, ValueError):
            raise BadInput(f"{where}: needs 'x', a list of 784 numbers an image, and 'y', a label each.") from None
        yield _of_writer(name, scaled(pixels, f"{where}.x"), labels, where)


def _read_tff(raw: Raw, tell: OnProgress) -> dict[str, Handwriting]:
    try:
        import h5py
    except ImportError:
        raise BadInput(f"{raw.files[0]}: needs h5py: pip install 'prism-bench[h5]'.") from None
    parts = {}
    for split in ("train", "test"):
        file = raw.file(f"fed_emnist_{split}.h5")
        try:
            with h5py.File(file) as tree:
                parts[split] = Handwriting.join(_tff_writers(tree, file, split, tell))
        except OSError as error:
            raise BadInput(f"{file}: can't be read as HDF5 ({error}); download it again.") from None
    return parts


def _tff_writers(tree: Any, file: Path, split: str, tell: OnProgress) -> Iterable[Handwriting]:
    writers = tree.get("examples")
    if not writers:
        raise BadInput(f"{file}: has no 'examples' with writers below it; TFF's files have examples/WRITER.")
    for done, (name, group) in enumerate(writers.items(), start=1):
        where = f"{file}: examples/{name}"
        for key in ("pixels", "label"):
            if key not in group:
                raise BadInput(f"{where}: has no '{key}'; TFF's files have 'pixels' and 'label' for each writer.")
        labels = torch.from_numpy(group["label"][()].astype(np.int64))
        yield _of_writer(name, scaled(group["pixels"][()], f"{where}/pixels"), labels, where)
        tell(f"{split} writers", done, len(writers))


def _of_writer(name: str, images: Tensor, labels: Tensor, where: str) -> Handwriting:
    check_images(images, labels, SHAPE, CLASSES, where)
    return Handwriting(images, labels, np.full(len(labels), name))


class FEMNIST(StoredSource):
    """FEMNIST: handwritten characters, 1×28×28, 62 classes, by writer; each writer's held-out part is the test set."""

    min_images: PositiveInt = Field(50, description="writers with fewer images are left out")
    test_share: float = Field(
        0.1, gt=0, lt=1, description="of each writer's images; a source with its own split keeps that"
    )

    title = "FEMNIST"
    preparation = 2
    hub = "flwrlabs/femnist"
    forms = (
        RawForm("the Hub's layout", ("flwrlabs/femnist",), ("**/*.parquet",), _read_hub),
        RawForm("LEAF's JSON, split", ("femnist/data", "femnist", "."), ("train/*.json", "test/*.json"), _read_leaf),
        RawForm("LEAF's JSON", ("femnist/data", "femnist", "."), ("all_data/*.json",), _read_leaf),
        RawForm("TFF's HDF5", (".", "fed_emnist", "femnist"), ("fed_emnist_*.h5",), _read_tff),
    )

    def prepare(self, raw: Raw, tell: OnProgress) -> dict[str, Any]:
        parts: Mapping[str, Handwriting] = raw.form.read(raw, tell)
        for part in parts.values():
            check_images(part.images, part.labels, SHAPE, CLASSES, raw.place)
        if "all" in parts:
            numbers = np.unique(parts["all"].writers, return_inverse=True)[1]
            # One fixed split for every seed: the test set is part of the benchmark.
            chosen = held_out(numbers, self.test_share, stream(0, "data"))
            parts = {"train": parts["all"][~chosen], "test": parts["all"][chosen]}
        for split in ("train", "test"):
            if split not in parts:
                raise BadInput(f"{raw.place}: has no '{split}' part beside the other one.")
        names, counts = np.unique(np.concatenate([part.writers for part in parts.values()]), return_counts=True)
        kept = names[counts >= self.min_images]
        train, test = (part[np.isin(part.writers, kept)] for part in (parts["train"], parts["test"]))
        if not len(train.labels) or not len(test.labels):
            raise BadInput(
                f"data.min_images: no writer in {raw.place} has {self.min_images} images; the most that one has is "
                f"{counts.max()}."
            )
        mean, std = moments(train.images)
        return {
            "train": (train.images, train.labels),
            "test": (test.images, test.labels),
            "names": kept.tolist(),
            "writers": torch.from_numpy(np.searchsorted(kept, train.writers).astype(np.int32)),
            "test_writers": torch.from_numpy(np.searchsorted(kept, test.writers).astype(np.int32)),
            "mean": mean,
            "std": std,
        }

    def assemble(self, tensors: Mapping[str, Any]) -> Dataset:
        names = np.array(tensors["names"])
        return Dataset(
            Split(*tensors["train"]),
            Split(*tensors["test"]),
            classes=CLASSES,
            mean=tuple(tensors["mean"]),
            std=tuple(tensors["std"]),
            owners=names[tensors["writers"].numpy()].tolist(),
            test_owners=names[tensors["test_writers"].numpy()].tolist(),
        )
