"""The settings that build a network."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from prism_bench.base.errors import BadInput
from prism_bench.base.settings import Settings
from prism_bench.core.axes import State
from prism_bench.core.network import Network
from prism_bench.data.dataset import Signature


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
