"""OrthDrop: low-rank sub-models of the top principal kernels.

Yao et al., "FedHM: Efficient Federated Learning for Heterogeneous Models via Low-rank Factorization", 2021; named
OrthDrop in Niu et al., "Federated Learning of Large Models at the Edge via Principal Sub-Model Training", TMLR 2023.
"""

from __future__ import annotations

from collections.abc import Sequence

from prism_bench.algorithm import Client, OrthogonalAlgorithm, ServerModel
from prism_bench.axes import Selection, first
from prism_bench.capacity import kept


class OrthDrop(OrthogonalAlgorithm):
    """The top ceil(ρR) principal kernels of every factorised layer, all channels (≈ FedHM)."""

    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        return [[self._top(client.keep)] for client in cohort]

    def _top(self, keep: float) -> Selection:
        # The refresh leaves the kernels in falling order of σ.
        return {axis.name: first(kept(keep, axis.size), self.device) for axis in self.layout.of_kind("rank")}

    def trained_part(self) -> ServerModel:
        return self.part(self._top(max(self.keeps)))
