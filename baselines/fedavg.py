"""FedAvg on the full model: the reference that every sub-model method is measured against.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Sequence

from prism_bench.plugin import Algorithm, Client, Selection


class FedAvg(Algorithm):
    """Every client trains the whole model; the reference."""

    cuts = False

    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        return [[{}] for _ in cohort]
