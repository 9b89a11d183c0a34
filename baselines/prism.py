"""PriSM: principal probabilistic sub-models.

Niu, Prakash, Kundu, Lee, Avestimehr, "Federated Learning of Large Models at the Edge via Principal Sub-Model
Training", TMLR 2023. The paper's Algorithm 1, and where its steps are:

* decompose W into principal kernels σ·u·vᵀ, and refresh after each round - `OrthogonalAlgorithm`
* sub-model: sample r kernels a layer with p ∝ σ^κ (eq. 2) - `sample`, `PriSM._kernels`
* memory saving: compute only a subset of the output channels - `PriSM._channels`
* local training with λ/2‖UV‖² in place of weight decay (eq. 6) - `OrthogonalSpace.add_decay`
* aggregation: each kernel's mean over the clients that had it, û unchanged (eq. 5) - `submodel.Merge`

What the paper leaves open and what was tried beside it (results/FINDINGS.md) are settings; defaults are the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat

from prism_bench.algorithm import Client, OrthogonalAlgorithm, OrthogonalParams, ServerModel, dense_forward
from prism_bench.axes import Axis, Selection, State
from prism_bench.capacity import kept
from prism_bench.errors import BadInput
from prism_bench.models.network import Network
from prism_bench.submodel import gather

Ratio = Annotated[float, Field(gt=0, le=1)]


class PriSM(OrthogonalAlgorithm):
    """Principal kernels sampled by importance, p ∝ σ^κ, and a subset of the output channels."""

    class Params(OrthogonalParams):
        sampling: Literal["power", "softmax", "uniform"] = Field(
            "power", description="kernel probability: σ^κ, softmax of σ, or equal"
        )
        kappa: NonNegativeFloat | None = Field(
            None, description="smooth factor κ; by default the paper's: 4 at keep ratios up to 0.2, else 2.5"
        )
        channels: Literal["prefix", "kernels", "rolling", "random", "all"] = Field(
            "prefix",
            description="output channels kept: the first (paper), the sampled kernels' indices, "
            "a window that moves with the rounds, random ones, or all (no memory saving)",
        )
        importance: Literal["whole", "part"] = Field(
            "whole",
            description="a kernel's σ as a whole (paper), or its size in the channels that the client keeps; "
            "needs channels that don't follow the kernels",
        )
        scaling: bool = Field(False, description="scale activations by full/present channels")
        draw: Literal["client", "round"] = Field(
            "client", description="kernels and random channels are drawn for every client, or once a round for all"
        )
        deploy: Literal["full", "trained", "expected"] = Field(
            "full",
            description="the model whose accuracy counts: the server's whole (paper), its prefix of channels, or that "
            "with each kernel times its probability to be drawn, as dropout would",
        )
        rank_keep: Ratio | None = Field(None, description="share of the kernels, where not the client's keep ratio")
        channel_keep: Ratio | None = Field(None, description="share of the channels, where not the keep ratio")

    params: Params

    def __init__(self, params: Params, network: Network, dense: State, seed: int) -> None:
        network.set_rescale(params.scaling)
        super().__init__(params, network, dense, seed)
        self.deploys = "full" if params.deploy == "full" else "trained"  # type: ignore[misc]

    @classmethod
    def check(cls, params: Params, network: Network, keeps: Sequence[float]) -> None:
        super().check(params, network, keeps)
        if params.importance == "part" and params.channels == "kernels":
            raise BadInput("algorithm.importance: 'part' needs channels that don't follow the kernels; use 'whole'.")

    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        whole = self._sizes({})
        return [[self._sub_model(round, client, whole)] for client in cohort]

    def _sub_model(self, round: int, client: Client, sizes: dict[str, np.ndarray]) -> Selection:
        rng = self.random(round, client.number if self.params.draw == "client" else 0)
        channels: Selection = {}
        if self.params.importance == "part":
            channels = self._channels(round, client.keep, {}, rng)
            sizes = self._sizes(channels)
        kernels = {path: self._kernels(client.keep, sigma, rng) for path, sigma in sizes.items()}
        channels = channels or self._channels(round, client.keep, kernels, rng)
        return {**channels, **{self.space.rank(path).name: self._indices(kernels[path]) for path in kernels}}

    def _sizes(self, channels: Selection) -> dict[str, np.ndarray]:
        """The size of each kernel of each layer, within the given channels."""
        factors = {name: self.state[name] for name in self.space.factors}
        part = gather(factors, self.layout, channels) if channels else factors
        return {path: self.space.sigma(part, path).cpu().double().numpy() for path in self.space.paths}

    def _kernels(self, keep: float, sigma: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The indices I_c of one layer's sampled kernels."""
        return sample(*self._odds(keep, sigma), rng)

    def _odds(self, keep: float, sigma: np.ndarray) -> tuple[np.ndarray, int]:
        """The logarithms of the kernels' probabilities, up to a constant, and how many are drawn."""
        share = self.params.rank_keep or keep
        if self.params.sampling == "power":
            kappa = self.params.kappa if self.params.kappa is not None else (4.0 if share <= 0.2 else 2.5)
            scores = kappa * np.log(np.maximum(sigma, np.finfo(float).tiny))
        else:
            scores = sigma if self.params.sampling == "softmax" else np.zeros_like(sigma)
        return scores, kept(share, len(sigma))

    def _channels(self, round: int, keep: float, kernels: dict[str, np.ndarray], rng: np.random.Generator) -> Selection:
        """The output channels kept along every feature axis; whatever reads the axis next takes the same ones."""
        if self.params.channels == "all":
            return {}
        axes = self.layout.of_kind("feature")
        return {axis.name: self._indices(self._along(axis, round, keep, kernels, rng)) for axis in axes}

    def _along(
        self, axis: Axis, round: int, keep: float, kernels: dict[str, np.ndarray], rng: np.random.Generator
    ) -> np.ndarray:
        """The channels kept along one feature axis."""
        count = kept(self.params.channel_keep or keep, axis.size)
        if self.params.channels == "rolling":
            return np.sort((round + np.arange(count)) % axis.size)
        if self.params.channels == "random":
            return np.sort(rng.permutation(axis.size)[:count])
        if self.params.channels == "kernels":
            # An axis that several layers write (a residual stage) follows the first that is factorised; one that
            # no factorised layer writes falls to the prefix, and so does what too few kernels leave open. Where the
            # axis is laid out several times (gates, heads), a kernel stands for the feature of its number.
            writers = [path for path in self.space.paths if self.space.layer(path).outputs.axis == axis]
            chosen = rng.permutation(np.unique(kernels[writers[0]] % axis.size) if writers else 0)[:count]
            rest = np.setdiff1d(np.arange(axis.size), chosen)[: count - len(chosen)]
            return np.sort(np.concatenate([chosen, rest]))
        return np.arange(count)

    def _indices(self, indices: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(indices).to(self.device)

    def trained_part(self) -> ServerModel | None:
        """The prefix of the channels, where clients of the largest capacity train no more; with ``deploy: expected``
        each kernel weighted as well."""
        keep, expected = max(self.keeps), self.params.deploy == "expected"
        channels = self._channels(0, keep, {}, self.random(0)) if self.params.channels == "prefix" else {}
        if not expected and (not channels or (self.params.channel_keep or keep) == 1):
            return None
        dense = self.space.leave(self._expected(keep, channels) if expected else self.state)
        return ServerModel(partial(dense_forward, self.network), gather(dense, self.network.layout(), channels))

    def _expected(self, keep: float, channels: Selection) -> State:
        """The server's tensors with each kernel times its probability to be in a sub-model of these channels."""
        state = dict(self.state)
        for path, sigma in self._sizes(channels if self.params.importance == "part" else {}).items():
            u = self.state[f"{path}.u"]
            # Cast first: not every device has float64.
            drawn = torch.from_numpy(inclusion(*self._odds(keep, sigma))).to(u.dtype).to(u.device)
            state[f"{path}.u"] = u * drawn
        return state


def sample(scores: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw ``count`` distinct indices one after another with p ∝ exp(score), sorted.

    The largest of score + Gumbel noise have exactly that distribution, and logarithms don't underflow: it works when
    all but a few probabilities are zero in floating point.
    """
    keys = scores + rng.gumbel(size=len(scores))
    return np.sort(np.argsort(-keys, kind="stable")[:count])


def inclusion(scores: np.ndarray, count: int) -> np.ndarray:
    """How likely `sample` is to draw each index.

    Drawing one after another is a race of exponential clocks with rates exp(score), of which the first ``count`` win.
    The end of the race is taken as one time, the same for all: 1 - exp(-rate·time), with time such that they add up.

    >>> inclusion(np.zeros(4), 2).round(6).tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    if count >= len(scores):
        return np.ones(len(scores))
    rates = scores - scores.max()

    def drawn(log_time: float) -> np.ndarray:
        by_then: np.ndarray = -np.expm1(-np.exp(np.minimum(rates + log_time, 50)))
        return by_then

    low, high = -50.0, 50.0 - rates.min()
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if drawn(middle).sum() < count else (low, middle)
    return drawn(high)
