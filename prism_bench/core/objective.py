"""What a client's local step is made of: the loss it sees, and the optimiser that moves its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from prism_bench.base.errors import BadPlugin
from prism_bench.core.axes import State


@dataclass(frozen=True)
class Step:
    """One local step of one client, as a method's loss sees it."""

    logits: Tensor
    labels: Tensor
    params: State
    """The client's tensors now; the loss is differentiated with respect to them."""
    start: State
    """The same tensors as the client's training began."""
    present: Tensor
    """Of each label, whether the client has any sample of it."""
    others: Sequence[Tensor] = ()
    """Logits of the further parts, where the step is about several (`Algorithm.views`)."""


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over each sub-model's samples: of logits (clients, samples, classes), one number per client."""
    each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return each.view_as(labels).mean(1)


def all_used(gradients: Mapping[str, Tensor | None]) -> State:
    """The gradients; BadPlugin where the loss doesn't depend on a tensor that is trained."""
    used: State = {}
    for name, gradient in gradients.items():
        if gradient is None:
            raise BadPlugin(f"the loss doesn't depend on '{name}': leave it out, or name it in `frozen`.")
        used[name] = gradient
    return used


class Optimiser(Protocol):
    """Moves tensors by their gradients, both in place. Each tensor has the client as leading dimension."""

    def slots(self, state: State) -> Sequence[State]:
        """What it keeps from step to step (a momentum, ...), in the tensors' shapes; fresh at each participation."""

    def step(self, state: State, gradients: State, slots: Sequence[State], lr: float) -> None: ...


class SGD:
    """Stochastic gradient descent with momentum."""

    def __init__(self, momentum: float) -> None:
        self.momentum = momentum

    def slots(self, state: State) -> Sequence[State]:
        return [{name: torch.zeros_like(tensor) for name, tensor in state.items()}]

    def step(self, state: State, gradients: State, slots: Sequence[State], lr: float) -> None:
        [velocity] = slots
        buffers = list(velocity.values())
        torch._foreach_mul_(buffers, self.momentum)
        torch._foreach_add_(buffers, list(gradients.values()))
        torch._foreach_add_(list(state.values()), buffers, alpha=-lr)
