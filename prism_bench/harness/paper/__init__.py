"""Numbers of publications, the PriSM paper's own among them, and the convention behind its cost table.

A CSV a result: columns with a dot in their name are settings that say which runs a row is about (an empty one does not
matter), the others are the paper's values, and ``source`` is where it says so. ``accuracy`` is of the model that is
deployed, ``accuracy_sizes`` the mean over the models of all capacities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import pandas as pd
from torch import nn

from prism_bench.base.errors import BadInput, nearest
from prism_bench.base.settings import flat
from prism_bench.core.network import Network, Weighted, dense_forward
from prism_bench.data.dataset import Signature

BATCH = 32
"""The paper's table is for this batch."""


@cache
def values(name: str) -> pd.DataFrame:
    """The paper's values of that name; BadInput where there are none.

    In ``modelsize`` the 37 M of memory for PriSM at 0.8 is a misprint: the paper gives it as 115% of 31.5 M, which it
    is not.
    """
    folder = resources.files(__name__)
    known = sorted(file.name.removesuffix(".csv") for file in folder.iterdir() if file.name.endswith(".csv"))
    if name not in known:
        raise BadInput(f"values: the paper has none called '{name}'. {nearest(name, known)}")
    with resources.as_file(folder / f"{name}.csv") as file:
        frame: pd.DataFrame = pd.read_csv(file)
    return frame


def beside(settings: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """The paper's values for a run with these settings, as columns ``paper_...``; empty where it has none."""
    if name is None:
        return {}
    known = dict(flat(settings))
    for row in values(name).to_dict("records"):
        given = {str(key): value for key, value in row.items() if not pd.isna(value)}
        if all(key in known and _same(known[key], value) for key, value in given.items() if "." in key):
            return {f"paper_{key}": value for key, value in given.items() if "." not in key}
    return {}


def _same(found: Any, value: Any) -> bool:
    if isinstance(found, list):
        # A mix of capacities is written as such: [0.4, 0.2].
        found = found[0] if len(found) == 1 else str(found)
    return bool(_number(found) == _number(value))


def _number(value: Any) -> Any:
    """A number that a CSV has among text is text too."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


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
