"""A small model for everybody, a control: what the weakest client can train, and nothing else."""

from __future__ import annotations

from prism_bench.plugin import Selection

from .origdrop import OrigDrop


class Small(OrigDrop):
    """Everybody trains the thin network that fits the weakest client: a control."""

    def first(self, keep: float) -> Selection:
        return super().first(min(self.keeps))

    def features(self) -> float:
        return min(self.keeps)
