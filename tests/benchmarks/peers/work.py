"""The work that every arm does, step by step, as one file that needs nothing of the suite to be read.

Initial weights, who takes part in each round and in which order each of them goes through its samples: arms that follow
it end with the same weights, to floating point.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Net(nn.Module):
    """64@5×5, pool, 64@3×3, pool, linear; parameters are named as the suite names them."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(1, width, 5, padding=2), nn.Conv2d(width, width, 3, padding=1)])
        self.classifier = nn.Linear(width * 7 * 7, classes)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.max_pool2d(F.relu(conv(x)), 2)
        return self.classifier(x.flatten(1))


@dataclass(frozen=True)
class Work:
    """Images are ready to be trained on: arms that read it spend no time on preparing them."""

    settings: dict[str, Any]
    weights: dict[str, np.ndarray]
    inputs: np.ndarray
    labels: np.ndarray
    cohorts: np.ndarray
    """Round × place in the cohort: the client's number."""
    orders: np.ndarray
    """Round × place × step of one epoch: the sample's number."""

    def write(self, path: Path) -> None:
        weights = {f"weights/{name}": values for name, values in self.weights.items()}
        arrays = {name: getattr(self, name) for name in ("inputs", "labels", "cohorts", "orders")}
        np.savez(path, settings=json.dumps(self.settings), **arrays, **weights)

    @classmethod
    def read(cls, path: Path) -> Work:
        with np.load(path) as file:
            arrays = {name: file[name] for name in ("inputs", "labels", "cohorts", "orders")}
            weights = {name.removeprefix("weights/"): file[name] for name in file if name.startswith("weights/")}
            return cls(json.loads(file["settings"].item()), weights, **arrays)

    @property
    def rounds(self) -> int:
        return len(self.cohorts)

    @property
    def clients(self) -> int:
        return self.settings["partition"]["clients"]

    @property
    def batch(self) -> int:
        return self.settings["training"]["batch"]

    @property
    def sgd(self) -> dict[str, float]:
        """What `torch.optim.SGD` is called with."""
        return {name: self.settings["training"][name] for name in ("lr", "momentum")}

    def net(self) -> Net:
        """The network with its initial weights."""
        net = Net(len(self.weights["convs.0.bias"]), len(self.weights["classifier.bias"]))
        net.load_state_dict({name: torch.from_numpy(values) for name, values in self.weights.items()})
        return net

    def cohort(self, round: int) -> list[int]:
        return self.cohorts[round].tolist()

    def samples(self, round: int, client: int) -> tuple[Tensor, Tensor]:
        """What the client trains on in that round, in its order."""
        [[place]] = np.nonzero(self.cohorts[round] == client)
        order = torch.from_numpy(self.orders[round, place])
        inputs, labels = self._tensors
        return inputs[order], labels[order]

    def batches(self, round: int, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        inputs, labels = self.samples(round, client)
        return zip(inputs.split(self.batch), labels.split(self.batch), strict=True)

    @cached_property
    def _tensors(self) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.inputs), torch.from_numpy(self.labels)


def train(net: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], sgd: dict[str, float]) -> None:
    """One client's local training, for the arms whose framework leaves that to its user."""
    optimizer = torch.optim.SGD(net.parameters(), **sgd)
    net.train()
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
