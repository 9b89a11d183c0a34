"""A two-layer LSTM on words."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from prism_bench.axes import Axis, Dim
from prism_bench.data.dataset import Signature
from prism_bench.errors import BadInput
from prism_bench.models.layers import Linear, Table
from prism_bench.models.network import Model, Network


class LSTMLayer(nn.Module):
    """One layer: an input and a recurrent matrix, each with the four gates stacked along the hidden axis.

    Factorised, both run as V then U: the input's for the whole sequence in one product, the recurrent one's at every
    step. The steps are the only loop; clients, samples and gates share each operation in it.
    """

    def __init__(self, inputs: Axis, hidden: Axis) -> None:
        super().__init__()
        gates = Dim(hidden, repeat=4)
        self.input = Linear(inputs, gates)
        self.recurrent = Linear(hidden, gates, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """States at every step, (steps, batch, hidden), of inputs (steps, batch, features)."""
        arriving, recurrent = self.input(x), self.recurrent.map()
        size = arriving.shape[-1] // 4
        state = memory = arriving.new_zeros(*arriving.shape[1:-1], size)
        states = []
        for now in arriving.unbind(0):
            # In torch's order: input, forget, cell, output.
            gates = now + recurrent(state)
            let_in, forget, cell, let_out = gates.split(size, -1)
            memory = torch.sigmoid(forget) * memory + torch.sigmoid(let_in) * torch.tanh(cell)
            state = torch.sigmoid(let_out) * torch.tanh(memory)
            states.append(state)
        return torch.stack(states)


class LSTMClassifier(Network):
    """Embedding, LSTM layers, a linear classifier on the last state. All layers share one hidden axis."""

    def __init__(self, data: Signature, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        if data.vocabulary is None:
            raise BadInput("model.name: 'lstm' reads words, but this data set is images; try 'cnn' or 'resnet18'.")
        words, states = Axis("embedding", embedding), Axis("hidden", hidden)
        self.embedding = Table(data.vocabulary, words, std=1.0)
        self.stack = nn.ModuleList(LSTMLayer(words if number == 0 else states, states) for number in range(layers))
        self.classifier = Linear(states, Axis("classes", data.classes, "fixed"))
        self.paper_layers = tuple(f"stack.{n}.{part}" for n in range(layers) for part in ("input", "recurrent"))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens.T)
        for layer in self.stack:
            x = layer(x)
        logits: Tensor = self.classifier(x[-1])
        return logits


class LSTM(Model):
    """The paper's IMDB network: words embedded in 64, two LSTM layers of 256, linear."""

    embedding: PositiveInt = 64
    hidden: PositiveInt = 256
    layers: PositiveInt = 2
    usual: ClassVar[Signature] = Signature((500,), 2, vocabulary=1001)

    def build(self, data: Signature) -> LSTMClassifier:
        return LSTMClassifier(data, self.embedding, self.hidden, self.layers)
