"""Networks that are only their forward: shapes come from the tensors they are called with.

A network is built once on the meta device; `torch.func.functional_call` with small tensors *is* the sub-model.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, overload
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from prism_bench.core.axes import Axis, Dim, Dims, Layout, State
from prism_bench.core.capacity import kept

_thread = threading.local()
"""What each thread has of its own: copies of networks, whether it evaluates and by which statistics, and where its
noise comes from."""


class Layer(nn.Module):
    """A module with parameters of its own; says which axes run along each and how it is initialised."""

    def dims(self) -> dict[str, Dims]:
        """Parameter name → one Dim (or None) per dimension."""
        raise NotImplementedError

    def initial(self, rng: np.random.Generator) -> State:
        """Fresh values for the layer's parameters."""
        raise NotImplementedError

    def declare(self, **shapes: tuple[int, ...]) -> None:
        """Register parameters that carry a shape and no memory."""
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape, device="meta")))


class Weighted(Layer):
    """A layer that is linear in one weight, held whole or, once `factorise` was called, as two factors: V then U.

    ``rescale`` multiplies the output by full/present output features, as dropout would (HeteroFL's activation
    scaling): nothing changes for the full model, nor where a normalisation follows.
    """

    weight: Tensor
    u: Tensor
    v: Tensor
    bias: Tensor | None

    def __init__(self, inputs: Dim, outputs: Dim, kernel: tuple[int, ...], bias: bool) -> None:
        super().__init__()
        self.inputs, self.outputs, self.kernel = inputs, outputs, kernel
        self.rank: Dim | None = None
        self.rows: Dim | None = None
        self.rescale = False
        self.declare(weight=(outputs.size, inputs.size, *kernel))
        if bias:
            self.declare(bias=(outputs.size,))
        else:
            self.bias = None

    def factorise(self, name: str, rows: str | None = None) -> None:
        """Hold U (out × rank) and V (rank × in × kernel) in place of the weight, along a new rank axis.

        With ``rows``, the rows of U are an axis of that name, apart from the output features: a sub-model may then hold
        the first rows only, and the output is zero in the other features, which are all there.
        """
        rank = min(self.outputs.size, self.inputs.size * math.prod(self.kernel))
        self.rank = Dim(Axis(name, rank, "rank"))
        if rows is not None:
            axis = Axis(rows, self.outputs.axis.size, "rows")
            self.rows = Dim(axis, self.outputs.repeat, self.outputs.expand)
        del self.weight
        self.declare(u=(self.outputs.size, rank), v=(rank, self.inputs.size, *self.kernel))

    def dims(self) -> dict[str, Dims]:
        spatial = (None,) * len(self.kernel)
        held: dict[str, Dims]
        if self.rank is None:
            held = {"weight": (self.outputs, self.inputs, *spatial)}
        else:
            held = {"u": (self.rows or self.outputs, self.rank), "v": (self.rank, self.inputs, *spatial)}
        return held if self.bias is None else held | {"bias": (self.outputs,)}

    def initial(self, rng: np.random.Generator) -> State:
        bound = 1 / math.sqrt(self.inputs.size * math.prod(self.kernel))
        return {
            name: torch.from_numpy(rng.uniform(-bound, bound, tuple(tensor.shape)).astype(np.float32))
            for name, tensor in self.named_parameters()
        }

    @overload
    def scaled(self, outputs: Tensor) -> Tensor: ...
    @overload
    def scaled(self, outputs: None) -> None: ...
    def scaled(self, outputs: Tensor | None) -> Tensor | None:
        """A tensor whose first dimension is the output features, times full/present: cheaper than the activations."""
        if not self.rescale or outputs is None or outputs.shape[0] == self.outputs.size:
            return outputs
        return outputs * (self.outputs.size / outputs.shape[0])

    def widened(self, outputs: Tensor, dim: int = 0) -> Tensor:
        """Zeros in the output features beyond the first rows of U, where it holds the first rows only."""
        if self.rows is None or outputs.shape[dim] == self.outputs.size:
            return outputs
        blocks: Tensor = outputs.unflatten(dim, (self.outputs.repeat, -1))  # type: ignore[no-untyped-call]
        shape = list(blocks.shape)
        inner = blocks.ndim - 1 if dim == -1 else dim + 1
        shape[inner] = self.outputs.size // self.outputs.repeat - shape[inner]
        return torch.cat([blocks, blocks.new_zeros(shape)], inner).flatten(inner - 1, inner)

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The layer's linear map with the given weight (out, in, *kernel)."""
        raise NotImplementedError

    def mix(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """A linear map of the features at each position: weight (out, in), no kernel."""
        raise NotImplementedError

    def matrices(self) -> list[Tensor]:
        """What the layer multiplies by: its weight, or V and then U."""
        return [self.scaled(self.weight)] if self.rank is None else [self.v, self.widened(self.scaled(self.u))]

    def forward(self, x: Tensor) -> Tensor:
        bias = self.scaled(self.bias)
        if self.rank is None:
            return self.product(x, self.scaled(self.weight), bias)
        if self.rows is None:
            return self.mix(self.product(x, self.v), self.scaled(self.u), bias)
        outputs = self.widened(self.mix(self.product(x, self.v), self.scaled(self.u)), 1 if self.kernel else -1)
        return outputs if bias is None else outputs + bias.view(-1, *[1] * len(self.kernel))


class Network(nn.Module):
    """A model with its axes. Lives on the meta device; the values are in a `State` beside it."""

    paper_layers: tuple[str, ...] = ()
    """The layers that the paper (or its published code, where the paper is silent) factorises."""

    def groups(self) -> dict[str, tuple[str, ...]]:
        """Names for sets of layers, as in ``algorithm.factorise``."""
        return {"paper": self.paper_layers, "all": tuple(self.weighted_layers())}

    def layers(self) -> dict[str, Layer]:
        return {path: module for path, module in self.named_modules() if isinstance(module, Layer)}

    def weighted_layers(self) -> dict[str, Weighted]:
        return {path: layer for path, layer in self.layers().items() if isinstance(layer, Weighted)}

    def layout(self) -> Layout:
        return Layout(
            {f"{path}.{name}": dims for path, layer in self.layers().items() for name, dims in layer.dims().items()}
        )

    @property
    def draws(self) -> bool:
        """Whether training it draws random numbers."""
        return any(isinstance(module, Noisy) for module in self.modules())

    @property
    def statistical(self) -> bool:
        """Whether a sample's result in training depends on the others of its batch."""
        return any(isinstance(module, Statistical) for module in self.modules())

    @property
    def static(self) -> bool:
        """Whether evaluating it takes statistics that were fitted to training samples."""
        return any(isinstance(module, Statistical) and module.static for module in self.modules())

    def here(self) -> Network:
        """This network, to be called with tensors by this thread, in the thread's mode: training or evaluation.

        `functional_call` puts the tensors into the module for the time of the call, so each thread needs its own.
        """
        if torch.compiler.is_compiling():
            return self
        own: Network = self
        if threading.current_thread() is not threading.main_thread():
            copies = _thread.__dict__.setdefault("copies", WeakKeyDictionary())
            if self not in copies:
                copies[self] = copy.deepcopy(self)
            own = copies[self]
        training = not getattr(_thread, "evaluating", False)
        return own if own.training == training else own.train(training)

    def initial(self, rng: np.random.Generator) -> State:
        """Fresh values for every parameter, on the CPU."""
        return {
            f"{path}.{name}": value
            for path, layer in self.layers().items()
            for name, value in layer.initial(rng).items()
        }

    def thinned(self, dense: State, keep: float) -> State:
        """Fresh values as a network with that share of the features would draw them: by its own number of inputs.

        A layer's values are as small as its inputs are many; a thin network with the whole one's fades from layer
        to layer where nothing normalises.
        """
        state = dict(dense)
        for path, layer in self.weighted_layers().items():
            axis = layer.inputs.axis
            if axis.kind == "feature":
                grow = math.sqrt(axis.size / kept(keep, axis.size))
                for name, _ in layer.named_parameters():
                    state[f"{path}.{name}"] = dense[f"{path}.{name}"] * grow
        return state

    def set_rescale(self, rescale: bool) -> None:
        """Switch activation scaling on or off in every weighted layer."""
        for layer in self.weighted_layers().values():
            layer.rescale = rescale

    def set_static(self, static: bool) -> None:
        """Switch fitted statistics in evaluation on or off, in every layer that normalises by a batch's."""
        for module in self.modules():
            if isinstance(module, Statistical):
                module.static = static


class BlockNetwork(Network):
    """A network of blocks, one after another, between a way in and a classifier: its depth can be cut.

    With exits, every block but the last has a classifier of its own behind it, and a sub-model of some depth is the
    first blocks and their classifiers; the network's own classifier is the last block's.
    """

    depth: int
    """How many blocks there are."""
    ends: tuple[str, ...] = ("classifier",)
    """The modules behind the last block."""

    def __init__(self) -> None:
        super().__init__()
        self.exits: nn.ModuleList | None = None

    def enter(self, x: Tensor) -> Tensor:
        """What the first block is given."""
        return x

    def block(self, number: int, x: Tensor) -> Tensor:
        """What a block, counted from 0, makes of the one before."""
        raise NotImplementedError

    def pooled(self, x: Tensor) -> Tensor:
        """What a classifier sees of a block's output: as much as the network's own sees of the last block's."""
        raise NotImplementedError

    def classify(self, x: Tensor) -> Tensor:
        """Logits of what the last block puts out."""
        raise NotImplementedError

    def modules_of(self, number: int) -> tuple[str, ...]:
        """The modules of a block."""
        raise NotImplementedError

    def exit(self, number: int) -> nn.Module:
        """A classifier of the pooled features behind a block."""
        raise NotImplementedError

    def with_exits(self) -> BlockNetwork:
        """This network with a classifier behind every block."""
        network = copy.deepcopy(self)
        network.exits = nn.ModuleList(self.exit(number) for number in range(self.depth - 1))
        return network

    def layout(self) -> Layout:
        """With exits, each block but the first is a part that a sub-model may do without."""
        dims = super().layout().dims
        return Layout(dims, {} if self.exits is None else self._parts(dims))

    def _parts(self, names: Iterable[str]) -> dict[str, Axis]:
        parts: dict[str, Axis] = {}
        for number in range(1, self.depth):
            last = number == self.depth - 1
            paths = (*self.modules_of(number), *(self.ends if last else (f"exits.{number}",)))
            part = Axis(block_part(number), 1, "part")
            parts |= {name: part for name in names if name.startswith(tuple(f"{path}." for path in paths))}
        return parts

    def forward(self, x: Tensor, depth: int | None = None) -> Tensor:
        """Logits; given a depth, those of each exit up to there: (samples, exits, classes)."""
        x, each = self.enter(x), []
        for number in range(depth or self.depth):
            x = self.block(number, x)
            if depth is not None and self.exits is not None and number < self.depth - 1:
                each.append(self.exits[number](self.pooled(x)))
        if depth in (None, self.depth):
            each.append(self.classify(x))
        return each[0] if depth is None else torch.stack(each, 1)


def block_part(number: int) -> str:
    """The name of the axis that a block's tensors lie on as a whole."""
    return f"block{number}"


def dense_forward(network: Network, params: State, x: Tensor, *args: Any) -> Tensor:
    """Logits of a network called with the given tensors, of whatever size; from any thread."""
    logits: Tensor = functional_call(network.here(), params, (x, *args))
    return logits


def evaluating() -> AbstractContextManager[None]:
    """Networks that this thread calls meanwhile are in evaluation mode."""
    return _meanwhile("evaluating", True)


def measuring(met: list[Moments]) -> AbstractContextManager[None]:
    """The statistics of the batch that this thread's networks meet meanwhile are put into a list, layer by layer."""
    return _meanwhile("met", met)


def fitted(statistics: Sequence[Moments]) -> AbstractContextManager[None]:
    """Networks that this thread calls meanwhile take these statistics in place of the batch's, in the same order."""
    return _meanwhile("fitted", iter(statistics))


def noise_from(generator: torch.Generator) -> AbstractContextManager[None]:
    """Noise that this thread's networks draw meanwhile comes from the given generator, and so from the run's seed."""
    return _meanwhile("noise", generator)


@contextmanager
def _meanwhile(name: str, value: Any) -> Iterator[None]:
    before = getattr(_thread, name, None)
    setattr(_thread, name, value)
    try:
        yield
    finally:
        setattr(_thread, name, before)


class Moments(NamedTuple):
    """Mean and variance of each feature."""

    mean: Tensor
    variance: Tensor


class Statistical(nn.Module):
    """A module that normalises by statistics of the batch; in evaluation by fitted ones, once `static` is set.

    Statistics are no part of the server's tensors, as nobody trains them. They are known by the order in which a
    forward asks for them, so that they fit whatever is evaluated: the whole model, a part of it, several in one.
    """

    static = False

    def statistics(self, x: Tensor) -> Moments | None:
        """What to normalise with; None: the batch's own statistics, as in training and where nothing was fitted."""
        if self.training or not self.static:
            return None
        met, given = getattr(_thread, "met", None), getattr(_thread, "fitted", None)
        if met is not None:
            met.append(self.measure(x))
        known: Moments | None = None if given is None else next(given)
        return known

    def measure(self, x: Tensor) -> Moments:
        """The batch's statistics."""
        raise NotImplementedError


class Noisy(nn.Module):
    """A module that draws random numbers in training. One sub-model after another is trained with such a module."""

    def noise(self, like: Tensor) -> Tensor:
        """Uniform numbers from 0 to 1 in the shape of a tensor. Drawn on the CPU: the same on every device."""
        if like.is_meta:
            return torch.empty_like(like)
        return torch.rand(like.shape, generator=getattr(_thread, "noise", None), dtype=like.dtype).to(like.device)
