"""Raw data: where it lies, in which layout, and one loader for the Hub and for a folder in the Hub's layout.

The data root is looked in first: the setting ``data.root``, else the environment variable PRISM_BENCH_DATA, else the
user's cache folder. The Hub comes last, and only where the user allows the network.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from prism_bench.base.errors import BadInput
from prism_bench.data import cache
from prism_bench.data.dataset import Dataset, Source

OnProgress = Callable[[str, int, int | None], None]
"""Told of progress: what is being read, how many are done, and of how many where that is known."""

Column = Literal["image", "label", "text"]
"""What a column holds."""

ROWS_AT_ONCE = 1000


def quiet(what: str, done: int, total: int | None) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class RawForm:
    """A form in which people have a data set: its name, where below the root, which files there, and its reader."""

    name: str
    places: tuple[str, ...]
    patterns: tuple[str, ...]
    read: Callable[[Raw, OnProgress], Mapping[str, Any]]

    def find(self, root: Path) -> Raw | None:
        for place in self.places:
            folder = root / place
            files = sorted(file for pattern in self.patterns for file in folder.glob(pattern))
            if files:
                return Raw(self, folder, tuple(files))
        return None


@dataclass(frozen=True)
class Raw:
    """Raw data that was found: a folder with its files, or a data set's id on the Hub, which has none here."""

    form: RawForm
    place: Path | str
    files: tuple[Path, ...] = ()

    def fingerprint(self) -> list[Any]:
        """Changes when the files do."""
        seen = [(file, file.stat()) for file in self.files]
        files = [[str(file), status.st_size, status.st_mtime_ns] for file, status in seen]
        return [self.form.name, str(self.place), files]

    def file(self, name: str) -> Path:
        """The file of that name; BadInput where it is not among those found."""
        for file in self.files:
            if file.name == name:
                return file
        raise BadInput(f"{self.place}: '{name}' is missing.")


class StoredSource(Source):
    """A data set from a disk or the Hub: found, prepared once, kept as tensors."""

    # Where data lies and how it got there changes no number, so neither is part of a run's identity.
    root: Path | None = Field(None, exclude=True, description="folder with raw data")
    allow_network: bool = Field(False, exclude=True, description="download from the Hub what is not in the root")

    title: ClassVar[str]
    complete: ClassVar[int | None] = None
    """Samples that the whole data set has, where every published form has the same."""
    hub: ClassVar[str]
    forms: ClassVar[tuple[RawForm, ...]]
    """The Hub's own layout first."""
    preparation: ClassVar[int] = 1
    """Raised when a change of the code changes the tensors, so that older ones are not taken for them."""

    @abstractmethod
    def prepare(self, raw: Raw, tell: OnProgress) -> dict[str, Any]:
        """Raw data as tensors, ready to be kept."""

    @abstractmethod
    def assemble(self, tensors: Mapping[str, Any]) -> Dataset: ...

    def load(self, tell: OnProgress = quiet) -> Dataset:
        raw = self.find()
        return self.assemble(cache.fetch(self._name, self.key(raw), lambda: self.prepare(raw, tell)))

    @property
    def _name(self) -> str:
        return type(self).__name__.lower()

    @property
    def folder(self) -> Path:
        """The data root."""
        root = Path(self.root or os.environ.get("PRISM_BENCH_DATA") or cache.home() / "data")
        # A relative path could be taken for the id of a data set on the Hub.
        return root.expanduser().absolute()

    def find(self) -> Raw:
        """The raw data, from the root or the Hub; BadInput that says how to get it where there is none."""
        for form in self.forms:
            raw = form.find(self.folder)
            if raw:
                return raw
        online = Raw(self.forms[0], self.hub)
        variable = os.environ.get("PRISM_BENCH_NETWORK", "").lower()
        allowed = self.allow_network or variable not in ("", "0", "false", "no")
        # What was downloaded and prepared once needs no network again.
        if allowed or self.prepared(online):
            return online
        raise BadInput(self._how_to_get_it())

    def key(self, raw: Raw) -> str:
        """Equal for the same files and settings, and for those only."""
        # What is held out for validation is cut off later.
        parts = [self.preparation, raw.fingerprint(), self.model_dump(mode="json", exclude={"validation"})]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def prepared(self, raw: Raw) -> list[Path]:
        """Files with tensors that were prepared from this raw data with these settings."""
        return cache.find(self._name, self.key(raw))

    def _how_to_get_it(self) -> str:
        there = "" if self.folder.is_dir() else ", which is not a folder yet"
        forms = (f"{form.places[0]}/{form.patterns[0]} ({form.name})" for form in self.forms[1:])
        others = ", ".join(form.removeprefix("./") for form in forms)
        return (
            f"data: {self.title} is not in {self.folder}{there} (data.root or PRISM_BENCH_DATA). "
            "Three ways to get it:\n"
            f"data: 1. download it from the Hub: prism-bench data prepare {self._name} --allow-network, "
            "or PRISM_BENCH_NETWORK=1;\n"
            f"data: 2. copy the Hub's files: hf download {self.hub} --repo-type dataset "
            f"--local-dir {self.folder / self.hub};\n"
            f"data: 3. put what you have there, or point data.root to it: {others}."
        )


def rows(raw: Raw, split: str, columns: Mapping[str, Column], tell: OnProgress) -> Iterator[dict[str, list[Any]]]:
    """A split's columns in pieces, images still encoded: the same for the Hub and for a folder in its layout."""
    import pyarrow

    files = [file for file in raw.files if split in (file.name[: len(split)], file.parent.name)]
    done, total = 0, sum(map(_count, files)) if raw.files else None
    try:
        for table in _of_files(files) if raw.files else _of_the_hub(str(raw.place), split):
            for column, kind in columns.items():
                _check_column(table, column, kind, f"{raw.place}: the {split} split")
            done += len(table)
            yield {column: table[column].to_pylist() for column in columns}
            tell(f"{split} rows", done, total)
        if not done:
            raise BadInput(f"{raw.place}: the {split} split has no rows; download it again.")
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        how = "download it again." if raw.files else "is the network there, and does the Hub answer?"
        raise BadInput(f"{raw.place}: the {split} split can't be read ({_first_line(error)}); {how}") from error


def _of_files(files: Sequence[Path]) -> Iterator[Any]:
    """The rows of these files and of no others: what lies beside them, such as a README, could name any address."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in files:
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(ROWS_AT_ONCE):
                yield pa.Table.from_batches([batch])


def _of_the_hub(name: str, split: str) -> Iterator[Any]:
    import datasets

    # Streaming makes no second copy of the data on the disk.
    stream = datasets.load_dataset(name, split=split, streaming=True)
    yield from stream.with_format("arrow").iter(ROWS_AT_ONCE)


def _check_column(table: Any, column: str, kind: Column, where: str) -> None:
    import pyarrow.types as types

    if column not in table.column_names:
        raise BadInput(f"{where} has no column '{column}', only: {', '.join(table.column_names)}.")
    found, empty = table[column].type, table[column].null_count
    fits = {
        "image": types.is_struct(found),
        "label": types.is_integer(found),
        "text": types.is_string(found) or types.is_large_string(found),
    }
    if empty or not fits[kind]:
        raise BadInput(f"{where} needs a {kind} in every row of column '{column}' (got {found}, {empty} empty).")


def _count(file: Path) -> int:
    """Rows of a parquet file, which also shows whether it is whole."""
    import pyarrow
    import pyarrow.parquet as pq

    try:
        rows: int = pq.read_metadata(file).num_rows
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise BadInput(f"{file}: is no whole parquet file ({_first_line(error)}); download it again.") from None
    return rows


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


def decode(images: Sequence[Mapping[str, Any]], mode: Literal["RGB", "L"], where: object) -> Tensor:
    """Encoded images of whatever mode as N×C×H×W bytes: three channels, or one grey one."""
    from PIL import Image

    try:
        decoded = np.stack(
            [
                # Naming the formats halves the time: else every other plugin looks at each image first.
                np.asarray(Image.open(io.BytesIO(image["bytes"]), formats=("PNG", "WEBP", "JPEG")).convert(mode))
                for image in images
            ]
        )
    except (OSError, ValueError, TypeError, SyntaxError) as error:
        raise BadInput(f"{where}: has an image that can't be used ({_first_line(error)}); download it again.") from None
    channels_last = decoded.reshape(*decoded.shape[:3], -1)
    return torch.from_numpy(np.ascontiguousarray(channels_last.transpose(0, 3, 1, 2)))


def check_images(images: Tensor, labels: Tensor, shape: tuple[int, ...], classes: int, where: object) -> None:
    """BadInput unless there are images, all of that shape, with one label each in range."""
    if len(images) == 0 or tuple(images.shape[1:]) != shape or len(images) != len(labels):
        size = "×".join(map(str, shape))
        got = "×".join(map(str, images.shape))
        raise BadInput(f"{where}: needs images of {size} with a label each (got {got} and {len(labels)} labels).")
    if labels.min() < 0 or labels.max() >= classes:
        raise BadInput(f"{where}: needs labels from 0 to {classes - 1} (got {labels.min()} to {labels.max()}).")


def moments(images: Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel of N×C×H×W bytes, from how often each value occurs.

    In small pieces and without torch's threads, which wait for each other at every piece where a core is busy.
    """
    pixels, values = images.numpy(), np.arange(256)
    counts = np.zeros((pixels.shape[1], 256), np.int64)
    for start in range(0, len(pixels), 500):
        for channel, row in enumerate(counts):
            row += np.bincount(pixels[start : start + 500, channel].ravel(), minlength=256)
    total = counts.sum(1)
    mean = counts @ values / total
    return mean.tolist(), np.sqrt(counts @ values**2 / total - mean**2).tolist()
