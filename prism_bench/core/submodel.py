"""The mechanism: gather cuts a client's sub-model out of the server's tensors, merge puts the updates back.

Every algorithm in this suite is a rule that *selects*; what follows is written once, here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from prism_bench.core.axes import Layout, Selection, State, sizes_of


def gather(state: State, layout: Layout, selection: Selection) -> State:
    """A copy of the selected entries of each tensor: a sub-model, truly small."""
    sizes = sizes_of(selection)
    return {
        name: tensor[layout.index(name, selection)].clone()
        for name, tensor in state.items()
        if layout.holds(name, sizes)
    }


def gather_stacked(state: State, layout: Layout, selections: Sequence[Selection]) -> State:
    """Sub-models of equal shapes with the client as leading dimension, ready to train in one pass."""
    sizes = sizes_of(selections[0])
    return {
        name: torch.stack([tensor[layout.index(name, selection)] for selection in selections])
        for name, tensor in state.items()
        if layout.holds(name, sizes)
    }


class Merge:
    """Entry by entry, the mean over the clients that held it; what nobody held stays as it was.

    Kept as running sums of each client's *change*, so that memory does not grow with the cohort, and an entry whose
    updates all equal the server's value comes back bit for bit (a mean of n equal floats need not).
    """

    def __init__(self, state: State, layout: Layout) -> None:
        self.state = state
        self.layout = layout
        self.change = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        # Entries along a dimension without an axis (a kernel's height and width) have the same holders: counted once.
        self.holders = {
            name: tensor.new_zeros([1 if dim is None else dim.size for dim in layout.dims[name]])
            for name, tensor in state.items()
        }

    def add(self, selection: Selection, updated: State, weight: float | Mapping[str, float] = 1.0) -> None:
        """Take in one client's sub-model after training, with its weight in the mean, for all tensors or for each."""
        for name, tensor in updated.items():
            where = self.layout.index(name, selection)
            counts = weight if isinstance(weight, (int, float)) else weight.get(name, 1.0)
            change = tensor - self.state[name][where]
            self.change[name][where] += change if counts == 1 else change * counts
            self.holders[name][where] += counts

    def result(self) -> State:
        """The merged server tensors, in the memory of the sums: to be called once."""
        for name, tensor in self.state.items():
            held = self.holders[name]
            self.change[name].div_(held.masked_fill_(held == 0, 1)).add_(tensor)
        merged, self.state, self.change, self.holders = self.change, {}, {}, {}
        return merged
