"""RollingDrop: a window of filters that moves on each round, so that all get trained.

Alam, Liu, Yan, Zhang, "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction",
NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import PositiveInt

from prism_bench.base.settings import Settings
from prism_bench.core.algorithm import Algorithm, Client
from prism_bench.core.axes import Selection
from prism_bench.core.capacity import kept


class RollingDrop(Algorithm):
    """A window of ceil(ρN) filters of every layer that moves on each round (≈ FedRolex)."""

    class Params(Settings):
        step: PositiveInt = 1

    params: Params

    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        return [[self._window(round * self.params.step, client.keep)] for client in cohort]

    def _window(self, start: int, keep: float) -> Selection:
        return {
            axis.name: (start + torch.arange(kept(keep, axis.size), device=self.device)) % axis.size
            for axis in self.layout.of_kind("feature")
        }
