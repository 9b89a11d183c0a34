"""LoRA in a federation: low-rank updates of weights that stay as they are.

Cho, Liu, Xu, Fahrezi, Joshi, "Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation Models", EMNLP 2024
(HetLoRA); Fang et al., "Federated Sketching LoRA: A Flexible Framework for Heterogeneous Collaborative Fine-Tuning of
LLMs", 2025 (FSLoRA).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from fnmatch import fnmatch
from functools import partial
from typing import Literal

import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor

from prism_bench.plugin import (
    Algorithm,
    Axis,
    BadInput,
    Client,
    Dim,
    Layout,
    Network,
    OrthogonalSpace,
    Selection,
    ServerModel,
    Settings,
    State,
    along,
    dense_forward,
    drawn,
    nearest,
    prefix,
)


class LoRA(Algorithm):
    """Of each chosen layer's update UV the first ⌈ρR⌉ kernels are trained, and the classifier; all else is frozen.

    Clients keep nothing from round to round, so the frozen tensors are sent down with every participation, and counted.
    A layer runs with the one weight W + UV. Each entry of a factor is the mean over those that had it; FSLoRA's is over
    all clients, and HetLoRA's too, padded with zeros. It also weighs clients, and lets them give up rank.
    """

    class Params(Settings):
        factorise: str | tuple[str, ...] = Field("paper", description="'paper', 'all', or patterns of layer names")
        rank: NonNegativeInt = Field(8, description="R, the rank of an update at keep ratio 1; 0: no updates")
        kernels: Literal["first", "random"] = Field(
            "first", description="a client's kernels: the first k (HetLoRA), or k drawn anew and times R/k (FSLoRA)"
        )
        whole: tuple[str, ...] = Field(("classifier.*",), description="patterns of tensors that are trained whole")

    smaller_in = ("updates",)
    params: Params

    @classmethod
    def check(cls, params: Params, network: Network, keeps: Sequence[float]) -> None:
        OrthogonalSpace(network, params.factorise)
        names = network.layout().dims
        for pattern in params.whole:
            if not any(fnmatch(name, pattern) for name in names):
                raise BadInput(f"algorithm.whole: no tensor is called '{pattern}'. {nearest(pattern, names)}")
        if not params.rank and not params.whole:
            raise BadInput("algorithm.rank: 0 trains no updates, and `whole` names nothing to train beside them.")

    def build(self, network: Network, seed: int) -> None:
        super().build(network, seed)
        self.space = OrthogonalSpace(network, self.params.factorise)
        self.paths = self.space.paths if self.params.rank else ()
        dims = dict(self.layout.dims)
        self._frozen = {name for name in dims if not any(fnmatch(name, each) for each in self.params.whole)}
        for path in self.paths:
            update = Dim(Axis(f"{path}.rank", min(self.space.rank(path).size, self.params.rank), "rank"))
            (outputs, _), (_, *inputs) = self.space.layout.dims[f"{path}.u"], self.space.layout.dims[f"{path}.v"]
            dims |= {f"{path}.u": (outputs, update), f"{path}.v": (update, *inputs)}
        self.layout = Layout(dims)

    def start(self, dense: State) -> None:
        """U is zero and V is drawn, so that updates begin as nothing."""
        self.state, rng = dict(dense), self.random(0)
        for path in self.paths:
            rank, (outputs, *inputs) = self.layout.axes[f"{path}.rank"].size, dense[f"{path}.weight"].shape
            self.state[f"{path}.u"] = torch.zeros(outputs, rank, device=self.device)
            v = rng.normal(0, math.prod(inputs) ** -0.5, (rank, *inputs))
            self.state[f"{path}.v"] = torch.tensor(v, dtype=torch.float32, device=self.device)

    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        return [[self._kernels(round, client)] for client in cohort]

    def _kernels(self, round: int, client: Client) -> Selection:
        rule = prefix if self.params.kernels == "first" else drawn(self.random(1 + round, client.number))
        return along(self.layout.of_kind("rank"), client.keep, rule, self.device)

    def ratios(self) -> list[float]:
        return [count / self.params.rank for count in range(1, self.params.rank + 1)] or [1.0]

    def features(self) -> float:
        return 1.0

    def frozen(self) -> Collection[str]:
        return self._frozen

    def updated(self, params: State) -> State:
        """The weights that these tensors stand for: W + UV, wherever there is an update."""
        factors = {name: params[name] for path in self.paths for name in (f"{path}.u", f"{path}.v")}
        for path in self.paths if self.params.kernels == "random" else ():  # on average, what is drawn is UV
            u = factors[f"{path}.u"]
            factors[f"{path}.u"] = u * (self.layout.axes[f"{path}.rank"].size / u.shape[1])
        plain = {name: tensor for name, tensor in params.items() if name not in factors}
        return plain | {name: plain[name] + update for name, update in self.space.leave(factors).items()}

    def forward(self, params: State, x: Tensor) -> Tensor:
        return dense_forward(self.network, self.updated(params), x)

    def full_model(self) -> ServerModel:
        return ServerModel(partial(dense_forward, self.network), self.updated(self.state))
