"""OrigDrop: ordered dropout of filters in the original space.

Diao, Ding, Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients",
ICLR 2021; Horváth et al., "FjORD: Fair and Accurate Federated Learning under heterogeneous targets with Ordered
Dropout", NeurIPS 2021; named OrigDrop in the PriSM paper.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from prism_bench.plugin import Algorithm, Client, Network, Selection, ServerModel, Settings, along, prefix


class OrigDrop(Algorithm):
    """The first ceil(ρN) filters of every layer, and the inputs that match (≈ HeteroFL, FjORD)."""

    smaller_in = ("width",)

    class Params(Settings):
        scaling: bool = Field(False, description="scale activations by 1/ρ, as HeteroFL does")

    # What no client trains would only add noise: the server is limited by the largest capacity.
    deploys = "trained"

    params: Params

    def build(self, network: Network, seed: int) -> None:
        network.set_rescale(self.params.scaling)
        super().build(network, seed)

    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        return [[self.first(client.keep)] for client in cohort]

    def first(self, keep: float) -> Selection:
        return along(self.layout.of_kind("feature"), keep, prefix, self.device)

    def trained_part(self) -> ServerModel | None:
        return self.part(self.first(max(self.keeps))) if self.features() < 1 else None
