"""DepthFL: sub-models by depth, whose classifiers teach each other.

Kim, Yu, Kim, Moon, "DepthFL: Depthwise Federated Learning for Heterogeneous Clients", ICLR 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from prism_bench.plugin import (
    Algorithm,
    BadInput,
    BlockNetwork,
    Client,
    Network,
    Selection,
    ServerModel,
    Settings,
    State,
    Step,
    block_part,
    dense_forward,
    without,
)


class DepthFL(Algorithm):
    """The first ⌊ρB⌋ of B blocks, at least one; the classifiers behind them learn from the labels and each other.

    The server deploys the mean of the logits of all classifiers that are trained.

    Each block of the network is one that can be cut (the paper cuts a ResNet into four). Its classifier is linear, and
    sees its map at the size that the network's own sees of the last (the paper's has convolutions before it). The
    paper's slow start of the distillation, and FedDyn, are left out.
    """

    class Params(Settings):
        distillation: NonNegativeFloat = Field(
            1.0, description="weight of what the classifiers learn from each other; 0: they learn from the labels only"
        )

    smaller_in = ("depth",)
    deploys = "trained"

    network: BlockNetwork
    params: Params

    @classmethod
    def check(cls, params: Params, network: Network, keeps: Sequence[float]) -> None:
        if not isinstance(network, BlockNetwork) or network.depth < 2:
            raise BadInput(f"model.name: {cls.__name__} cuts the depth, and this network has no two blocks to cut.")

    def build(self, network: Network, seed: int) -> None:
        assert isinstance(network, BlockNetwork)
        super().build(network, seed)
        self.exited = network.with_exits()
        self.layout = self.exited.layout()

    def start(self, dense: State) -> None:
        """The network starts as every method's does; its further classifiers are drawn here."""
        fresh = self.exited.initial(self.random(0))
        device = next(iter(dense.values())).device
        self.state = {name: dense[name] if name in dense else tensor.to(device) for name, tensor in fresh.items()}

    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        return [[self.first(client.keep)] for client in cohort]

    def first(self, keep: float) -> Selection:
        """What a client of that capacity has: here, blocks from the first on."""
        depth = max(1, math.floor(keep * self.network.depth + 1e-9))
        return without(map(block_part, range(depth, self.network.depth)), self.device)

    def ratios(self) -> list[float]:
        return [(number + 1) / self.network.depth for number in range(self.network.depth)]

    def features(self) -> float:
        return 1.0

    def trained_part(self) -> ServerModel | None:
        return self.part(self.first(max(self.keeps))) if max(self.keeps) < 1 else None

    def full_model(self) -> ServerModel:
        return ServerModel(self.ensemble, self.state)

    def part(self, selection: Selection) -> ServerModel:
        return ServerModel(self.ensemble, super().part(selection).state)

    def ensemble(self, params: State, x: Tensor) -> Tensor:
        return self.forward(params, x).mean(1)

    def forward(self, params: State, x: Tensor) -> Tensor:
        """Logits of every classifier that is there: (samples, exits, classes)."""
        depth = 1 + len({part.name for name, part in self.layout.parts.items() if name in params})
        return dense_forward(self.exited, params, x, depth)

    def loss(self, step: Step) -> Tensor:
        """Cross-entropy of every classifier, and the divergence of each from each other, which it takes as given."""
        log_p = step.logits.log_softmax(-1)
        loss = torch.stack([F.nll_loss(exit, step.labels) for exit in log_p.unbind(1)]).sum()
        exits = step.logits.shape[1]
        if exits > 1 and self.params.distillation:
            given = log_p.detach()
            # The sum over pairs of Σ p_j (log p_j - log p_i); a pair of one and the same adds nothing.
            pairs = exits * (given.exp() * given).sum((1, 2)) - (given.exp().sum(1) * log_p.sum(1)).sum(1)
            loss = loss + self.params.distillation * pairs.mean() / (exits - 1)
        return loss
