"""OrthDrop: low-rank sub-models of the top principal kernels.

Yao et al., "FedHM: Efficient Federated Learning for Heterogeneous Models via Low-rank Factorization", 2021; named
OrthDrop in Niu et al., "Federated Learning of Large Models at the Edge via Principal Sub-Model Training", TMLR 2023.
"""

from __future__ import annotations

from collections.abc import Sequence

from prism_bench.plugin import Client, OrthogonalAlgorithm, Selection, ServerModel, kept


class OrthDrop(OrthogonalAlgorithm):
    """The top ceil(ρR) principal kernels of every factorised layer, all channels (≈ FedHM)."""

    smaller_in = ("rank",)

    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        return [[self._top(client.keep)] for client in cohort]

    def _top(self, keep: float) -> Selection:
        top = {}
        for path in self.space.paths:
            # A refresh leaves the kernels in falling order of σ, and training soon mixes them up again.
            order = self.space.sigma(self.state, path).argsort(descending=True, stable=True)
            axis = self.space.rank(path)
            top[axis.name] = order[: kept(keep, axis.size)].sort().values
        return top

    def features(self) -> float:
        return 1.0

    def trained_part(self) -> ServerModel | None:
        return self.part(self._top(max(self.keeps))) if max(self.keeps) < 1 else None
