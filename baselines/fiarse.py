"""FIARSE: the channels that matter most, where a channel's importance is part of what is learnt.

Wu, Wang, Wang, Liu, Su, Gao, "FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware Submodel
Extraction", NeurIPS 2024.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from prism_bench.plugin import Dim, State

from .anycost import AnyCost


class FIARSE(AnyCost):
    """The channels with the largest norm s, whose mask s ≥ τ has a gradient of its own: 2τ/(s + τ)², as in the paper.

    The paper masks single weights by their magnitude. That saves no dense work, so here whole channels are chosen, each
    by the norm of the weights that write it; τ is the smallest norm that the client holds. The mask is 1 for all that
    is held, so only gradients differ from AnyCostFL's: a channel that the loss has use for grows, most near τ.
    """

    class Params(AnyCost.Params):
        learn: bool = Field(True, description="give the mask a gradient; off: AnyCostFL's choice and training")

    params: Params

    def forward(self, params: State, x: Tensor) -> Tensor:
        return super().forward(self._masked(params) if self.params.learn else params, x)

    def _masked(self, params: State) -> State:
        """All that writes a feature times the feature's mask, where the client holds a part of the features."""
        writers = {name: dims[0] for name, dims in self.layout.dims.items() if dims and dims[0] is not None}
        writers = {name: dim for name, dim in writers.items() if dim.axis.kind == "feature"}
        squares: dict[str, Tensor] = {}
        for name, dim in writers.items():
            if params[name].ndim > 1 and len(params[name]) < dim.size:
                rows = params[name].flatten(1).square().sum(1).reshape(dim.repeat, -1, dim.expand).sum((0, 2))
                squares[dim.axis.name] = squares.get(dim.axis.name, 0) + rows
        masks = {axis: _mask((one + 1e-12).sqrt()) for axis, one in squares.items()}
        masked = {name: _along(dim, masks[dim.axis.name]) for name, dim in writers.items() if dim.axis.name in masks}
        return {
            name: tensor * masked[name].view(-1, *[1] * (tensor.ndim - 1)) if name in masked else tensor
            for name, tensor in params.items()
        }


def _mask(norms: Tensor) -> Tensor:
    """Ones, with the gradient of the mask."""
    threshold = norms.detach().min()
    slope = -2 * threshold / (norms + threshold)
    return 1 + (slope - slope.detach())


def _along(dim: Dim, mask: Tensor) -> Tensor:
    return mask.repeat_interleave(dim.expand).repeat(dim.repeat)
