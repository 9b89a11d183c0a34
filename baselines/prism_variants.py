"""PriSM with what was tried beside the paper, as further settings; by default all are off, and it is the paper's PriSM.

Niu, Prakash, Kundu, Lee, Avestimehr, "Federated Learning of Large Models at the Edge via Principal Sub-Model
Training", TMLR 2023.

What each does to accuracy and memory: results/FINDINGS.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field

from prism_bench.plugin import BadInput, Client, Network, Selection, ServerModel, State, dense_forward, gather, kept

from .prism import PriSM

Ratio = Annotated[float, Field(gt=0, le=1)]


class PriSMVariants(PriSM):
    """Principal kernels sampled by importance, p ∝ σ^κ, and a subset of the output channels."""

    class Params(PriSM.Params):
        importance: Literal["whole", "part"] = Field(
            "whole",
            description="a kernel's σ as a whole (paper), or its size in the channels that the client keeps; "
            "needs channels that don't follow the kernels",
        )
        scaling: bool = Field(False, description="scale activations by full/present channels")
        draw: Literal["client", "round"] = Field(
            "client", description="kernels and random channels are drawn for every client, or once per round for all"
        )
        deploy: Literal["full", "trained", "expected"] = Field(
            "full",
            description="the model whose accuracy counts: the server's whole (paper), its prefix of channels, or that "
            "with each kernel times its probability to be drawn, as dropout would",
        )
        rank_keep: Ratio | None = Field(None, description="share of the kernels, where not the client's keep ratio")
        channel_keep: Ratio | None = Field(None, description="share of the channels, where not the keep ratio")

    params: Params

    def __init__(self, params: Any = None, **settings: Any) -> None:
        super().__init__(params, **settings)
        self.deploys = "full" if self.params.deploy == "full" else "trained"  # type: ignore[misc]

    @classmethod
    def check(cls, params: Params, network: Network, keeps: Sequence[float]) -> None:
        super().check(params, network, keeps)
        if params.importance == "part" and params.channels == "kernels":
            raise BadInput("algorithm.importance: 'part' needs channels that don't follow the kernels; use 'whole'.")
        if params.importance == "part" and params.deploy == "expected" and params.channels in ("rolling", "random"):
            raise BadInput(
                "algorithm.deploy: 'expected' with importance 'part' needs channels that are the same in all rounds, "
                "as a kernel's probability follows from them; use channels 'prefix' or importance 'whole'."
            )

    def build(self, network: Network, seed: int) -> None:
        network.set_rescale(self.params.scaling)
        super().build(network, seed)

    def sub_model(self, round: int, client: Client, σ: Mapping[str, np.ndarray]) -> Selection:
        rng = self.random(round, client.number if self.params.draw == "client" else 0)
        channels: Selection = {}
        if self.params.importance == "part":
            channels = self.channels(round, client.keep, {}, rng)
            σ = self.singular_values(channels)
        kernels = {path: self.kernels(σ[path], client.keep, rng) for path in σ}
        return {**(channels or self.channels(round, client.keep, kernels, rng)), **self.ranks(kernels)}

    def kernels(self, σ: np.ndarray, keep: float, rng: np.random.Generator) -> np.ndarray:
        return super().kernels(σ, self.params.rank_keep or keep, rng)

    def channels(
        self, round: int, keep: float, kernels: Mapping[str, np.ndarray], rng: np.random.Generator
    ) -> Selection:
        return super().channels(round, self.params.channel_keep or keep, kernels, rng)

    def trained_part(self) -> ServerModel | None:
        """With ``deploy: expected`` each kernel is weighted as well."""
        keep = max(self.keeps)
        if self.params.deploy != "expected":
            return super().trained_part()
        channels = self.channels(0, keep, {}, self.random(0)) if self.params.channels in ("prefix", "inner") else {}
        dense = self.space.leave(self._expected(keep, channels))
        return ServerModel(partial(dense_forward, self.network), gather(dense, self.network.layout(), channels))

    def _expected(self, keep: float, channels: Selection) -> State:
        """The server's tensors with each kernel times its probability to be in a sub-model of these channels."""
        state, share = dict(self.state), self.params.rank_keep or keep
        for path, σ in self.singular_values(channels if self.params.importance == "part" else None).items():
            u = self.state[f"{path}.u"]
            drawn = inclusion(self.scores(σ, share), kept(share, len(σ)))
            # Cast first: not every device has float64.
            state[f"{path}.u"] = u * torch.from_numpy(drawn).to(u.dtype).to(u.device)
        return state


def inclusion(scores: np.ndarray, count: int) -> np.ndarray:
    """How likely `sample` is to draw each index.

    Drawing one after another is a race of exponential clocks with rates exp(score), of which the first ``count`` win.
    A clock wins if it rings at a time by which fewer than ``count`` of the others have: an integral over the logarithm
    of time, which is as smooth whatever the rates. Only the time in which the race may end needs more than the clock's
    own distribution: before, it wins if it rings. Right to about 1e-11.

    >>> inclusion(np.zeros(4), 2).round(6).tolist()
    [0.5, 0.5, 0.5, 0.5]
    >>> inclusion(np.log([3.0, 2.0, 1.0]), 1).round(6).tolist()
    [0.5, 0.333333, 0.166667]
    """
    n = len(scores)
    if count >= n:
        return np.ones(n)
    scores = scores - scores.max()
    # How many have rung is a sum of coins, and has its distribution from the generating function at roots of unity.
    # There, one coin less is one factor less. The roots are odd in number: -1, where a factor may be zero, is none.
    points = n + 1 + n % 2
    roots = np.exp(2j * np.pi / points * np.arange(points // 2 + 1))  # the others are their conjugates
    shares = np.where(np.arange(len(roots)), 2, 1) / points

    def fewer(than: int) -> np.ndarray:
        """What the generating function is multiplied by, for the probability that fewer than so many have rung."""
        weights: np.ndarray = shares * (roots[:, None] ** -np.arange(than)).sum(1)
        return weights

    def due(log_time: float) -> np.ndarray:
        """How often each clock should have rung by then."""
        times: np.ndarray = np.exp(np.minimum(scores + log_time, 50))
        return times

    def coins(log_time: float) -> np.ndarray:
        """The generating function's factors, clocks × roots."""
        factors: np.ndarray = 1 - np.expm1(-due(log_time))[:, None] * (roots - 1)
        return factors

    def when(than: int, chance: float) -> float:
        """The log-time at which the probability that fewer than so many have rung has fallen to ``chance``."""
        weights, low, high = fewer(than), -60.0, 5 - scores.min()
        for _ in range(50):
            middle = (low + high) / 2
            still = (coins(middle).prod(0) @ weights).real
            low, high = (middle, high) if still > chance else (low, middle)
        return float(high)

    end = when(count, 1e-12)
    start = min(end, when(count + 1, 1 - 1e-12))
    weights, drawn = fewer(count), -np.expm1(-due(start))
    for node, width in zip(*np.polynomial.legendre.leggauss(128), strict=True):
        log_time = start + (end - start) * (1 + node) / 2
        factors, times = coins(log_time), due(log_time)
        goes_on = ((1 / factors) @ (factors.prod(0) * weights)).real
        drawn += (end - start) / 2 * width * times * np.exp(-times) * goes_on
    probabilities: np.ndarray = np.clip(drawn * (count / drawn.sum()), 0, 1)
    return probabilities
