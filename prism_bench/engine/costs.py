"""What a client pays, counted on the sub-model that it runs.

The sub-model is run on the meta device: no memory, no arithmetic, but every operation and every tensor that
is kept for the backward pass is there to be counted.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from prism_bench.base.errors import BadInput
from prism_bench.core.algorithm import Algorithm, Client, Forward, selected, viewed
from prism_bench.core.axes import Layout, Selection, State, sizes_of
from prism_bench.core.capacity import Budget
from prism_bench.core.network import Network, dense_forward
from prism_bench.core.objective import SGD, Optimiser, Step, all_used
from prism_bench.data.dataset import Signature

NUMBER = torch.float32
"""What every parameter is held as."""


@dataclass(frozen=True)
class Costs:
    """Of one client in one round; MACs are for the forward pass of one sample.

    ``activation_bytes`` are kept for the backward pass of one batch. ``training_bytes`` are those, the parameters, the
    gradients of the trained ones and what the optimiser keeps. In neither are gradients of activations, which come and
    go, work buffers, and what a method's own hooks copy.
    """

    parameters: float
    macs: float
    activation_bytes: float
    training_bytes: float
    transfer_bytes: float


def count(
    forward: Forward,
    shapes: Mapping[str, Sequence[int]],
    data: Signature,
    batch: int,
    frozen: Collection[str] = (),
    optimiser: Optimiser | None = None,
    unsent: Collection[str] | None = None,
    view: Callable[[State], Sequence[State]] = lambda params: [params],
    own_loss: Callable[[Step], Tensor] | None = None,
) -> Costs:
    """Costs of one (sub-)model whose tensors have the given shapes, trained with the given batch.

    ``frozen`` tensors get no gradient; ``unsent`` ones, the same if nothing else is said, are sent down and not up. The
    optimiser is SGD, where none is given. ``view`` gives the parts that a step passes its batch through,
    ``own_loss`` the method's, where `forward` gives more than logits.
    """
    params: State = {
        name: torch.empty(tuple(shape), device="meta", dtype=NUMBER, requires_grad=name not in frozen)
        for name, shape in shapes.items()
    }
    trained = {name: tensor for name, tensor in params.items() if name not in frozen}
    x = data.example(batch)
    kept = Kept({tensor.untyped_storage()._cdata for tensor in params.values()})
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda handle: handle.tensor):
        with FlopCounterMode(display=False) as counter:
            labels = torch.empty(batch, dtype=torch.int64, device="meta")
            losses = [_loss(forward(part, x), labels, part, own_loss) for part in view(params)]
            loss = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
        # What is computed again on the way back is kept for a while, too.
        found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        all_used(dict(zip(trained, found, strict=True)))
    # Optimisers see tensors with the client as leading dimension.
    slots = (optimiser or SGD(0.0)).slots({name: tensor.detach()[None] for name, tensor in trained.items()})
    held, gradients = _bytes(params.values()), _bytes(trained.values())
    sent_down_only = frozen if unsent is None else unsent
    return Costs(
        parameters=sum(tensor.numel() for tensor in params.values()),
        macs=counter.get_total_flops() / 2 / batch,
        activation_bytes=kept.most,
        training_bytes=held + gradients + sum(_bytes(slot.values()) for slot in slots) + kept.most,
        transfer_bytes=held + _bytes(params[name] for name in params if name not in sent_down_only),
    )


def _loss(outputs: Tensor, labels: Tensor, params: State, own: Callable[[Step], Tensor] | None) -> Tensor:
    """Cross-entropy of logits; the method's own loss of what only that can read."""
    if own is None or outputs.ndim == 2:
        return F.cross_entropy(outputs, labels)
    present = torch.ones(outputs.shape[-1], dtype=torch.bool, device="meta")
    return own(Step(outputs, labels, params, {name: tensor.detach() for name, tensor in params.items()}, present))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


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


def of_full_model(network: Network, data: Signature, batch: int, momentum: float = 0.0) -> Costs:
    """Costs of training the whole network with plain weights and SGD."""
    shapes = {name: tensor.shape for name, tensor in network.named_parameters()}
    return count(lambda params, x: dense_forward(network, params, x), shapes, data, batch, optimiser=SGD(momentum))


def running(
    algorithm: Algorithm, shapes: Mapping[str, Sequence[int]], data: Signature, batch: int, momentum: float = 0.0
) -> Forward:
    """The forward that local training runs: of a method's equivalent ones that of least MACs for these shapes.

    By count, not by trial, so that equal seeds stay equal numbers.
    """
    each = _ways(algorithm)
    return each[0] if len(each) == 1 else each[_least(_counted(algorithm, shapes, data, batch, momentum))]


def _ways(algorithm: Algorithm) -> Sequence[Forward]:
    """The forwards to choose from: `forward` alone where a step trains a part, as shapes then change at each step."""
    return [algorithm.forward] if _has_views(algorithm) else algorithm.equivalents()


def _has_views(algorithm: Algorithm) -> bool:
    return type(algorithm).views is not Algorithm.views


def _least(each: Sequence[Costs]) -> int:
    return min(range(len(each)), key=lambda way: each[way].macs)


_known: WeakKeyDictionary[Algorithm, dict[object, list[Costs]]] = WeakKeyDictionary()
"""What was counted for each method, so that equal sizes are counted once."""


def _counted(
    algorithm: Algorithm, shapes: Mapping[str, Sequence[int]], data: Signature, batch: int, momentum: float
) -> list[Costs]:
    """Costs of a sub-model of these shapes by each of the forwards to choose from."""
    known, frozen = _known.setdefault(algorithm, {}), frozenset(algorithm.frozen())
    key = (tuple((name, tuple(shape)) for name, shape in sorted(shapes.items())), data, batch, momentum, frozen)
    if key not in known:
        about = (shapes, data, batch, frozen, algorithm.optimiser(momentum), algorithm.unsent())
        if _has_views(algorithm):
            layout = algorithm.layout.of(shapes)
            views = [partial(_parts, layout, view) for view in viewed(algorithm, layout)]
            known[key] = [_drawn([count(algorithm.forward, *about, view) for view in views])]
        else:
            known[key] = [count(way, *about, own_loss=algorithm.loss) for way in _ways(algorithm)]
    return known[key]


def _parts(layout: Layout, view: Sequence[Selection], params: State) -> list[State]:
    """The parts of a sub-model that a step passes its batch through."""
    return [{name: tensor[layout.index(name, part)] for name, tensor in params.items()} for part in view]


def _drawn(each: Sequence[Costs]) -> Costs:
    """Costs of steps that are each about one of several views: the mean of their work, the memory of the largest."""
    return replace(
        each[0],
        macs=sum(one.macs for one in each) / len(each),
        activation_bytes=max(one.activation_bytes for one in each),
        training_bytes=max(one.training_bytes for one in each),
    )


def of_client(algorithm: Algorithm, keep: float, data: Signature, batch: int, momentum: float = 0.0) -> Costs:
    """Costs of a client with the given keep ratio, as the method would select for one in the first round."""
    return of_sizes(algorithm, _sizes(algorithm, keep), data, batch, momentum)


def as_stated(algorithm: Algorithm, keep: float, data: Signature, batch: int, momentum: float = 0.0) -> Costs:
    """What `of_client` would be if training ran `forward`, the method as its authors state it, in every case."""
    each = [_shapes(algorithm, one) for one in _sizes(algorithm, keep)]
    return _in_turn([_counted(algorithm, shapes, data, batch, momentum)[0] for shapes in each])


def of_sizes(
    algorithm: Algorithm, sizes: Sequence[Mapping[str, int]], data: Signature, batch: int, momentum: float = 0.0
) -> Costs:
    """Costs of a client that trains sub-models with axes of these sizes, each by the forward that runs."""
    each = [_counted(algorithm, _shapes(algorithm, one), data, batch, momentum) for one in sizes]
    return _in_turn([ways[_least(ways)] for ways in each])


def _sizes(algorithm: Algorithm, keep: float) -> list[dict[str, int]]:
    [selections] = selected(algorithm, 0, [Client(0, keep)])
    return [sizes_of(selection) for selection in selections]


def _shapes(algorithm: Algorithm, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    layout = algorithm.layout
    return {
        name: layout.shape(name, t.shape, sizes) for name, t in algorithm.state.items() if layout.holds(name, sizes)
    }


def _in_turn(each: Sequence[Costs]) -> Costs:
    """Costs of sub-models trained one after another: all are held, what else one takes is free for the next."""
    held = [NUMBER.itemsize * one.parameters for one in each]
    return Costs(
        parameters=sum(one.parameters for one in each),
        macs=sum(one.macs for one in each),
        activation_bytes=max(one.activation_bytes for one in each),
        training_bytes=sum(held) + max(one.training_bytes - own for one, own in zip(each, held, strict=True)),
        transfer_bytes=sum(one.transfer_bytes for one in each),
    )


def largest_keep(
    algorithm: Algorithm, budget: Budget, full: Costs, data: Signature, batch: int, momentum: float = 0.0
) -> float:
    """The keep ratio of the largest sub-model within a budget; BadInput where not even the smallest one fits."""
    ratios, about = algorithm.ratios(), (data, batch, momentum)

    def fits(costs: Costs) -> bool:
        return budget.allows(asdict(costs), asdict(full))

    def may_fit(keep: float) -> bool:
        each = [_counted(algorithm, _shapes(algorithm, one), *about) for one in _sizes(algorithm, keep)]
        return any(fits(_in_turn(one_way)) for one_way in zip(*each, strict=True))

    # By any one forward costs rise with the ratio: the last that may fit is found by halving. Mostly it does. Else what
    # runs there is another forward, of fewer MACs and more activations; as that changes once at most, by halving again.
    end = bisect.bisect_left(ratios, True, key=lambda keep: not may_fit(keep))
    if end and not fits(of_client(algorithm, ratios[end - 1], *about)):
        end = bisect.bisect_left(ratios, True, hi=end, key=lambda keep: not fits(of_client(algorithm, keep, *about)))
    if end:
        return ratios[end - 1]
    smallest = asdict(of_client(algorithm, ratios[0], *about))
    needs = ", ".join(f"{name} {smallest[name]:,.0f}" for name in budget.limits())
    name = type(algorithm).__name__
    raise BadInput(f"capacity.budget: nothing fits {budget.label}; {name}'s smallest sub-model costs {needs}.")


def average(costs: Sequence[Costs], shares: Sequence[float]) -> Costs:
    """The mean of several, each with its share."""
    mean = {
        field.name: sum(share * getattr(one, field.name) for one, share in zip(costs, shares, strict=True))
        for field in fields(Costs)
    }
    return Costs(**mean)
