"""SpreadDrop: filters that are evenly spread over a layer, others in each round. An example of a plugin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import PositiveInt

from prism_bench.plugin import Algorithm, Axis, Client, Selection, Settings, along


class SpreadDrop(Algorithm):
    """ceil(ρN) filters of every layer, evenly spread; all move on by some each round."""

    class Params(Settings):
        step: PositiveInt = 1

    params: Params

    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        def spread(axis: Axis, count: int) -> np.ndarray:
            return np.sort((np.arange(count) * axis.size // count + round * self.params.step) % axis.size)

        return [[along(self.layout.of_kind("feature"), client.keep, spread, self.device)] for client in cohort]
