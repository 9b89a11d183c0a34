"""FedRolex: a window of channels that rolls over the model.

Alam, Liu, Yan, Zhang, "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction",
NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from prism_bench.plugin import Algorithm, Client, Selection, Settings, along, window


class FedRolex(Algorithm):
    """ceil(ρN) neighbouring filters of every layer; the window moves on each round, so that all get trained."""

    smaller_in = ("width",)

    class Params(Settings):
        step: int = Field(1, ge=0, description="filters that the window moves by each round; 0: OrigDrop's selection")

    params: Params

    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        rule = window(round * self.params.step)
        return [[along(self.layout.of_kind("feature"), client.keep, rule, self.device)] for client in cohort]
