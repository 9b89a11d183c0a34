"""RollingDrop: a window of filters that moves on each round, so that all get trained.

Alam, Liu, Yan, Zhang, "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction",
NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import PositiveInt

from prism_bench.plugin import Algorithm, Client, Selection, Settings, along, window


class RollingDrop(Algorithm):
    """A window of ceil(ρN) filters of every layer that moves on each round (≈ FedRolex)."""

    class Params(Settings):
        step: PositiveInt = 1

    params: Params

    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        rule = window(round * self.params.step)
        return [[along(self.layout.of_kind("feature"), client.keep, rule, self.device)] for client in cohort]
