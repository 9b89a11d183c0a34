"""The layers that networks are made of. Each takes its shapes from the tensors it is called with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from prism_bench.core.axes import Axis, Dim, Dims, State
from prism_bench.core.network import Layer, Moments, Noisy, Statistical, Weighted


class Conv2d(Weighted):
    """Convolution; padding keeps the size at stride 1, unless it cuts the image into patches (stride = kernel)."""

    def __init__(self, inputs: Axis, outputs: Axis, kernel: int, stride: int = 1, bias: bool = False) -> None:
        super().__init__(Dim(inputs), Dim(outputs), (kernel, kernel), bias)
        self.stride = stride
        self.padding = 0 if stride == kernel else kernel // 2

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.conv2d(x, weight, bias, stride=self.stride, padding=self.padding)

    def mix(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.conv2d(x, weight[:, :, None, None], bias)


class Linear(Weighted):
    """Linear map of the last dimension; a side may be an axis laid out more than once (gates, heads, positions)."""

    def __init__(self, inputs: Axis | Dim, outputs: Axis | Dim, bias: bool = True) -> None:
        super().__init__(_dim(inputs), _dim(outputs), (), bias)

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, weight, bias)

    mix = product


def _dim(side: Axis | Dim) -> Dim:
    return side if isinstance(side, Dim) else Dim(side)


class Norm(Layer):
    """A normalisation with a scale and a shift per feature."""

    weight: Tensor
    bias: Tensor

    def __init__(self, features: Axis) -> None:
        super().__init__()
        self.features = Dim(features)
        self.declare(weight=(features.size,), bias=(features.size,))

    def dims(self) -> dict[str, Dims]:
        return {"weight": (self.features,), "bias": (self.features,)}

    def initial(self, rng: np.random.Generator) -> State:
        size = self.features.size
        return {"weight": torch.ones(size), "bias": torch.zeros(size)}


class BatchNorm2d(Norm, Statistical):
    """BatchNorm without running statistics: the batch's own, in training and in evaluation.

    Once it is static, evaluation takes statistics that were fitted to training samples after the training.
    """

    def measure(self, x: Tensor) -> Moments:
        variance, mean = torch.var_mean(x, (0, 2, 3), correction=min(1, x.numel() // x.shape[1] - 1))
        return Moments(mean, variance)

    def forward(self, x: Tensor) -> Tensor:
        known = self.statistics(x)
        if known is not None:
            return F.batch_norm(x, known.mean, known.variance, self.weight, self.bias, training=False)
        if x.numel() == x.shape[1]:
            # One value per channel is its own mean: only the shift is left.
            return (x - x) * self.weight[:, None, None] + self.bias[:, None, None]
        if FewChannels.suit(x):
            normalised: Tensor = FewChannels.apply(x, self.weight, self.bias)
            return normalised
        return F.batch_norm(x, None, None, self.weight, self.bias, training=True)


class FewChannels(torch.autograd.Function):
    """BatchNorm of large maps whose few channels lie side by side, as torch's would be, in half the time.

    Torch's takes one pixel after another, and its few channels leave most of a vector register empty. Here the map is
    a matrix with several pixels in a row.
    """

    REGISTER = 16
    EPSILON = 1e-5

    @staticmethod
    def suit(x: Tensor) -> bool:
        """Worth the overhead of more operations; not within `vmap` or `torch.compile`, which have ways of their own."""
        if torch.compiler.is_compiling() or torch._C._functorch.is_batchedtensor(x):
            return False
        pixels = x.numel() // x.shape[1]
        return 1 < x.shape[1] < FewChannels.REGISTER and x.stride(1) == 1 and pixels >= 2**14 and pixels % 8 == 0

    @staticmethod
    def rows(x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).reshape(-1, 8 * x.shape[1])

    @staticmethod
    def map(rows: Tensor, like: Tensor) -> Tensor:
        samples, channels, height, width = like.shape
        return rows.view(samples, height, width, channels).permute(0, 3, 1, 2)

    @staticmethod
    def mean(rows: Tensor) -> Tensor:
        """Of each channel."""
        return rows.mean(0).view(8, -1).mean(0)

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows = FewChannels.rows(x)
        mean = FewChannels.mean(rows)
        centred = rows - mean.repeat(8)
        inverse = (FewChannels.mean(centred.square()) + FewChannels.EPSILON).rsqrt()
        ctx.save_for_backward(x, weight, mean, inverse)
        return FewChannels.map(centred.mul_((inverse * weight).repeat(8)).add_(bias.repeat(8)), x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, mean, inverse = ctx.saved_tensors
        arriving, centred = FewChannels.rows(gradient), FewChannels.rows(x) - mean.repeat(8)
        of_bias, of_weight = FewChannels.mean(arriving), FewChannels.mean(arriving * centred) * inverse
        # Of x: what arrives, less its mean and less its part along the normalised values, times the layer's scale.
        scale = inverse * weight
        centred.mul_((-scale * inverse * of_weight).repeat(8))
        centred.addcmul_(arriving, scale.repeat(8)).sub_((scale * of_bias).repeat(8))
        pixels = x.numel() // x.shape[1]
        return FewChannels.map(centred, x), pixels * of_weight, pixels * of_bias


class GroupNorm(Norm):
    """GroupNorm in groups of 16 neighbouring channels of those that are there, so that they follow a sub-model's width.

    What is left over goes to the last group; fewer channels are one group. A sub-model of the first channels thus has
    the full model's groups, but for the last. Wu and He, "Group Normalization", ECCV 2018, found 16 best.
    """

    CHANNELS = 16

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[1]
        rest = self.CHANNELS * max(0, count // self.CHANNELS - 1)
        if count % self.CHANNELS == 0 or not rest:
            return F.group_norm(x, max(1, count // self.CHANNELS), self.weight, self.bias)
        parts = (slice(0, rest), rest // self.CHANNELS), (slice(rest, count), 1)
        each = [F.group_norm(x[:, part], groups, self.weight[part], self.bias[part]) for part, groups in parts]
        return torch.cat(each, 1)


NormName = Literal["batch", "static", "group", "none"]
"""How a convolutional network normalises; ``NORMS`` says what each is."""

NORMS = (
    "batch: by the batch's statistics, in evaluation too; static: these in training, in evaluation statistics that are "
    "fitted to training samples; group: by groups of 16 channels; none: not at all"
)


def normalisation(name: NormName, features: Axis) -> nn.Module:
    """A layer that normalises feature maps as the setting says."""
    if name == "none":
        return nn.Identity()
    if name == "group":
        return GroupNorm(features)
    norm = BatchNorm2d(features)
    norm.static = name == "static"
    return norm


def recomputed(module: nn.Module, x: Tensor) -> Tensor:
    """A module's output, keeping only its input for the backward pass, which computes the module once more.

    Stacked clients (`vmap`) and compiled code keep everything, as without it.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or torch._C._functorch.is_batchedtensor(x):
        outputs: Tensor = module(x)
    else:
        params = dict(module.named_parameters())
        outputs = Recomputed.apply(module, tuple(params), x, *params.values())
    return outputs


class Recomputed(torch.autograd.Function):
    """Calls the module in the backward pass with the tensors of the forward pass: by then the module holds others."""

    @staticmethod
    def forward(ctx: Any, module: nn.Module, names: tuple[str, ...], *tensors: Tensor) -> Tensor:
        ctx.module, ctx.names = module, names
        ctx.save_for_backward(*tensors)
        return Recomputed.call(ctx, tensors)

    @staticmethod
    def call(ctx: Any, tensors: Sequence[Tensor]) -> Tensor:
        outputs: Tensor = functional_call(ctx.module, dict(zip(ctx.names, tensors[1:], strict=True)), (tensors[0],))
        return outputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        with torch.enable_grad():
            outputs = Recomputed.call(ctx, tensors)
        return None, None, *torch.autograd.grad(outputs, tensors, gradient)


class Dropout(Noisy):
    """Dropout in training, nothing in evaluation. Unlike torch's, it draws from the run's own seed."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.share:
            return x
        return x * (self.noise(x) >= self.share) / (1 - self.share)


class LayerNorm(Norm):
    """LayerNorm over the features that are there."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, eps=1e-6)


class Embedding(Layer):
    """One vector of features for each of ``rows`` things: words of a vocabulary, positions in an image."""

    weight: Tensor

    def __init__(self, rows: int, features: Axis, std: float) -> None:
        super().__init__()
        self.features, self.std = Dim(features), std
        # Features first: what is cut comes before what is not.
        self.declare(weight=(features.size, rows))

    def dims(self) -> dict[str, Dims]:
        return {"weight": (self.features, None)}

    def initial(self, rng: np.random.Generator) -> State:
        values = rng.normal(0, self.std, tuple(self.weight.shape)).astype(np.float32)
        return {"weight": torch.from_numpy(values)}

    def forward(self, rows: Tensor | None = None) -> Tensor:
        """The vectors of the given rows, or of all."""
        return self.weight.T if rows is None else F.embedding(rows, self.weight.T)
