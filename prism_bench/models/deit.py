"""DeiT-tiny for 32×32 images: a vision transformer on 4×4 patches."""

from __future__ import annotations

import math
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from prism_bench.base.errors import BadInput
from prism_bench.base.files import checksum
from prism_bench.core.axes import Axis, Dim, State
from prism_bench.core.network import BlockNetwork, Network
from prism_bench.data.dataset import Signature
from prism_bench.models.layers import Conv2d, Embedding, LayerNorm, Linear
from prism_bench.models.model import Model, require_images


class Attention(nn.Module):
    """Self-attention. A cut takes the same features out of every head, and out of queries, keys and values alike."""

    def __init__(self, features: Axis, head: Axis, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, 1 / math.sqrt(head.size)
        self.qkv = Linear(features, Dim(head, repeat=3 * heads))
        self.out = Linear(Dim(head, repeat=heads), features)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        query, key, value = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (self.scale * query @ key.mT).softmax(-1)
        out: Tensor = self.out((weights @ value).transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a LayerNorm and added to the stream."""

    def __init__(self, features: Axis, head: Axis, heads: int, inner: Axis) -> None:
        super().__init__()
        self.norm1 = LayerNorm(features)
        self.attention = Attention(features, head, heads)
        self.norm2 = LayerNorm(features)
        self.mlp = nn.ModuleList([Linear(features, inner), Linear(inner, features)])

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        widen, narrow = self.mlp
        out: Tensor = x + narrow(F.gelu(widen(self.norm2(x))))
        return out


class VisionTransformer(BlockNetwork):
    """Patches, a class token, positions, blocks, a linear classifier on the class token."""

    ends = ("norm", "classifier")

    def __init__(self, data: Signature, patch: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        channels, height, columns = data.shape
        self.depth, self.classes = depth, Axis("classes", data.classes, "fixed")
        self.features = features = Axis("features", width, stream=True)
        self.patches = Conv2d(Axis("input", channels, "fixed"), features, patch, stride=patch, bias=True)
        self.token = Embedding(1, features, std=0.02)
        self.positions = Embedding(1 + (height // patch) * (columns // patch), features, std=0.02)
        self.blocks = nn.ModuleList(
            Block(features, Axis(f"block{n}.head", width // heads), heads, Axis(f"block{n}.mlp", 4 * width))
            for n in range(depth)
        )
        self.norm = LayerNorm(features)
        self.classifier = Linear(features, self.classes)
        self.paper_layers = tuple(f"blocks.{n}.mlp.{part}" for n in range(depth) for part in (0, 1))

    def groups(self) -> dict[str, tuple[str, ...]]:
        """``mlp`` as the paper's authors do, ``all`` with the attention's products; the ends stay whole."""
        products = tuple(path for path in self.weighted_layers() if path.startswith("blocks."))
        return {"paper": self.paper_layers, "mlp": self.paper_layers, "all": products}

    def enter(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).mT
        tokens: Tensor = torch.cat([self.token().expand(len(x), -1, -1), patches], 1) + self.positions()
        return tokens

    def block(self, number: int, x: Tensor) -> Tensor:
        tokens: Tensor = self.blocks[number](x)
        return tokens

    def pooled(self, x: Tensor) -> Tensor:
        return x[:, 0]

    def classify(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.norm(self.pooled(x)))
        return logits

    def modules_of(self, number: int) -> tuple[str, ...]:
        return (f"blocks.{number}",)

    def exit(self, number: int) -> nn.Module:
        return nn.Sequential(LayerNorm(self.features), Linear(self.features, self.classes))


class DeiTTiny(Model):
    """DeiT-tiny on 4×4 patches: 12 layers, 3 heads, 192 features; from scratch, or from ImageNet weights in a file."""

    patch: PositiveInt = 4
    width: PositiveInt = Field(192, description="features of the stream; a multiple of the heads")
    heads: PositiveInt = 3
    depth: PositiveInt = 12
    weights: Path | None = Field(None, description="a file of DeiT weights (.pth) to start from; none: from scratch")
    usual: ClassVar[Signature] = Signature((3, 32, 32), 10)

    def build(self, data: Signature) -> VisionTransformer:
        if self.width % self.heads:
            raise BadInput(f"model.width: {self.width} can't be split over {self.heads} heads; a multiple would do.")
        require_images(data, self.patch, divisor=self.patch)
        return VisionTransformer(data, self.patch, self.width, self.heads, self.depth)

    @property
    def start(self) -> str:
        return "scratch" if self.weights is None else str(self.weights)

    def content(self) -> bytes:
        there = self.weights is not None and self.weights.is_file()
        return checksum(self.weights.read_bytes()).encode() if there and self.weights else b""

    def initial(self, network: Network, rng: np.random.Generator) -> State:
        fresh = network.initial(rng)
        return fresh if self.weights is None else load_weights(self.weights, fresh)


def load_weights(path: Path, fresh: State) -> State:
    """ImageNet weights in the published layout, resized to this network's patches and positions.

    The classifier is fresh where its classes differ.
    """
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise BadInput(f"model.weights: there is no file {path}.") from None
    except Exception as error:
        raise BadInput(f"model.weights: {path} can't be read as torch weights: {error}") from None
    saved = saved.get("model", saved) if isinstance(saved, dict) else {}
    state = {}
    for name, tensor in fresh.items():
        theirs = _published_name(name)
        if theirs not in saved:
            raise BadInput(f"model.weights: {path} has no '{theirs}'; a DeiT checkpoint of this depth would.")
        if not isinstance(saved[theirs], Tensor):
            raise BadInput(f"model.weights: '{theirs}' in {path} is not a tensor.")
        value = saved[theirs].float()
        if name == "patches.weight":
            value = F.interpolate(value, size=tensor.shape[2:], mode="bicubic", antialias=True)
        elif name in ("token.weight", "positions.weight"):
            value = value[0].T
            if name == "positions.weight":
                if math.isqrt(value.shape[1] - 1) ** 2 != value.shape[1] - 1:
                    raise BadInput(
                        f"model.weights: '{theirs}' in {path} is for {value.shape[1]} tokens, not one and a square "
                        "of patches; a checkpoint without distillation token would do."
                    )
                value = _resize_positions(value, tensor.shape[1])
        if name.startswith("classifier.") and value.shape != tensor.shape:
            value = tensor
        if value.shape != tensor.shape:
            have, need = tuple(value.shape), tuple(tensor.shape)
            raise BadInput(f"model.weights: '{theirs}' in {path} has shape {have}, this network needs {need}.")
        state[name] = value.contiguous()
    return state


_PUBLISHED = {
    "patches.": "patch_embed.proj.",
    "token.weight": "cls_token",
    "positions.weight": "pos_embed",
    "classifier.": "head.",
    ".attention.out.": ".attn.proj.",
    ".attention.": ".attn.",
    ".mlp.0.": ".mlp.fc1.",
    ".mlp.1.": ".mlp.fc2.",
}


def _published_name(name: str) -> str:
    for ours, theirs in _PUBLISHED.items():
        name = name.replace(ours, theirs)
    return name


def _resize_positions(positions: Tensor, count: int) -> Tensor:
    """(features, 1 + grid²) to another grid; the class token's stays."""
    token, grid = positions[:, :1], positions[:, 1:]
    old, new = math.isqrt(grid.shape[1]), math.isqrt(count - 1)
    square = grid.reshape(1, -1, old, old)
    resized = F.interpolate(square, size=(new, new), mode="bicubic", antialias=True)
    return torch.cat([token, resized.flatten(2)[0]], 1)
