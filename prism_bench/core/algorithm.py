"""The plugin contract: an algorithm is a rule that selects, on one shared mechanism.

A new one is a subclass of `Algorithm` with `select`, in a file of its own, and one line under the entry point group
``prism_bench.algorithms``. It overrides more only where it differs from plain weights, plain training and one full
model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from prism_bench.base.errors import BadPlugin
from prism_bench.base.settings import Settings, validate
from prism_bench.core.axes import Layout, Selection, State
from prism_bench.core.network import Network, dense_forward
from prism_bench.core.objective import SGD, Optimiser, Step, cross_entropy
from prism_bench.core.orthogonal import OrthogonalSpace, chosen_layers
from prism_bench.core.seeds import stream
from prism_bench.core.submodel import Merge, gather

Forward = Callable[[State, Tensor], Tensor]
"""Logits of a batch under the given tensors."""


@dataclass(frozen=True)
class Client:
    """A client in a round's cohort: its number, how much of the model it can train, and what the server knows of it."""

    number: int
    keep: float
    samples: int = 0
    report: Mapping[str, Tensor] = field(default_factory=dict, compare=False)
    """What `Algorithm.report` gave, where the method asks clients for anything before it selects; empty where costs are
    worked out before the first round."""


@dataclass(frozen=True)
class ServerModel:
    """Something that can be evaluated: a forward and its tensors."""

    forward: Forward
    state: State


class Algorithm(ABC):
    """A federated method: its settings until a run gives it a network (`build`) and first weights (`start`).

    Its *server's side* holds the server's tensors; all else is derived from them. Its *clients' side* trains the
    tensors that it is handed, in another thread, process or machine maybe: there `start` was never called, and
    ``state`` is empty.

    Attributes
    ----------
    params : the method's own settings
    network : the whole model, with plain weights
    layout : the axes of the server's tensors
    state : the server's tensors, in the space the method works in
    keeps : the keep ratios that occur among all clients; set by the run
    clients : how many clients there are; set by the run
    """

    Params: ClassVar[type[Settings]] = Settings
    """The method's own settings, validated."""

    cuts: ClassVar[bool] = True
    """False where every client trains the whole model, whatever its capacity."""

    reference: ClassVar[bool] = True
    """False where it cuts nothing, and is yet no plain full-model training that others are to be compared with."""

    smaller_in: ClassVar[tuple[Literal["width", "rank", "depth", "updates"], ...]] = ()
    """What a sub-model has less of than the whole: how `prism-bench list` groups methods; empty where it isn't said."""

    deploys: ClassVar[Literal["full", "trained"]] = "full"
    """Which of its models the method itself would use: the one whose accuracy is *the* accuracy."""

    network: Network
    layout: Layout

    def __init__(self, params: Any = None, **settings: Any) -> None:
        self.params: Any = validate(self.Params, settings, type(self).__name__) if params is None else params
        self.state: State = {}
        self.keeps: tuple[float, ...] = (1.0,)
        self.clients = 1
        self._seed = 0

    @classmethod  # noqa: B027 - an optional hook
    def check(cls, params: Any, network: Network, keeps: Sequence[float]) -> None:
        """Raise BadInput where these settings can't work with this network and these keep ratios.

        Called for every run of an experiment before the first one starts.
        """

    def build(self, network: Network, seed: int) -> None:
        """Take on a network. All that the clients' side needs is there after this."""
        self.network, self.layout, self._seed = network, network.layout(), seed

    # The server's side ------------------------------------------------------------------------------------------------

    def start(self, dense: State) -> None:
        """Take over the weights that training starts from."""
        self.state = dense

    @abstractmethod
    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        """For each client of the cohort the sub-models it trains: nearly always one."""

    def takes_part(self, keep: float) -> bool:
        """Whether clients of that capacity take part at all."""
        return True

    def features(self) -> float:
        """The share of the features that a sub-model of the largest capacity has."""
        return max(self.keeps) if self.cuts else 1.0

    def ratios(self) -> list[float]:
        """The keep ratios at which a sub-model grows, rising: what a budget chooses from."""
        if not self.cuts:
            return [1.0]
        sizes = {axis.size for kind in ("feature", "rank") for axis in self.layout.of_kind(kind)}
        return sorted({count / size for size in sizes for count in range(1, size + 1)})

    def merge(self) -> Merge:
        """What takes in the clients' sub-models of a round."""
        return Merge(self.state, self.layout)

    def weight(self, client: Client) -> float | Mapping[str, float] | None:
        """A client's weight in the mean, for all tensors or by their names; None: what the run's settings say."""
        return None

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

    def client_model(self, keep: float) -> ServerModel:
        """What a client of that capacity would run, once training is over: by default what it would be sent."""
        return self.part(self.select(0, [Client(0, keep)])[0][0])

    def part(self, selection: Selection) -> ServerModel:
        """The sub-model of a selection, as a model to evaluate."""
        return ServerModel(self.forward, gather(self.state, self.layout, selection))

    def random(self, round: int, client: int = 0) -> np.random.Generator:
        """The stream for this method's own draws at one round and client."""
        return stream(self._seed, "selection", round, client)

    @property
    def device(self) -> torch.device:
        return next(iter(self.state.values())).device

    # The clients' side ------------------------------------------------------------------------------------------------

    def forward(self, params: State, x: Tensor) -> Tensor:
        """Logits of a (sub-)model: the same code for every size, as the layers take their shapes from ``params``.

        With a `loss` of the method's own this may be more, such as the logits of several classifiers. Then `full_model`
        and `part` give the forward that is evaluated.
        """
        return dense_forward(self.network, params, x)

    def equivalents(self) -> Sequence[Forward]:
        """`forward`, then other ways to the same logits where there are any: training takes the one of least MACs.

        Costs and budgets are those of the one that runs; ``prism-bench costs`` shows those of `forward`, the method as
        its authors state it, beside them. A method with `views` runs `forward`.
        """
        return [self.forward]

    def loss(self, step: Step) -> Tensor:
        """What one client's step makes smaller."""
        return cross_entropy(step.logits[None], step.labels[None])[0]

    def add_decay(self, params: State, gradients: State, strength: float) -> None:
        """Add the regulariser's gradient. Tensors may have a leading client dimension."""
        for name, gradient in gradients.items():
            gradient.add_(params[name], alpha=strength)

    def optimiser(self, momentum: float) -> Optimiser:
        """What moves a client's tensors; ``momentum`` is the run's setting."""
        return SGD(momentum)

    def frozen(self) -> Collection[str]:
        """Names of the tensors that clients hold and don't train."""
        return ()

    def unsent(self) -> Collection[str]:
        """Names of the tensors that clients don't send up: those that they don't train."""
        return self.frozen()

    def views(self, layout: Layout) -> Sequence[Sequence[Selection]]:
        """What a step of a client may be about, by parts of its sub-model (empty: all of it): each step draws one.

        All are equally likely. One with several parts passes the batch through each: `loss` sees the logits of all,
        and its tensors and the regulariser's are the first part's. ``layout`` is the sub-model's own: its axes are as
        long as the client holds them. Costs are the mean over the views, and memory is that of the largest.
        """
        return [[{}]]

    def report(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """What a client tells the server before the server selects, of its own samples: a few small tensors."""
        return {}

    def recall(self, params: State, memory: State) -> State:
        """What a client starts from, given what it was sent and what it kept of its last participation, if anything."""
        return params

    def upload(self, params: State, start: State, memory: State, way: float) -> State:
        """What a client sends up in place of what training left of some tensors, after it trained to ``params``.

        ``way`` is how far the optimiser would have moved a tensor under a gradient of one at every step.
        """
        return {}

    def remember(self, params: State, start: State, memory: State) -> State:
        """What a client keeps until it takes part again, after it trained from ``start`` to ``params``; nothing: {}."""
        return {}


def selected(algorithm: Algorithm, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
    """What a method selects; BadPlugin where that can't be meant."""
    plan = algorithm.select(round, cohort)
    name = type(algorithm).__name__
    if len(plan) != len(cohort) or not all(plan):
        raise BadPlugin(f"{name}: `select` must give one list of sub-models per client, none of them empty.")
    try:
        for selection in (one for selections in plan for one in selections):
            algorithm.layout.check(selection)
    except BadPlugin as error:
        raise BadPlugin(f"{name}: `select` {error}") from None
    return plan


def viewed(algorithm: Algorithm, layout: Layout) -> Sequence[Sequence[Selection]]:
    """A method's views of a sub-model; BadPlugin where those can't be meant."""
    views, name = algorithm.views(layout), type(algorithm).__name__
    if not views or not all(views):
        raise BadPlugin(f"{name}: `views` must give at least one view, and each at least one part.")
    try:
        for part in (part for view in views for part in view):
            layout.check(part)
    except BadPlugin as error:
        raise BadPlugin(f"{name}: `views` {error}") from None
    return views


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

    @classmethod
    def check(cls, params: Any, network: Network, keeps: Sequence[float]) -> None:
        chosen_layers(network, params.factorise)

    def build(self, network: Network, seed: int) -> None:
        super().build(network, seed)
        self.space = self.space_of(network)
        self.layout = self.space.layout

    def space_of(self, network: Network) -> OrthogonalSpace:
        return OrthogonalSpace(network, self.params.factorise)

    def start(self, dense: State) -> None:
        self.state = self.space.enter(dense)

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
