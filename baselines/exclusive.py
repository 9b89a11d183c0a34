"""Exclusive learning, a control: clients that are too weak stay out.

Kim et al., "DepthFL: Depthwise Federated Learning for Heterogeneous Clients", ICLR 2023, train so for comparison, and
it beats methods that let everybody take part.
"""

from __future__ import annotations

from .origdrop import OrigDrop


class Exclusive(OrigDrop):
    """Only clients of the largest capacity take part, with the thin network that fits them: a control."""

    def takes_part(self, keep: float) -> bool:
        return keep == max(self.keeps)
