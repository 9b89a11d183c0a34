"""SCAFFOLD: every step is corrected by how the client's gradients differ from everybody's.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
ICML 2020: Algorithm 1 with option II for the client's control variate and a server step of 1. Where it is here:

1. the server sends the model and its control variate c - both are the server's tensors
2. a client of control variate cᵢ steps by g − cᵢ + c - `recall`, `loss`
3. cᵢ⁺ = cᵢ − c + (x − y)/(Kη), and the client sends y and c + cᵢ⁺ − cᵢ - `upload`, `remember`
4. the server moves c by the share of the clients that took part times the mean of cᵢ⁺ − cᵢ - `finish_round`
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from prism_bench.plugin import Client, Layout, Network, Selection, ServerModel, State, Step

from .fedavg import FedAvg

CONTROL = "control."
"""Before the name of a weight: the control variate of that weight."""


class Scaffold(FedAvg):
    """FedAvg, each step plus c − cᵢ: the mean gradient of all clients less the client's own, as last seen.

    Both are sent both ways, so a client pays twice FedAvg's bytes. With momentum, Kη is what K steps of it amount to.
    """

    reference = False

    def build(self, network: Network, seed: int) -> None:
        super().build(network, seed)
        self.weights = tuple(self.layout.dims)
        controls = {CONTROL + name: dims for name, dims in self.layout.dims.items()}
        self.layout = Layout({**self.layout.dims, **controls})

    def start(self, dense: State) -> None:
        self.state = {**dense, **{CONTROL + name: torch.zeros_like(tensor) for name, tensor in dense.items()}}

    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        self.active = len(cohort)
        return super().select(round, cohort)

    def finish_round(self, round: int, merged: State) -> None:
        share = self.active / self.clients
        for name in self.weights:
            before = self.state[CONTROL + name]
            merged[CONTROL + name] = before + share * (merged[CONTROL + name] - before)
        super().finish_round(round, merged)

    def full_model(self) -> ServerModel:
        return ServerModel(self.forward, {name: self.state[name] for name in self.weights})

    # The clients' side: there the control variate that is sent, c, becomes c − cᵢ.

    def forward(self, params: State, x: Tensor) -> Tensor:
        return super().forward({name: params[name] for name in self.weights}, x)

    def frozen(self) -> Collection[str]:
        return [CONTROL + name for name in self.weights]

    def unsent(self) -> Collection[str]:
        return ()

    def recall(self, params: State, memory: State) -> State:
        return {CONTROL + name: params[CONTROL + name] - own for name, own in memory.items()}

    def loss(self, step: Step) -> Tensor:
        """Its gradient is the step's plus c − cᵢ, and it is the cross-entropy where the client begins."""
        correction: Any = sum(
            (step.params[CONTROL + name] * (step.params[name] - step.start[name])).sum() for name in self.weights
        )
        total: Tensor = super().loss(step) + correction
        return total

    def upload(self, params: State, start: State, memory: State, way: float) -> State:
        if not way:  # no steps: cᵢ stays
            return {CONTROL + name: start[CONTROL + name] + own for name, own in memory.items()}
        # c + cᵢ⁺ − cᵢ is (x − y)/(Kη): what the client saw of its gradients, the correction with it.
        return {CONTROL + name: (start[name] - params[name]) / way for name in self.weights}

    def remember(self, params: State, start: State, memory: State) -> State:
        return {name: params[CONTROL + name] - start[CONTROL + name] for name in self.weights}
