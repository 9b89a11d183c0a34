"""PriSM: principal probabilistic sub-models.

Niu, Prakash, Kundu, Lee, Avestimehr, "Federated Learning of Large Models at the Edge via Principal Sub-Model
Training", TMLR 2023. The paper's Algorithm 1, and where its steps are:

1. decompose each W into principal kernels, W = Σ σ_i u_i v_iᵀ - `OrthogonalSpace.enter`
2. sub-model of client c: sample the kernels I_c of each layer with p ∝ σ^κ (eq. 2) - `PriSM.kernels`
3. memory saving: compute only a subset of the output channels, u_i(1:r) - `PriSM.channels`
4. local training with λ/2‖UV‖² in place of weight decay (eq. 6) - `OrthogonalSpace.add_decay`
5. aggregation: each kernel's mean over the clients that had it, û unchanged (eq. 5) - `submodel.Merge`
6. rebuild W, and decompose it again in the next round - `OrthogonalAlgorithm.finish_round`

What was tried beside the paper is in `prism_variants.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
from pydantic import Field, NonNegativeFloat

from prism_bench.plugin import (
    Client,
    Network,
    OrthogonalAlgorithm,
    OrthogonalParams,
    OrthogonalSpace,
    Selection,
    ServerModel,
    along,
    dense_forward,
    drawn,
    following,
    gather,
    indices,
    kept,
    prefix,
    sample,
    window,
)


class PriSM(OrthogonalAlgorithm):
    """Principal kernels sampled by importance, p ∝ σ^κ, and a subset of the output channels."""

    smaller_in = ("rank", "width")

    class Params(OrthogonalParams):
        sampling: Literal["power", "softmax", "uniform"] = Field(
            "power", description="kernel probability: σ^κ, softmax of σ, or equal"
        )
        kappa: NonNegativeFloat | None = Field(
            None, description="smooth factor κ; by default the paper's: 4 at keep ratios up to 0.2, else 2.5"
        )
        channels: Literal["prefix", "kernels", "rolling", "random", "all", "rows", "inner"] = Field(
            "prefix",
            description="output channels kept: the first (paper), the sampled kernels' indices, a window that moves "
            "with the rounds, random ones, or all (no memory saving); rows: only the first rows of each U, and "
            "everything else whole, which is what the authors' published code trains; inner: the first of those that "
            "no residual addition ties",
        )

    params: Params

    def space_of(self, network: Network) -> OrthogonalSpace:
        return OrthogonalSpace(network, self.params.factorise, rows=self.params.channels == "rows")

    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        σ = self.singular_values()
        return [[self.sub_model(round, client, σ)] for client in cohort]

    def singular_values(self, channels: Selection | None = None) -> dict[str, np.ndarray]:
        """σ of each layer: the size of its kernels, or of the part of them in the given channels."""
        factors = {name: self.state[name] for name in self.space.factors}
        part = gather(factors, self.layout, channels) if channels else factors
        σ = {path: self.space.sigma(part, path).cpu().double().numpy() for path in self.space.paths}
        return {path: np.maximum(sizes, np.finfo(float).tiny) for path, sizes in σ.items()}

    def sub_model(self, round: int, client: Client, σ: Mapping[str, np.ndarray]) -> Selection:
        rng = self.random(round, client.number)
        kernels = {path: self.kernels(σ[path], client.keep, rng) for path in σ}
        return {**self.channels(round, client.keep, kernels, rng), **self.ranks(kernels)}

    def kernels(self, σ: np.ndarray, keep: float, rng: np.random.Generator) -> np.ndarray:
        """I_c of one layer: r = ceil(ρR) distinct kernels, drawn one after another."""
        return sample(self.scores(σ, keep), kept(keep, len(σ)), rng)

    def scores(self, σ: np.ndarray, keep: float) -> np.ndarray:
        """log p of each kernel, up to a constant."""
        κ = self.params.kappa if self.params.kappa is not None else (4.0 if keep <= 0.2 else 2.5)
        log_p: np.ndarray = κ * np.log(σ)  # eq. 2: p ∝ σ^κ
        ablations = {"softmax": σ, "uniform": np.zeros_like(σ)}
        return ablations.get(self.params.sampling, log_p)

    def channels(
        self, round: int, keep: float, kernels: Mapping[str, np.ndarray], rng: np.random.Generator
    ) -> Selection:
        """The output channels that are computed; whatever reads them next takes the same ones."""
        if self.params.channels == "all":
            return {}
        if self.params.channels == "rows":
            return along(self.layout.of_kind("rows"), keep, prefix, self.device)
        axes = self.layout.of_kind("feature")
        if self.params.channels == "inner":
            axes = [axis for axis in axes if not axis.stream]
        rules = {"rolling": window(round), "random": drawn(rng), "kernels": following(self.written_by(kernels), rng)}
        return along(axes, keep, rules.get(self.params.channels, prefix), self.device)

    def written_by(self, kernels: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """By axis, the kernels of the first factorised layer that writes it."""
        written: dict[str, np.ndarray] = {}
        for path, chosen in kernels.items():
            written.setdefault(self.space.layer(path).outputs.axis.name, chosen)
        return written

    def ranks(self, kernels: Mapping[str, np.ndarray]) -> Selection:
        return {self.space.rank(path).name: indices(chosen, self.device) for path, chosen in kernels.items()}

    def features(self) -> float:
        return 1.0 if self.params.channels in ("all", "rows") else super().features()

    def trained_part(self) -> ServerModel | None:
        """Without the channels that no client of the largest capacity trains, if they are the same in all rounds."""
        return self.first_channels(max(self.keeps))

    def client_model(self, keep: float) -> ServerModel:
        """Its channels with all kernels in them, as one weight per layer; with all channels, the largest kernels."""
        if self.params.channels == "all":
            top = {path: np.sort(np.argsort(-σ)[: kept(keep, len(σ))]) for path, σ in self.singular_values().items()}
            return self.part(self.ranks(top))
        return self.first_channels(keep) or super().client_model(keep)

    def first_channels(self, keep: float) -> ServerModel | None:
        """The rebuilt model in the channels of that capacity; None where they are all, or change by round."""
        if self.params.channels not in ("prefix", "inner", "rows"):
            return None
        channels = self.channels(0, keep, {}, self.random(0))
        if all(len(chosen) == self.layout.axes[name].size for name, chosen in channels.items()):
            return None
        if self.params.channels == "rows":
            dense, channels = self.space.leave(gather(self.state, self.layout, channels)), {}
        else:
            dense = self.space.leave(self.state)
        return ServerModel(partial(dense_forward, self.network), gather(dense, self.network.layout(), channels))
