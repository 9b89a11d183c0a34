"""A model: a perceptron with one hidden layer and dropout, for images of any size."""

from __future__ import annotations

import math
from typing import ClassVar

import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor

from prism_bench.plugin import Axis, Dim, Dropout, Linear, Model, Network, Signature, require_images


class OneHiddenLayer(Network):
    paper_layers = ("hidden",)

    def __init__(self, data: Signature, width: int, dropout: float) -> None:
        super().__init__()
        require_images(data)
        pixels = Dim(Axis("input", data.shape[0], "fixed"), expand=math.prod(data.shape[1:]))
        features = Axis("hidden", width)
        self.hidden = Linear(pixels, features)
        self.dropout = Dropout(dropout)
        self.classifier = Linear(features, Axis("classes", data.classes, "fixed"))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.dropout(F.relu(self.hidden(x.flatten(1)))))
        return logits


class Perceptron(Model):
    """One hidden layer with ReLU and dropout."""

    width: PositiveInt = 32
    dropout: float = Field(0.2, gt=0, lt=1, description="share of the hidden features that a training step leaves out")
    usual: ClassVar[Signature] = Signature((1, 8, 8), 10)

    def build(self, data: Signature) -> OneHiddenLayer:
        return OneHiddenLayer(data, self.width, self.dropout)
