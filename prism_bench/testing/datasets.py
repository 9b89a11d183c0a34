"""What every data set must hold. Each check takes the data set and, optionally, its settings: where files are, say."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from prism_bench.data.dataset import Dataset
from prism_bench.testing.tiny import Check, Given, Named, chosen, described


def check_described(data: Named, settings: Given = None) -> None:
    """It says in a line what it is, and its settings can't be changed under way."""
    plugin = chosen("data", data, settings)
    described(data, plugin.kind, plugin.settings)


def check_repeatable(data: Named, settings: Given = None) -> None:
    """It loads twice to the same data."""
    assert load(data, settings).digest() == load(data, settings).digest(), "loaded again, the data is another"


def check_samples(data: Named, settings: Given = None) -> None:
    """Both parts have samples of one shape, as bytes, words or floats, on the CPU."""
    loaded = load(data, settings)
    shape, vocabulary = loaded.signature.shape, loaded.vocabulary
    assert len(shape) == (3 if vocabulary is None else 1), (
        f"a sample is {shape}; images are channels × height × width, and words, which need a `vocabulary`, a row"
    )
    for name, part in (("train", loaded.train), ("test", loaded.test)):
        inputs = part.inputs
        assert len(part), f"the {name} part is empty"
        assert len(inputs) == len(part.labels), f"{name}: {len(inputs)} inputs have {len(part.labels)} labels"
        assert tuple(inputs.shape[1:]) == shape, f"{name}: samples are {tuple(inputs.shape[1:])}, in training {shape}"
        fitting = inputs.dtype == torch.uint8 or inputs.is_floating_point()
        if vocabulary is not None:
            fitting = inputs.dtype in (torch.int16, torch.int32, torch.int64)
            assert 0 <= int(inputs.min()) <= int(inputs.max()) < vocabulary, f"{name}: a word is out of the vocabulary"
        assert fitting, f"{name}: inputs are {inputs.dtype}; uint8 or floats for images, int16 for words"
        assert inputs.device.type == "cpu", f"{name}: data is loaded to the CPU; a run sends it to its device"
        ready = loaded.prepare(inputs[:4])
        assert not ready.is_floating_point() or ready.isfinite().all(), f"{name}: `mean` and `std` leave no numbers"


def check_labels(data: Named, settings: Given = None) -> None:
    """Labels are int64 below the number of classes, and owners, where given, one per training sample."""
    loaded = load(data, settings)
    for name, part in (("train", loaded.train), ("test", loaded.test)):
        labels = part.labels
        assert (labels.dtype, labels.ndim) == (torch.int64, 1), f"{name}: labels must be a row of int64"
        low, high = int(labels.min()), int(labels.max())
        assert 0 <= low <= high < loaded.classes, f"{name}: labels are {low} to {high}, of {loaded.classes} classes"
    if loaded.owners is not None:
        count = len(loaded.train)
        assert len(loaded.owners) == count, f"{count} training samples have {len(loaded.owners)} owners"
        assert all(isinstance(owner, str) for owner in loaded.owners), "an owner is a name, as text"


DATASET_CHECKS: tuple[Check, ...] = (check_described, check_repeatable, check_samples, check_labels)


def load(data: Named, settings: Given) -> Dataset:
    """The data set, without the network: a run never downloads what its settings don't allow."""
    with offline() as asked:
        loaded = chosen("data", data, settings).settings.load()
    assert not asked, f"loading connects to {asked[0]}; without a setting that allows it, it must not"
    assert isinstance(loaded, Dataset), f"`load` must give a Dataset, not {type(loaded).__name__}"
    return loaded


@contextmanager
def offline() -> Iterator[list[Any]]:
    """No connection can be made meanwhile; gives the addresses that were asked for."""
    asked: list[Any] = []
    connect = socket.socket.connect

    def refuse(self: socket.socket, address: Any) -> None:
        asked.append(address)
        raise ConnectionRefusedError("a check of a data set has no network")

    socket.socket.connect = refuse  # type: ignore[assignment, method-assign]
    try:
        yield asked
    finally:
        socket.socket.connect = connect  # type: ignore[method-assign]
