"""Feature axes: what lets a selection be said in one line.

A model says once which tensor dimensions are the same axis of features: the output channels of a convolution, the
input channels of the next, the normalisation between them, all that a residual addition ties together. A
factorised layer adds a rank axis. A *selection* is then ``{axis name: indices}``; the entries of every
tensor that belong to it follow from the layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from prism_bench.base.errors import BadPlugin, nearest

State = dict[str, Tensor]
"""Named tensors: a model's parameters, whole or cut."""

Selection = Mapping[str, Tensor]
"""Indices (int64) to keep per axis name; an axis that is not named is kept whole. No index of a part leaves it out."""


@dataclass(frozen=True)
class Axis:
    """A named axis. ``fixed`` ones (input channels, classes) are never cut.

    ``stream`` marks the features of a residual stream: several layers add to them, so all must keep the same ones.
    """

    name: str
    size: int
    kind: Literal["feature", "rank", "rows", "atom", "part", "fixed"] = "feature"
    stream: bool = False


@dataclass(frozen=True)
class Dim:
    """How one tensor dimension is laid out along an axis.

    ``repeat`` stacks whole copies of the axis (an LSTM's four gates); ``expand`` gives each index several
    neighbouring entries (channel × positions, where a feature map is flattened).

    >>> Dim(Axis("hidden", 3), repeat=2).entries(torch.tensor([0, 2])).tolist()
    [0, 2, 3, 5]
    >>> Dim(Axis("channels", 3), expand=2).entries(torch.tensor([0, 2])).tolist()
    [0, 1, 4, 5]
    """

    axis: Axis
    repeat: int = 1
    expand: int = 1

    @property
    def size(self) -> int:
        return self.repeat * self.axis.size * self.expand

    def entries(self, indices: Tensor) -> Tensor:
        """The positions in this dimension that hold the given indices of the axis."""
        if self.repeat > 1:
            copies = torch.arange(self.repeat, device=indices.device) * self.axis.size
            indices = (copies[:, None] + indices).flatten()
        if self.expand > 1:
            inner = torch.arange(self.expand, device=indices.device)
            indices = (indices[:, None] * self.expand + inner).flatten()
        return indices

    def place(self, indices: Tensor | None) -> Tensor | slice:
        """Where the given indices are (None: all), as a slice where they are neighbours: much faster to cut out.

        Looked for on a CPU only: elsewhere it would have to wait for the indices.
        """
        if indices is None:
            return slice(None)
        if self.repeat == 1 and indices.device.type == "cpu" and len(indices):
            start = int(indices[0])
            if torch.equal(indices, torch.arange(start, start + len(indices))):
                return slice(start * self.expand, (start + len(indices)) * self.expand)
        return self.entries(indices)


Dims = tuple["Dim | None", ...]
"""One entry per tensor dimension; None where no axis runs along it (kernel height and width)."""


@dataclass(frozen=True)
class Layout:
    """The axes of a named set of tensors.

    ``parts`` says which tensors a sub-model may do without: each lies, as a whole, on an axis of size one, and a
    selection of nothing along that axis leaves it out. The blocks of a network are such parts.
    """

    dims: Mapping[str, Dims]
    parts: Mapping[str, Axis] = field(default_factory=dict)

    @cached_property
    def axes(self) -> dict[str, Axis]:
        """Every axis by name, in the order of first appearance."""
        found: dict[str, Axis] = {}
        for dims in self.dims.values():
            for dim in dims:
                if dim is not None and found.setdefault(dim.axis.name, dim.axis) != dim.axis:
                    raise ValueError(f"two different axes are called '{dim.axis.name}'")
        return found | {axis.name: axis for axis in self.parts.values()}

    def of_kind(self, kind: str) -> list[Axis]:
        return [axis for axis in self.axes.values() if axis.kind == kind]

    def holds(self, name: str, sizes: Mapping[str, int]) -> bool:
        """Whether a sub-model whose axes are cut to these sizes has the tensor at all."""
        part = self.parts.get(name)
        return part is None or sizes.get(part.name, 1) > 0

    def index(self, name: str, selection: Selection) -> tuple[Tensor | slice, ...]:
        """What to index the tensor with: the entries of a selection, as slices where they can be (empty: all of it)."""
        dims = self.dims[name]
        cut = [position for position, dim in enumerate(dims) if dim is not None and dim.axis.name in selection]
        if not cut:
            return ()
        index: list[Tensor | slice] = []
        for dim in dims[: cut[-1] + 1]:
            if dim is None:
                raise ValueError(f"'{name}': an axis must not follow a dimension without one")
            index.append(dim.place(selection.get(dim.axis.name)))
        listed = [position for position, part in enumerate(index) if isinstance(part, Tensor)]
        if len(listed) > 1:
            # Lists of indices are broadcast against each other; a slice between them would change the result's order.
            among = range(listed[0], listed[-1] + 1)
            device = selection[next(iter(selection))].device
            for position in among:
                part = index[position]
                dim = dims[position]
                assert dim is not None
                if isinstance(part, slice):
                    part = torch.arange(*part.indices(dim.size), device=device)
                index[position] = part.view([-1 if other == position else 1 for other in among])
        return tuple(index)

    def shape(self, name: str, full: Sequence[int], sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape that is left of a tensor whose axes are cut to these sizes."""
        return tuple(
            size if dim is None or dim.axis.name not in sizes else dim.repeat * dim.expand * sizes[dim.axis.name]
            for size, dim in zip(full, self.dims[name], strict=True)
        )

    def of(self, shapes: Mapping[str, Sequence[int]]) -> Layout:
        """The layout of a sub-model whose tensors have these shapes: its axes are as long as they are there."""

        def shorter(dim: Dim | None, size: int) -> Dim | None:
            return dim and replace(dim, axis=replace(dim.axis, size=size // (dim.repeat * dim.expand)))

        return Layout(
            {
                name: tuple(shorter(dim, size) for dim, size in zip(self.dims[name], shape, strict=True))
                for name, shape in shapes.items()
            },
            {name: part for name, part in self.parts.items() if name in shapes},
        )

    def check(self, selection: Selection) -> None:
        """BadPlugin where a selection can't be meant: an axis that does not exist, or indices that are no subset."""
        for name, indices in selection.items():
            if name not in self.axes:
                raise BadPlugin(f"selects along '{name}', and there is no such axis. {nearest(name, self.axes)}")
            axis = self.axes[name]
            if axis.kind == "fixed":
                raise BadPlugin(f"selects along '{name}', which is never cut.")
            if not isinstance(indices, Tensor) or indices.ndim != 1 or indices.dtype != torch.int64:
                raise BadPlugin(f"selects along '{name}' by {indices!r}; a list of whole numbers (int64) is needed.")
            if not len(indices):
                if axis.kind == "part":
                    continue
                raise BadPlugin(f"selects nothing along '{name}'; at least one index is needed.")
            if indices.device.type == "cpu":  # elsewhere a look at the values would have to wait for them
                values = indices.numpy()
                if values.min() < 0 or values.max() >= axis.size:
                    raise BadPlugin(f"selects out of range along '{name}', which has {axis.size} indices.")
                if len(np.unique(values)) < len(values):
                    raise BadPlugin(f"selects an index twice along '{name}'.")


def sizes_of(selection: Selection) -> dict[str, int]:
    """How long each axis is that a selection names."""
    return {axis: len(indices) for axis, indices in selection.items()}


def without(parts: Iterable[str], device: torch.device | str = "cpu") -> Selection:
    """The selection that leaves out these parts and cuts nothing else."""
    return {part: torch.empty(0, dtype=torch.int64, device=device) for part in parts}
