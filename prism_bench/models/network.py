"""A network with its axes, and the settings that build one."""

from __future__ import annotations

import copy
import threading
from abc import abstractmethod
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from prism_bench.axes import Layout, State
from prism_bench.config import Settings
from prism_bench.data.dataset import Signature
from prism_bench.errors import BadInput
from prism_bench.models.layers import Layer, Weighted

_copies = threading.local()


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

    def here(self) -> Network:
        """This network, to be called with tensors by this thread.

        `functional_call` puts the tensors into the module for the time of the call, so each thread needs its own.
        """
        if torch.compiler.is_compiling() or threading.current_thread() is threading.main_thread():
            return self
        copies = _copies.__dict__.setdefault("of", WeakKeyDictionary())
        if self not in copies:
            copies[self] = copy.deepcopy(self)
        own: Network = copies[self]
        return own

    def initial(self, rng: np.random.Generator) -> State:
        """Fresh values for every parameter, on the CPU."""
        return {
            f"{path}.{name}": value
            for path, layer in self.layers().items()
            for name, value in layer.initial(rng).items()
        }

    def set_rescale(self, rescale: bool) -> None:
        """Switch activation scaling on or off in every weighted layer."""
        for layer in self.weighted_layers().values():
            layer.rescale = rescale


def require_images(data: Signature, smallest: int = 1, divisor: int = 1) -> None:
    """BadInput where samples are not images, too small, or not made of whole patches."""
    if data.vocabulary is not None or len(data.shape) != 3:
        raise BadInput("model.name: this model reads images, and the data set is none; 'lstm' reads words.")
    if min(data.shape[1:]) < smallest or any(side % divisor for side in data.shape[1:]):
        right = f"at least {smallest}×{smallest}" + (f", in multiples of {divisor}" if divisor > 1 else "")
        raise BadInput(f"model.name: needs images of {right} (samples are {'×'.join(map(str, data.shape))}).")


class Model(Settings):
    """A model plugin: validated settings that build a `Network` for a data set's signature."""

    usual: ClassVar[Signature]
    """The data that the model is known for: what its costs are worked out on, unless a run says otherwise."""

    @abstractmethod
    def build(self, data: Signature) -> Network: ...

    @property
    def start(self) -> str:
        """Where a run's first weights come from, for its record."""
        return "scratch"

    def content(self) -> bytes:
        """What stands for the content of files that the settings name: another content is another run."""
        return b""

    def initial(self, network: Network, rng: np.random.Generator) -> State:
        """The weights that a run starts from."""
        return network.initial(rng)
