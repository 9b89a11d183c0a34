"""Federated Dropout: random channels for each client.

Caldas, Konečný, McMahan, Talwalkar, "Expanding the Reach of Federated Learning by Reducing Client Resource
Requirements", 2018 (arXiv:1812.07210).
"""

from __future__ import annotations

from collections.abc import Sequence

from prism_bench.plugin import Algorithm, Client, Selection, along, drawn


class FedDropout(Algorithm):
    """ceil(ρN) filters of every layer at random, drawn anew for each client and round, and the inputs that match.

    The compression of what is sent, the paper's other half, is left out: it would go with every method here.
    """

    smaller_in = ("width",)

    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        return [[self._any(round, client)] for client in cohort]

    def _any(self, round: int, client: Client) -> Selection:
        rule = drawn(self.random(round, client.number))
        return along(self.layout.of_kind("feature"), client.keep, rule, self.device)
