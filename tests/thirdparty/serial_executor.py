"""An executor: one client after another, in this process."""

from __future__ import annotations

from collections.abc import Iterator

from prism_bench.plugin import Executor, Round, Trained


class Serial(Executor):
    """Clients train one after another, in this process."""

    def train(self, round: Round) -> Iterator[Trained]:
        for task in round.tasks:
            yield self.trainer.train(round.number, [task], round.gather([task]))
