"""FLANC: models of every size, composed of one shared basis.

Mei, Guo, Zhou, Patel, "Resource-Adaptive Federated Learning with All-In-One Neural Composition", NeurIPS 2022.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from prism_bench.plugin import (
    Algorithm,
    Axis,
    BadInput,
    Client,
    Dims,
    Layout,
    Network,
    Selection,
    ServerModel,
    Settings,
    State,
    Step,
    along,
    chosen_layers,
    dense_forward,
    gather,
    kept,
    prefix,
    without,
)

Share = Annotated[float, Field(gt=0, le=1)]


class FLANC(Algorithm):
    """Thin networks of several widths, each weight mixed by its width's coefficients from a basis that all share.

    A client trains the widest of at most ⌈ρN⌉ filters, and the server deploys the widest that is trained. The basis is
    held orthogonal.

    The basis has pieces of filters, each over some of the input channels. Coefficients, and all that is not composed
    (biases, norms, what ``factorise`` leaves whole), are one set per size: the mean over the clients of that size.
    """

    class Params(Settings):
        sizes: tuple[Share, ...] = Field((0.2, 0.4, 0.6, 0.8, 1.0), description="widths of the models")
        factorise: str | tuple[str, ...] = Field("paper", description="'paper', 'all', or patterns of layer names")
        channels: Share = Field(0.25, description="share of a layer's inputs that a piece of its basis spans")
        basis: Share = Field(0.25, description="pieces of a layer's basis, as a share of its outputs")
        orthogonality: NonNegativeFloat = Field(0.01, description="λ of λ‖BBᵀ - I‖²")

    smaller_in = ("width",)
    deploys = "trained"
    params: Params

    @classmethod
    def check(cls, params: Params, network: Network, keeps: Sequence[float]) -> None:
        chosen_layers(network, params.factorise)
        if not params.sizes or min(keeps) < min(params.sizes) - 1e-9:
            raise BadInput(f"algorithm.sizes: needs one of at most {min(keeps):g}, the keep ratio of some clients.")

    def build(self, network: Network, seed: int) -> None:
        super().build(network, seed)
        plain, self.sizes = network.layout(), sorted(set(self.params.sizes))
        full = {name: tensor.shape for name, tensor in network.named_parameters()}
        self.shapes = {path: full[f"{path}.weight"] for path in chosen_layers(network, self.params.factorise)}
        self.inputs: dict[str, dict[str, int]] = {}
        dims: dict[str, Dims] = {f"{path}.basis": (None,) * len(shape) for path, shape in self.shapes.items()}
        parts: dict[str, Axis] = {}
        for number, size in enumerate(self.sizes):
            own, cut = f"size{number}", {axis.name: kept(size, axis.size) for axis in plain.of_kind("feature")}
            weights = {path: plain.shape(f"{path}.weight", shape, cut) for path, shape in self.shapes.items()}
            self.inputs[own] = {path: shape[1] for path, shape in weights.items()}
            for name in full:
                composed = name.removesuffix(".weight") in self.shapes and name.endswith(".weight")
                dims[f"{own}.{name}"] = (None,) * (3 if composed else len(full[name]))
                parts[f"{own}.{name}"] = Axis(own, 1, "part")
        self.layout = Layout(dims, parts)

    def start(self, dense: State) -> None:
        """Each size starts as near as its basis comes to the first features of the shared initial model."""
        self.state, whole = {}, self.network.layout()
        for path in self.shapes:
            pieces = self._pieces(path, dense[f"{path}.weight"])
            basis = torch.linalg.svd(pieces.flatten(0, 1).flatten(1), full_matrices=False).Vh
            self.state[f"{path}.basis"] = basis[: kept(self.params.basis, len(pieces))].view(-1, *pieces.shape[2:])
        for own, size in zip(self.inputs, self.sizes, strict=True):
            part = gather(dense, whole, along(whole.of_kind("feature"), size, prefix, self.device))
            for path in self.shapes:
                weight, basis = f"{path}.weight", self.state[f"{path}.basis"]
                part[weight] = self._pieces(path, part[weight]).flatten(2) @ basis.flatten(1).T
            self.state |= {f"{own}.{name}": tensor for name, tensor in part.items()}

    def _pieces(self, path: str, weight: Tensor) -> Tensor:
        """(out, in, ...) as (out, groups, channels, ...), with zeros where the last group is not full."""
        span = kept(self.params.channels, self.shapes[path][1])
        missing = weight.new_zeros(len(weight), -weight.shape[1] % span, *weight.shape[2:])
        return torch.cat([weight, missing], 1).view(len(weight), -1, span, *weight.shape[2:])

    def forward(self, params: State, x: Tensor) -> Tensor:
        """The network of the size whose tensors are there, each weight mixed from its basis."""
        own = next(name for name in params if name.startswith("size")).partition(".")[0]
        dense = {name.removeprefix(f"{own}."): tensor for name, tensor in params.items() if name.startswith(f"{own}.")}
        for path, inputs in self.inputs[own].items():
            basis, mixed = params[f"{path}.basis"], dense[f"{path}.weight"]
            pieces = (mixed @ basis.flatten(1)).view(*mixed.shape[:2], *basis.shape[1:])
            dense[f"{path}.weight"] = pieces.flatten(1, 2)[:, :inputs]
        return dense_forward(self.network, dense, x)

    def loss(self, step: Step) -> Tensor:
        loss = F.cross_entropy(step.logits, step.labels)
        for path in self.shapes:
            flat = step.params[f"{path}.basis"].flatten(1)
            apart = flat @ flat.mT - torch.eye(len(flat), dtype=flat.dtype, device=flat.device)
            loss = loss + self.params.orthogonality * apart.square().sum()
        return loss

    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        return [[self.only(client.keep)] for client in cohort]

    def only(self, keep: float) -> Selection:
        """The largest size within a keep ratio, without the others."""
        return without((own for own in self.inputs if own != f"size{self._number(keep)}"), self.device)

    def _number(self, keep: float) -> int:
        return bisect.bisect_right(self.sizes, keep + 1e-9) - 1

    def ratios(self) -> list[float]:
        return self.sizes

    def features(self) -> float:
        return self.sizes[self._number(max(self.keeps))]

    def full_model(self) -> ServerModel:
        return self.part(self.only(1.0))

    def trained_part(self) -> ServerModel | None:
        return self.part(self.only(max(self.keeps))) if self.features() < self.sizes[-1] else None
