"""Plain convolutional networks: the paper's for FEMNIST, VGG11, and a small one for the embedded digits."""

from __future__ import annotations

import math
from typing import ClassVar

import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from prism_bench.core.axes import Axis, Dim
from prism_bench.core.network import BlockNetwork
from prism_bench.data.dataset import Signature
from prism_bench.models.layers import NORMS, Conv2d, Linear, NormName, normalisation
from prism_bench.models.model import Model, require_images


class ConvNet(BlockNetwork):
    """Convolutions with ReLU, each followed by 2×2 max pooling where ``pool`` says so, and one linear classifier."""

    def __init__(
        self,
        data: Signature,
        widths: tuple[int, ...],
        kernels: tuple[int, ...],
        pool: tuple[bool, ...],
        norm: NormName,
    ) -> None:
        super().__init__()
        require_images(data, smallest=2 ** sum(pool))
        channels, height, width = data.shape
        features = Axis("input", channels, "fixed")
        self.convs, self.norms, self.pool = nn.ModuleList(), nn.ModuleList(), pool
        for number, (size, kernel, pooled) in enumerate(zip(widths, kernels, pool, strict=True)):
            outputs = Axis(f"conv{number}", size)
            self.convs.append(Conv2d(features, outputs, kernel, bias=norm == "none"))
            self.norms.append(normalisation(norm, outputs))
            features = outputs
            if pooled:
                height, width = height // 2, width // 2
        self.classes, self.depth, self.positions = Axis("classes", data.classes, "fixed"), len(widths), (height, width)
        self.classifier = self.reads(features)
        # The first convolution has too few inputs to gain from factors, and the published code leaves it whole.
        self.paper_layers = tuple(f"convs.{number}" for number in range(1, len(widths)))

    def block(self, number: int, x: Tensor) -> Tensor:
        x = self.norms[number](self.convs[number](x))
        # The largest of the positive parts is the positive part of the largest: pooled first, ReLU has less to do.
        x = F.max_pool2d(x, 2) if self.pool[number] else x
        return F.relu(x if number < self.depth - 1 else x.flatten(1))

    def reads(self, features: Axis) -> Linear:
        """A classifier of a map of these features, with as many positions as there are behind the last block."""
        return Linear(Dim(features, expand=math.prod(self.positions)), self.classes)

    def pooled(self, x: Tensor) -> Tensor:
        """Where a feature is decides as much as how strong it is: a mean over the whole map would not tell."""
        height, width = self.positions
        return F.avg_pool2d(x, (x.shape[2] // height, x.shape[3] // width)).flatten(1)

    def classify(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(x)
        return logits

    def modules_of(self, number: int) -> tuple[str, ...]:
        return f"convs.{number}", f"norms.{number}"

    def exit(self, number: int) -> nn.Module:
        conv = self.convs[number]
        assert isinstance(conv, Conv2d)
        return self.reads(conv.outputs.axis)


class FemnistCNN(Model):
    """The paper's FEMNIST network: 64@5×5, pool, 64@3×3, pool, linear; the paper's has no normalisation."""

    width: PositiveInt = 64
    norm: NormName = Field("none", description=NORMS)
    later = frozenset({"norm"})
    usual: ClassVar[Signature] = Signature((1, 28, 28), 62)

    def build(self, data: Signature) -> ConvNet:
        return ConvNet(data, (self.width, self.width), (5, 3), (True, True), self.norm)


class SmallCNN(Model):
    """Three 3×3 convolutions for small images such as the embedded 8×8 digits."""

    width: PositiveInt = 32
    norm: NormName = Field("none", description=NORMS)
    usual: ClassVar[Signature] = Signature((1, 8, 8), 10)

    def build(self, data: Signature) -> ConvNet:
        widths = (self.width, 2 * self.width, 2 * self.width)
        return ConvNet(data, widths, (3, 3, 3), (True, False, True), self.norm)


class VGG11(Model):
    """VGG11 with BatchNorm for 32×32 images: eight 3×3 convolutions, one linear classifier."""

    width: PositiveInt = 64
    norm: NormName = Field("batch", description=NORMS)
    later = frozenset({"norm"})
    usual: ClassVar[Signature] = Signature((3, 32, 32), 10)

    def build(self, data: Signature) -> ConvNet:
        widths = tuple(self.width * times for times in (1, 2, 4, 4, 8, 8, 8, 8))
        pool = (True, True, False, True, False, True, False, True)
        return ConvNet(data, widths, (3,) * 8, pool, self.norm)
