"""A two-layer LSTM on words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from prism_bench.base.errors import BadInput
from prism_bench.core.axes import Axis, Dim
from prism_bench.core.network import BlockNetwork
from prism_bench.data.dataset import Signature
from prism_bench.models.layers import Embedding, Linear
from prism_bench.models.model import Model


class LSTMLayer(nn.Module):
    """One layer: an input and a recurrent matrix, each with the four gates stacked along the hidden axis.

    Factorised, both run as V then U: the input's for the whole sequence in one product, the recurrent one's at every
    step.
    """

    def __init__(self, inputs: Axis, hidden: Axis) -> None:
        super().__init__()
        gates = Dim(hidden, repeat=4)
        self.input = Linear(inputs, gates)
        self.recurrent = Linear(hidden, gates, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """States at every step, (steps, batch, hidden), of inputs (steps, batch, features)."""
        states: Tensor = Recurrence.apply(self.input(x), *self.recurrent.matrices())[0]
        return states


class Recurrence(torch.autograd.Function):
    """An LSTM's steps, given what arrives from its inputs at each: states (steps, batch, hidden).

    The steps are the only loop; clients, samples and gates share each operation in it. The backward pass is written
    out, as autograd's would add up the recurrent matrix's gradient step by step: here it is one product at the end.
    Gates are in torch's order: input, forget, cell, output.
    """

    generate_vmap_rule = True
    BLOCK = 25
    """Steps whose factors are worked out together in the backward pass."""

    @staticmethod
    def forward(arriving: Tensor, *matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size = arriving.shape[-1] // 4
        gates = arriving.clone()
        state = memory = arriving.new_zeros(*arriving.shape[1:-1], size)
        states, memories = (arriving.new_zeros(*arriving.shape[:-1], size) for _ in range(2))
        for step in range(len(arriving)):
            now = gates[step]
            now += through(matrices, state)
            let_in, forget, cell, let_out = now.chunk(4, -1)
            now[..., : 2 * size].sigmoid_()
            cell.tanh_()
            let_out.sigmoid_()
            memory = forget * memory + let_in * cell
            state = let_out * memory.tanh()
            memories[step], states[step] = memory, state
        return states, gates, memories

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        _, *matrices = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output, *matrices)

    @staticmethod
    def backward(ctx: Any, of_states: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        states, gates, memories, *matrices = ctx.saved_tensors
        steps, size = states.shape[0], states.shape[-1]
        of_state = of_memory = torch.zeros_like(states[0])
        for last in range(steps, 0, -Recurrence.BLOCK):
            first = max(0, last - Recurrence.BLOCK)
            let_in, forget, cell, let_out = gates[first:last].chunk(4, -1)
            earlier = memories[max(0, first - 1) : last - 1]
            if first == 0:
                earlier = torch.cat([torch.zeros_like(memories[:1]), earlier])
            seen = memories[first:last].tanh()
            to_memory = let_out * (1 - seen * seen)
            # By what the gradient of the memory, and for the last gate of the state, is multiplied to be the gates'.
            factors = torch.stack(
                [cell * let_in * (1 - let_in), earlier * forget * (1 - forget), let_in * (1 - cell * cell)], -2
            )
            of_let_out = seen * let_out * (1 - let_out)
            for step in range(last - 1, first - 1, -1):
                at = step - first
                of_state = of_state + of_states[step]
                of_memory = of_memory + of_state * to_memory[at]
                carried = of_memory * forget[at]
                # The gates have been read: their gradient takes their place, as it is as large as all the rest.
                now = gates[step]
                now[..., : 3 * size] = (factors[at] * of_memory.unsqueeze(-2)).flatten(-2)
                now[..., 3 * size :] = of_let_out[at] * of_state
                of_memory = carried
                of_state = back(matrices, now)
        # The first state was zero, and gives the matrices no gradient.
        return gates, *of_matrices(matrices, states[:-1].flatten(0, 1), gates[1:].flatten(0, 1))


def through(matrices: Sequence[Tensor], x: Tensor) -> Tensor:
    """One linear map after the other."""
    for matrix in matrices:
        x = x @ matrix.mT
    return x


def back(matrices: Sequence[Tensor], gradient: Tensor) -> Tensor:
    """The gradient of their input, given that of their output."""
    for matrix in reversed(matrices):
        gradient = gradient @ matrix
    return gradient


def of_matrices(matrices: Sequence[Tensor], x: Tensor, gradient: Tensor) -> list[Tensor]:
    """The gradients of the maps themselves."""
    return [
        back(matrices[number + 1 :], gradient).mT @ through(matrices[:number], x) for number in range(len(matrices))
    ]


class LSTMClassifier(BlockNetwork):
    """Embedding, LSTM layers, a linear classifier on the last state. All layers share one hidden axis."""

    def __init__(self, data: Signature, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        if data.vocabulary is None:
            raise BadInput("model.name: 'lstm' reads words, but this data set is images; try 'cnn' or 'resnet18'.")
        words, states = Axis("embedding", embedding), Axis("hidden", hidden)
        self.depth, self.states, self.classes = layers, states, Axis("classes", data.classes, "fixed")
        self.embedding = Embedding(data.vocabulary, words, std=1.0)
        self.stack = nn.ModuleList(LSTMLayer(words if number == 0 else states, states) for number in range(layers))
        self.classifier = Linear(states, self.classes)
        self.paper_layers = tuple(f"stack.{n}.{part}" for n in range(layers) for part in ("input", "recurrent"))

    def enter(self, x: Tensor) -> Tensor:
        words: Tensor = self.embedding(x.T)
        return words

    def block(self, number: int, x: Tensor) -> Tensor:
        states: Tensor = self.stack[number](x)
        return states

    def pooled(self, x: Tensor) -> Tensor:
        return x[-1]

    def classify(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.pooled(x))
        return logits

    def modules_of(self, number: int) -> tuple[str, ...]:
        return (f"stack.{number}",)

    def exit(self, number: int) -> nn.Module:
        return Linear(self.states, self.classes)


class LSTM(Model):
    """The paper's IMDB network: words embedded in 64, two LSTM layers of 256, linear."""

    embedding: PositiveInt = 64
    hidden: PositiveInt = 256
    layers: PositiveInt = 2
    usual: ClassVar[Signature] = Signature((500,), 2, vocabulary=1001)

    def build(self, data: Signature) -> LSTMClassifier:
        return LSTMClassifier(data, self.embedding, self.hidden, self.layers)
