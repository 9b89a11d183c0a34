"""The PriSM paper's own numbers, and the convention behind its cost table."""

from __future__ import annotations

import math
from importlib import resources

import pandas as pd
from torch import nn

from prism_bench.algorithm import dense_forward
from prism_bench.data.dataset import Signature
from prism_bench.models.layers import Weighted
from prism_bench.models.network import Network

BATCH = 32
"""The paper's table is for this batch."""


def printed_costs() -> pd.DataFrame:
    """The table as it stands in the paper, for ResNet-18.

    Its 37 M of memory for PriSM at 0.8 is a misprint: the paper gives it as 115% of 31.5 M, which it is not.
    """
    with resources.as_file(resources.files(__name__) / "modelsize.csv") as file:
        frame: pd.DataFrame = pd.read_csv(file)
    return frame


def convention(network: Network, data: Signature, algorithm: str, keep: float) -> dict[str, float]:
    """Costs as the paper's table counts them; what follows no convention that is known is left out.

    Only the factorised layers count, with exact fractions. Its MACs are two for each product and sum, over a batch of
    32; its memory counts elements. The first factorised layer's input is not cut.
    """
    layers = _geometry(network, data)
    dense = sum(k * m * n for n, m, k, _ in layers)
    factors = dense + sum(n * n for n, _, _, _ in layers)
    features = sum(n * area for n, _, _, area in layers)
    macs = 0.0
    if algorithm == "fedavg":
        macs = sum(area * n * m * k for n, m, k, area in layers)
        return {"params_M": dense / 1e6, "macs_G": 2 * BATCH * macs / 1e9, "mem_M": 2 * features * BATCH / 1e6}
    if algorithm == "orthdrop":
        return {"params_M": keep * factors / 1e6}
    if algorithm == "prism":
        for number, (n, m, k, area) in enumerate(layers):
            inputs = m if number == 0 else keep * m
            macs += area * (keep * n * inputs * k + keep**2 * n * n)
        return {
            "params_M": keep**2 * factors / 1e6,
            "macs_G": 2 * BATCH * macs / 1e9,
            "mem_M": 3 * keep * features * BATCH / 1e6,
        }
    return {}


def _geometry(network: Network, data: Signature) -> list[tuple[int, int, int, int]]:
    """Of each layer that the paper factorises: outputs, inputs, entries of the kernel, positions of the output."""
    found = []

    def note(layer: nn.Module, _: object, output: object) -> None:
        assert isinstance(layer, Weighted)
        area = math.prod(output.shape[2:])  # type: ignore[attr-defined]
        found.append((layer.outputs.size, layer.inputs.size, math.prod(layer.kernel), area))

    hooks = [network.get_submodule(path).register_forward_hook(note) for path in network.paper_layers]
    dense_forward(network, dict(network.named_parameters()), data.example(1))
    for hook in hooks:
        hook.remove()
    return found
