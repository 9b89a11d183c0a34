"""AnyCostFL: the channels with the largest weights, sorted anew each round.

Li et al., "AnycostFL: Efficient On-Demand Federated Learning over Heterogeneous Edge Devices",
INFOCOM 2023.
"""

from __future__ import annotations

import numpy as np

from prism_bench.plugin import Axis, Selection, along

from .origdrop import OrigDrop


class AnyCost(OrigDrop):
    """The ceil(ρN) filters of every layer that have the largest norm on the server now, and the inputs that match.

    Sorting the channels and taking the first, as the paper has it, is the same selection without moving anything.
    Features that several layers write, such as those of a residual stream, are ordered by all of these. The paper's
    choice of how much to train and how far to compress the update is left out: here the capacity is given.
    """

    def first(self, keep: float) -> Selection:
        squares = self._squares()

        def largest(axis: Axis, count: int) -> np.ndarray:
            return np.sort(np.argsort(-squares[axis.name], kind="stable")[:count])

        return along(self.layout.of_kind("feature"), keep, largest, self.device)

    def _squares(self) -> dict[str, np.ndarray]:
        """Of each feature the sum of squares of the weights that write it."""
        found = {axis.name: np.zeros(axis.size) for axis in self.layout.of_kind("feature")}
        for name, (first, *others) in self.layout.dims.items():
            if first is not None and first.axis.name in found and others:
                rows = self.state[name].detach().flatten(1).square().sum(1).double().cpu().numpy()
                found[first.axis.name] += rows.reshape(first.repeat, first.axis.size, first.expand).sum((0, 2))
        return found
