"""What a client pays, counted on the sub-model that it runs.

The sub-model is run on the meta device: no memory, no arithmetic, but every operation and every tensor that
is kept for the backward pass is there to be counted.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from prism_bench.base.errors import BadInput
from prism_bench.core.algorithm import Algorithm, Client, Forward, selected
from prism_bench.core.axes import State
from prism_bench.core.capacity import Budget
from prism_bench.core.network import Network, dense_forward
from prism_bench.data.dataset import Signature


@dataclass(frozen=True)
class Costs:
    """Of one client in one round; MACs are for the forward pass of one sample."""

    parameters: float
    macs: float
    activation_bytes: float
    transfer_bytes: float


def count(
    forward: Forward, shapes: Mapping[str, Sequence[int]], data: Signature, batch: int, frozen: Collection[str] = ()
) -> Costs:
    """Costs of one (sub-)model whose tensors have the given shapes, trained with the given batch.

    ``frozen`` tensors are sent down and not up, and get no gradient.
    """
    params: State = {
        name: torch.empty(tuple(shape), device="meta", requires_grad=name not in frozen)
        for name, shape in shapes.items()
    }
    trained = [tensor for name, tensor in params.items() if name not in frozen]
    x = data.example(batch)
    kept = Kept({tensor.untyped_storage()._cdata for tensor in params.values()})
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda handle: handle.tensor):
        with FlopCounterMode(display=False) as counter:
            loss = F.cross_entropy(forward(params, x), torch.empty(batch, dtype=torch.int64, device="meta"))
        torch.autograd.grad(loss, trained)  # what is computed again is kept for a while, too
    parameters = sum(tensor.numel() for tensor in params.values())
    down, up = (sum(tensor.numel() * tensor.element_size() for tensor in sent) for sent in (params.values(), trained))
    return Costs(parameters, counter.get_total_flops() / 2 / batch, kept.most, down + up)


class Kept:
    """Bytes that are kept for the backward pass, now and at most; each storage once, the weights never."""

    def __init__(self, weights: set[int]) -> None:
        self.weights = weights
        self.holders: Counter[int] = Counter()
        self.now = self.most = 0

    def pack(self, tensor: Tensor) -> Handle:
        return Handle(tensor, self)

    def add(self, tensor: Tensor, holders: int) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.weights:
            return
        before = self.holders[key] > 0
        self.holders[key] += holders
        self.now += storage.nbytes() * ((self.holders[key] > 0) - before)
        self.most = max(self.most, self.now)


class Handle:
    """What autograd holds in place of a tensor that it keeps, until the backward pass has used it."""

    def __init__(self, tensor: Tensor, kept: Kept) -> None:
        self.tensor, self.kept = tensor, kept
        kept.add(tensor, 1)

    def __del__(self) -> None:
        self.kept.add(self.tensor, -1)


def of_full_model(network: Network, data: Signature, batch: int) -> Costs:
    """Costs of training the whole network with plain weights."""
    shapes = {name: tensor.shape for name, tensor in network.named_parameters()}
    return count(lambda params, x: dense_forward(network, params, x), shapes, data, batch)


def of_client(algorithm: Algorithm, keep: float, data: Signature, batch: int) -> Costs:
    """Costs of a client with the given keep ratio, as the method would select for one in the first round."""
    [selections] = selected(algorithm, 0, [Client(0, keep)])
    sizes = [{axis: len(indices) for axis, indices in selection.items()} for selection in selections]
    return of_sizes(algorithm, sizes, data, batch)


def of_sizes(algorithm: Algorithm, sizes: Sequence[Mapping[str, int]], data: Signature, batch: int) -> Costs:
    """Costs of a client that trains sub-models with axes of these sizes. Several are trained one after another: their
    activations don't add up, all else does."""
    each = []
    for one in sizes:
        shapes = {name: algorithm.layout.shape(name, t.shape, one) for name, t in algorithm.state.items()}
        each.append(count(algorithm.forward, shapes, data, batch, algorithm.frozen()))
    return Costs(
        parameters=sum(costs.parameters for costs in each),
        macs=sum(costs.macs for costs in each),
        activation_bytes=max(costs.activation_bytes for costs in each),
        transfer_bytes=sum(costs.transfer_bytes for costs in each),
    )


def largest_keep(algorithm: Algorithm, budget: Budget, full: Costs, data: Signature, batch: int) -> float:
    """The keep ratio of the largest sub-model within a budget; BadInput where not even the smallest one fits."""
    ratios = algorithm.ratios()

    def fits(keep: float) -> bool:
        return budget.allows(asdict(of_client(algorithm, keep, data, batch)), asdict(full))

    if not fits(ratios[0]):
        smallest = asdict(of_client(algorithm, ratios[0], data, batch))
        needs = ", ".join(f"{name} {smallest[name]:,.0f}" for name in budget.limits())
        name = type(algorithm).__name__
        raise BadInput(f"capacity.budget: nothing fits {budget.label}; {name}'s smallest sub-model costs {needs}.")
    # Costs rise with the ratio: the last that fits, by halving.
    return ratios[bisect.bisect_left(ratios, True, key=lambda keep: not fits(keep)) - 1]


def average(costs: Sequence[Costs], shares: Sequence[float]) -> Costs:
    """The mean of several, each with its share."""
    mean = {
        field.name: sum(share * getattr(one, field.name) for one, share in zip(costs, shares, strict=True))
        for field in fields(Costs)
    }
    return Costs(**mean)
