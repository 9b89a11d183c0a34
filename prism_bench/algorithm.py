"""The plugin contract: an algorithm is a rule that selects, on one shared mechanism.

A new one is a subclass of `Algorithm` with `select`, in a file of its own, and one line under the entry point group
``prism_bench.algorithms``. It overrides more only where it differs from plain weights and one full model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.func import functional_call

from prism_bench.axes import Selection, State
from prism_bench.config import Settings
from prism_bench.models.network import Network
from prism_bench.orthogonal import OrthogonalSpace, chosen_layers
from prism_bench.seeds import stream
from prism_bench.submodel import gather

Forward = Callable[[State, Tensor], Tensor]
"""Logits of a batch under the given tensors."""


@dataclass(frozen=True)
class Client:
    """A client in a round's cohort: its number and how much of the model it can train."""

    number: int
    keep: float


@dataclass(frozen=True)
class ServerModel:
    """Something that can be evaluated: a forward and its tensors."""

    forward: Forward
    state: State


class Algorithm(ABC):
    """What a method does on the server. Holds the server's tensors; all else is derived from them.

    Attributes
    ----------
    state : the server's tensors, in the space the method works in
    layout : the axes of those tensors
    network : the whole model, with plain weights
    keeps : the keep ratios that occur among all clients; set by the run
    """

    Params: ClassVar[type[Settings]] = Settings
    """The method's own settings, validated."""

    cuts: ClassVar[bool] = True
    """False where every client trains the whole model, whatever its capacity."""

    deploys: ClassVar[Literal["full", "trained"]] = "full"
    """Which of its models the method itself would use: the one whose accuracy is *the* accuracy."""

    def __init__(self, params: Any, network: Network, dense: State, seed: int) -> None:
        self.params = params
        self.network = network
        self.layout = network.layout()
        self.state = dense
        self.keeps: tuple[float, ...] = (1.0,)
        self._seed = seed

    @classmethod  # noqa: B027 - an optional hook
    def check(cls, params: Any, network: Network, keeps: Sequence[float]) -> None:
        """Raise BadInput where these settings can't work with this network and these keep ratios.

        Called for every run of an experiment before the first one starts.
        """

    @abstractmethod
    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        """For each client of the cohort the sub-models it trains: nearly always one."""

    def ratios(self) -> list[float]:
        """The keep ratios at which a sub-model grows, rising: what a budget chooses from."""
        if not self.cuts:
            return [1.0]
        sizes = {axis.size for kind in ("feature", "rank") for axis in self.layout.of_kind(kind)}
        return sorted({count / size for size in sizes for count in range(1, size + 1)})

    def forward(self, params: State, x: Tensor) -> Tensor:
        """Logits of a (sub-)model: the same code for every size, as the layers take their shapes from ``params``."""
        return dense_forward(self.network, params, x)

    def equivalents(self) -> Sequence[Forward]:
        """`forward`, and other ways to the same logits where there are any: training takes the one of least MACs.

        Costs are those of `forward`, the method as its authors state it.
        """
        return [self.forward]

    def add_decay(self, params: State, gradients: State, strength: float) -> None:
        """Add the regulariser's gradient. Tensors may have a leading client dimension."""
        for name, gradient in gradients.items():
            gradient.add_(params[name], alpha=strength)

    def finish_round(self, round: int, merged: State) -> None:
        """Take over the merged tensors."""
        self.state = merged

    def checkpoint(self) -> dict[str, Any]:
        """All that the next round depends on, as tensors and plain values. Draws are derived, never carried along."""
        return {"state": self.state}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from what `checkpoint` gave, in another process maybe."""
        self.state = {name: tensor.to(self.device) for name, tensor in saved["state"].items()}

    def full_model(self) -> ServerModel:
        """The server's whole model, whether or not all of it was trained."""
        return ServerModel(self.forward, self.state)

    def trained_part(self) -> ServerModel | None:
        """Only what clients of the largest capacity train; None where together they train the whole."""
        return None

    def part(self, selection: Selection) -> ServerModel:
        """The sub-model of a selection, as a model to evaluate."""
        return ServerModel(self.forward, gather(self.state, self.layout, selection))

    def random(self, round: int, client: int = 0) -> np.random.Generator:
        """The stream for this method's own draws at one round and client."""
        return stream(self._seed, "selection", round, client)

    @property
    def device(self) -> torch.device:
        return next(iter(self.state.values())).device


class OrthogonalParams(Settings):
    """Settings of every method in the orthogonal space."""

    factorise: str | tuple[str, ...] = Field("paper", description="'paper', 'all', or patterns of layer names")
    refresh: PositiveInt = Field(1, description="rounds from one decomposition to the next")
    regulariser: Literal["frobenius", "weight_decay"] = Field(
        "frobenius", description="on the factors: λ/2‖UV‖², or plain weight decay on U and V"
    )


class OrthogonalAlgorithm(Algorithm):
    """A method whose server tensors are principal kernels: U and V of every factorised layer, refreshed each round."""

    Params = OrthogonalParams

    def __init__(self, params: Any, network: Network, dense: State, seed: int) -> None:
        super().__init__(params, network, dense, seed)
        self.space = OrthogonalSpace(network, params.factorise)
        self.layout = self.space.layout
        self.state = self.space.enter(dense)

    @classmethod
    def check(cls, params: Any, network: Network, keeps: Sequence[float]) -> None:
        chosen_layers(network, params.factorise)

    def forward(self, params: State, x: Tensor) -> Tensor:
        """Each factorised layer as V, then U."""
        return dense_forward(self.space.module, params, x)

    def equivalents(self) -> Sequence[Forward]:
        """Also each factorised layer as one, with the weight UV: cheaper where the rank is near the output's size."""
        return [self.forward, lambda params, x: dense_forward(self.network, self.space.leave(params), x)]

    def add_decay(self, params: State, gradients: State, strength: float) -> None:
        if self.params.regulariser == "weight_decay":
            super().add_decay(params, gradients, strength)
        else:
            self.space.add_decay(params, gradients, strength)

    def finish_round(self, round: int, merged: State) -> None:
        """Rebuild the weights and decompose them again, so that the kernels stay orthogonal and sorted by σ."""
        self.state = merged
        if (round + 1) % self.params.refresh == 0:
            self.space.refresh(self.state)

    def full_model(self) -> ServerModel:
        return ServerModel(partial(dense_forward, self.network), self.space.leave(self.state))


def dense_forward(network: Network, params: State, x: Tensor) -> Tensor:
    """Logits of a network called with the given tensors, of whatever size; from any thread."""
    logits: Tensor = functional_call(network.here(), params, (x,))
    return logits


def compute(forward: Forward, precision: str) -> Forward:
    """A forward that computes in that precision. The tensors it is called with, and its logits, are float32."""
    if precision != "bfloat16":
        return forward

    def in_bfloat16(params: State, x: Tensor) -> Tensor:
        short = {name: tensor.bfloat16() for name, tensor in params.items()}
        return forward(short, x.bfloat16() if x.is_floating_point() else x).float()

    return in_bfloat16
