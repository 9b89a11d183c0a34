"""A population: the clients of a federation, and which training samples each has."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from pydantic import Field

from prism_bench.base.errors import BadInput
from prism_bench.base.settings import Settings


@dataclass(frozen=True)
class Population:
    """Sample indices sorted by client: client c has ``order[starts[c]:starts[c + 1]]``. No copy of the data."""

    order: np.ndarray
    starts: np.ndarray

    @classmethod
    def from_owners(cls, owners: np.ndarray, clients: int) -> Population:
        """From one client number per sample; -1 leaves a sample out.

        >>> Population.from_owners(np.array([1, 0, -1, 1]), clients=2)[1].tolist()
        [0, 3]
        """
        order = np.argsort(owners, kind="stable")[np.count_nonzero(owners < 0) :].astype(whole(len(owners)))
        sizes = np.bincount(owners[owners >= 0], minlength=clients)
        return cls(order, np.concatenate([[0], np.cumsum(sizes)]))

    def size(self, client: int) -> int:
        """How many samples a client has."""
        return int(self.starts[client + 1] - self.starts[client])

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, client: int) -> np.ndarray:
        return self.order[self.starts[client] : self.starts[client + 1]].astype(np.int64)

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.starts)

    def histogram(self, labels: np.ndarray) -> np.ndarray:
        """Samples per client and class."""
        classes = int(labels.max()) + 1
        owner = np.repeat(np.arange(len(self)), self.sizes)
        flat = np.bincount(owner * classes + labels[self.order], minlength=len(self) * classes)
        return flat.reshape(len(self), classes)

    def describe(self, labels: np.ndarray) -> pd.DataFrame:
        """One row per client: samples, classes present, distance from the global class distribution.

        The distance is total variation: 0 for the same distribution, 1 for nothing in common.
        """
        classes, clients = int(labels.max()) + 1, len(self)
        owner = np.repeat(np.arange(clients), self.sizes)
        # Pairs that occur, which are no more than the samples: clients × classes may be many times that.
        pairs, counts = np.unique(owner * classes + labels[self.order], return_counts=True)
        owner, label = np.divmod(pairs, classes)
        overall = np.bincount(labels) / len(labels)
        excess = np.maximum(0, counts / self.sizes[owner] - overall[label])
        columns = {
            "samples": self.sizes,
            "classes": np.bincount(owner, minlength=clients),
            "distance": np.bincount(owner, excess, minlength=clients),
        }
        frame: pd.DataFrame = pd.DataFrame(columns, index=pd.RangeIndex(len(self), name="client"))
        return frame

    def summary(self, labels: np.ndarray) -> str:
        """The same in one line."""
        frame = self.describe(labels)
        parts = [f"{len(self)} clients"]
        for column, form in (("samples", ".0f"), ("classes", ".0f"), ("distance", ".2f")):
            low, middle, high = frame[column].min(), frame[column].median(), frame[column].max()
            spread = f"{middle:{form}}" if low == high else f"{low:{form}}-{high:{form}} (median {middle:{form}})"
            parts.append(f"{column} {spread}")
        return ", ".join(parts)


class Partitioner(Settings):
    """A partition plugin: validated settings that split a data set's training part."""

    clients: int = Field(100, gt=0)

    @abstractmethod
    def split(self, labels: np.ndarray, owners: Sequence[str] | None, rng: np.random.Generator) -> Population: ...


def whole(count: int) -> type[np.signedinteger]:
    """The type of whole numbers below ``count``: four bytes where they do."""
    return np.int32 if count < 2**31 else np.int64


def samples_each(total: int, clients: int, samples: int | None) -> int:
    """How many samples each client gets; BadInput where there are too few."""
    each = total // clients if samples is None else samples
    if each < 1 or each * clients > total:
        wanted = f"{samples} samples" if samples else "at least one sample"
        raise BadInput(
            f"partition.clients: {clients} clients with {wanted} each need {max(each, 1) * clients} samples, "
            f"but the training data has {total}; at most {total // max(each, 1)} clients are possible."
        )
    return each
