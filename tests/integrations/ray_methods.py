"""Methods whose clients misbehave, once: in a module that Ray's workers find."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from prism_bench.plugin import Algorithm, Settings


class Hostile(Algorithm):
    """The first client to train raises, hangs or dies, or all are slow; full-model training otherwise."""

    cuts = False

    class Params(Settings):
        how: str
        marks: str
        """A folder: a file in it says that it has happened."""
        times: int = 1

    params: Params

    def select(self, round, cohort):
        return [[{}] for _ in cohort]

    def recall(self, params, memory):
        if self.params.how == "slow":
            time.sleep(0.3)
            return params
        for number in range(self.params.times):
            try:
                Path(self.params.marks, f"mark-{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            if self.params.how == "raise":
                raise ValueError("a method's own mistake")
            if self.params.how == "hang":
                time.sleep(1000)
            if self.params.how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
        return params
