"""FedHM: a low-rank model for each capacity, of one whole model on the server.

Yao, Pan, O'Neill, Dai, Wan, Jin, Sun, "FedHM: Efficient Federated Learning for Heterogeneous Models via Low-rank
Factorization", 2021 (arXiv:2111.14655).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from prism_bench.plugin import (
    Algorithm,
    Axis,
    Client,
    Layout,
    Merge,
    Network,
    OrthogonalAlgorithm,
    OrthogonalParams,
    OrthogonalSpace,
    Selection,
    ServerModel,
    State,
    dense_forward,
    kept,
    without,
)


class Recomposed(Merge):
    """The mean of the clients' weights, each client's factors multiplied out first."""

    def __init__(self, state: State, layout: Layout, space: OrthogonalSpace) -> None:
        super().__init__(state, layout)
        self.space = space

    def add(self, selection: Selection, updated: State, weight: float | Mapping[str, float] = 1.0) -> None:
        super().add({}, self.space.leave(updated), weight)


class FedHM(OrthogonalAlgorithm):
    """The top ⌈ρR⌉ kernels of every factorised layer; the server means the recomposed weights and decomposes that.

    Where the kernels of all these layers are as many numbers as their weights, the weights are sent instead. What
    differs from `orthdrop`, which means each kernel over those that had it and leaves the others as they were: here a
    client of low rank counts in every entry of the weight as if its other kernels were zero, and the mean may have any
    rank. The first convolution and the classifier stay whole ("hybrid"), as ``factorise: paper`` has it.
    """

    class Params(OrthogonalParams):
        refresh: Literal[1] = Field(1, description="the mean is decomposed in every round")

    smaller_in = ("rank",)
    params: Params

    def build(self, network: Network, seed: int) -> None:
        super().build(network, seed)
        dims = {**network.layout().dims, **self.layout.dims}
        forms = {name: Axis("factors", 1, "part") for name in self.space.factors}
        forms |= {f"{path}.weight": Axis("weights", 1, "part") for path in self.space.paths}
        self.layout = Layout(dims, forms)

    def start(self, dense: State) -> None:
        self.state = dense | {name: t for name, t in self.space.enter(dense).items() if name in self.space.factors}

    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        return [[self.top(client.keep)] for client in cohort]

    def top(self, keep: float) -> Selection:
        ranks = {path: kept(keep, self.space.rank(path).size) for path in self.space.paths}
        if sum(map(self.numbers, ranks, ranks.values())) >= sum(self._whole(path) for path in ranks):
            return without(["factors"], self.device)
        first = {self.space.rank(path).name: torch.arange(rank, device=self.device) for path, rank in ranks.items()}
        return {**first, **without(["weights"], self.device)}

    def numbers(self, path: str, rank: int) -> int:
        """How many numbers a layer's factors of some rank are."""
        u, v = self.state[f"{path}.u"], self.state[f"{path}.v"]
        return rank * (len(u) + v[0].numel())

    def _whole(self, path: str) -> int:
        return self.state[f"{path}.weight"].numel()

    def merge(self) -> Merge:
        return Recomposed(self.state, self.layout, self.space)

    def finish_round(self, round: int, merged: State) -> None:
        self.start({name: tensor for name, tensor in merged.items() if name not in self.space.factors})

    def features(self) -> float:
        return 1.0

    def full_model(self) -> ServerModel:
        return self.part(without(["factors"], self.device))

    def forward(self, params: State, x: Tensor) -> Tensor:
        return dense_forward(self.space.module if self._factorised(params) else self.network, params, x)

    def add_decay(self, params: State, gradients: State, strength: float) -> None:
        """λ/2‖UV‖² on factors; on whole weights that is the plain decay."""
        if self._factorised(params):
            super().add_decay(params, gradients, strength)
        else:
            Algorithm.add_decay(self, params, gradients, strength)

    def _factorised(self, params: State) -> bool:
        return not self.space.factors.isdisjoint(params)
