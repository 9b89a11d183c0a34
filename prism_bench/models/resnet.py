"""ResNet-18 for 32×32 images: 3×3 stem, no first pooling, BatchNorm without running statistics by default."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from prism_bench.core.axes import Axis
from prism_bench.core.network import BlockNetwork
from prism_bench.data.dataset import Signature
from prism_bench.models.layers import NORMS, Conv2d, Linear, NormName, normalisation, recomputed
from prism_bench.models.model import Model, require_images


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut. ``outputs`` is the axis that the whole stage's additions tie together."""

    def __init__(self, inputs: Axis, inner: Axis, outputs: Axis, stride: int, norm: NormName) -> None:
        super().__init__()
        bias = norm == "none"
        self.conv1 = Conv2d(inputs, inner, 3, stride, bias)
        self.norm1 = normalisation(norm, inner)
        self.conv2 = Conv2d(inner, outputs, 3, bias=bias)
        self.norm2 = normalisation(norm, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs:
            self.shortcut = nn.Sequential(Conv2d(inputs, outputs, 1, stride, bias), normalisation(norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(BlockNetwork):
    """Stages of residual blocks; each stage halves the map and doubles the width."""

    def __init__(
        self, data: Signature, width: int, blocks: tuple[int, ...], stride: int, recompute: bool, norm: NormName
    ) -> None:
        super().__init__()
        self.recompute = recompute
        require_images(data)
        features = Axis("stage1", width, stream=True)
        self.stem = Conv2d(Axis("input", data.shape[0], "fixed"), features, 3, stride, bias=norm == "none")
        self.norm = normalisation(norm, features)
        self.blocks = nn.ModuleList()
        for stage, count in enumerate(blocks, start=1):
            outputs = Axis(f"stage{stage}", width * 2 ** (stage - 1), stream=True)
            for number in range(count):
                inner = Axis(f"stage{stage}.{number}", outputs.size)
                self.blocks.append(Block(features, inner, outputs, 2 if stage > 1 and number == 0 else 1, norm))
                features = outputs
        self.classes, self.depth = Axis("classes", data.classes, "fixed"), len(self.blocks)
        self.classifier = Linear(features, self.classes)
        self.paper_layers = tuple(f"blocks.{n}.conv{c}" for n in range(len(self.blocks)) for c in (1, 2))

    def enter(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.stem(x)))

    def block(self, number: int, x: Tensor) -> Tensor:
        outputs: Tensor = recomputed(self.blocks[number], x) if self.recompute else self.blocks[number](x)
        return outputs

    def pooled(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))

    def classify(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.pooled(x))
        return logits

    def modules_of(self, number: int) -> tuple[str, ...]:
        return (f"blocks.{number}",)

    def exit(self, number: int) -> nn.Module:
        block = self.blocks[number]
        assert isinstance(block, Block)
        return Linear(block.conv2.outputs, self.classes)


class ResNet18(Model):
    """ResNet-18 for CIFAR: 3×3 stem, 4 stages of 2 blocks, BatchNorm on batch statistics by default."""

    width: PositiveInt = 64
    blocks: tuple[PositiveInt, ...] = (2, 2, 2, 2)
    stride: Literal[1, 2] = Field(1, description="of the first convolution; 2: all maps have half the side")
    recompute: bool = Field(
        False,
        description="keep each block's input only and compute the block again on the way back: much less activation "
        "memory, a third more work, the same numbers",
    )
    norm: NormName = Field("batch", description=NORMS)
    later = frozenset({"norm"})
    usual: ClassVar[Signature] = Signature((3, 32, 32), 10)

    def build(self, data: Signature) -> ResNet:
        return ResNet(data, self.width, self.blocks, self.stride, self.recompute, self.norm)
