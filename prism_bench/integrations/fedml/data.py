"""FedML's data convention both ways: our partitions as its 8-tuple, its 8-tuple as our clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.utils.data import DataLoader, Subset
from torch.utils.data import Dataset as TorchDataset

from prism_bench.base.errors import BadInput
from prism_bench.base.trust import imported
from prism_bench.data.dataset import Dataset, Source, Split
from prism_bench.data.population import Partitioner, Population

EightTuple = tuple[int, int, Any, Any, dict[int, int], dict[int, Any], dict[int, Any], int]
"""Numbers of training and test samples, loaders of both, then by client: samples, loader, test loader; classes."""


class Samples(TorchDataset[tuple[Tensor, Tensor]]):
    """A part of a data set, sample by sample as a network reads them."""

    def __init__(self, data: Dataset, part: Split) -> None:
        self.data, self.part = data, part

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.data.prepare(self.part.inputs[index]), self.part.labels[index]


def to_fedml(data: Dataset, partition: Population, batch: int) -> EightTuple:
    """Our clients as FedML's 8-tuple. Samples are normalised, not augmented; all clients have the same test part."""
    train, test = Samples(data, data.train), Samples(data, data.test)
    test_loader = DataLoader(test, batch_size=batch)
    local = {
        client: DataLoader(Subset(train, partition[client].tolist()), batch_size=batch, shuffle=True)
        for client in range(len(partition))
    }
    return (
        len(partition.order),
        len(test),
        DataLoader(Subset(train, partition.order.tolist()), batch_size=batch, shuffle=True),
        test_loader,
        {client: int(size) for client, size in enumerate(partition.sizes)},
        local,
        dict.fromkeys(local, test_loader),
        data.classes,
    )


def from_fedml(dataset: EightTuple, vocabulary: int | None = None) -> tuple[Dataset, Population]:
    """FedML's 8-tuple as our data set and clients; client c has what ``train_data_local_dict`` has under its c-th key.

    Read once, in the order of each loader's data set and not of its shuffling. ``vocabulary`` is the number of words,
    for text. FedML's global test loader becomes the test part.
    """
    if len(dataset) != 8:
        raise BadInput(f"dataset: FedML's convention is a tuple of 8 parts (got {len(dataset)}).")
    _, _, _, test_global, _, local, _, classes = dataset
    if not local or test_global is None:
        missing = "a dict of loaders by client as 6th part" if not local else "a test loader as 4th part"
        raise BadInput(f"dataset: needs {missing}.")
    parts = [_read(local[client]) for client in sorted(local)]
    train = Split(torch.cat([part.inputs for part in parts]), torch.cat([part.labels for part in parts]))
    owners = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    names = [f"{owner:06d}" for owner in owners]
    data = Dataset(train, _read(test_global), int(classes), vocabulary=vocabulary, owners=names)
    return data, Population.from_owners(owners, len(parts))


class FedMLData(Source):
    """What a FedML loader of your own gives; partition 'fedml' keeps its clients."""

    loader: str = Field(description="'package.module:function' that returns FedML's 8-tuple")
    vocabulary: int | None = Field(None, gt=0, description="number of words, for text")

    def load(self) -> Dataset:
        return from_fedml(imported(self.loader, "data.loader")(), self.vocabulary)[0]


class FedMLClients(Partitioner):
    """The clients that a FedML loader's data comes with, in its order."""

    def split(self, labels: np.ndarray, owners: Sequence[str] | None, rng: np.random.Generator) -> Population:
        if owners is None:
            raise BadInput("partition.name: 'fedml' needs data that knows its clients, such as data 'fedml'.")
        names, numbers = np.unique(np.asarray(owners), return_inverse=True)
        if self.clients > len(names):
            raise BadInput(f"partition.clients: {self.clients} clients, but the data comes with {len(names)}.")
        return Population.from_owners(np.where(numbers < self.clients, numbers, -1), self.clients)


def _read(loader: Any) -> Split:
    """All of a loader: of its data set where it has one, else the batches that it is a list of."""
    samples = getattr(loader, "dataset", None)
    batches = DataLoader(samples, batch_size=512) if samples is not None else loader
    pairs = [(torch.as_tensor(x), torch.as_tensor(y)) for x, y in batches]
    if not pairs:
        raise BadInput("dataset: a loader has no samples; leave out clients that have none.")
    return Split(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]).long())
