"""How many principal kernels each layer requires, over the rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from prism_bench.analysis.report.plots import by_layer, probed
from prism_bench.analysis.view import Picture, Rows, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from prism_bench.engine.federation import Federation
    from prism_bench.engine.round import Round


def record(federation: Federation, opened: Round) -> Rows:
    """Record of each layer that the paper factorises: how many principal kernels it takes to approximate it."""
    # Imported here: pictures and tables of what was recorded are made without torch.
    from prism_bench.core.orthogonal import svd

    dense = federation.dense_weights()
    if dense is None:
        return []
    rows = []
    for path in federation.algorithm.network.paper_layers:
        sigma = svd(dense[f"{path}.weight"].flatten(1))[1].double()
        rows.append({"layer": path, "kernels": len(sigma), "value": required_kernels(sigma)})
    return rows


def required_kernels(sigma: Tensor) -> float:
    """Compute the effective rank: 2 to the entropy of p = σ/Σσ.

    The paper's formula is malformed; this is the one that its source has, and equals n for n equal values.

    >>> import torch
    >>> round(required_kernels(torch.ones(4)), 6), round(required_kernels(torch.tensor([1.0, 0.0])), 6)
    (4.0, 1.0)
    """
    import torch  # here, for the same reason

    p = sigma / sigma.sum()
    return float(2 ** -(torch.special.xlogy(p, p).sum() / torch.log(torch.tensor(2.0, dtype=p.dtype))).item())


def draw(probe: pd.DataFrame) -> Figure:
    """Draw how many principal kernels are required (the effective rank) by round, layers of one size together."""
    return by_layer(probed(probe, "rank"), "round", "value", "round", "required kernels")


VIEW = View(
    heading="Required kernels over the rounds",
    record=record,
    picture=Picture(
        name="rank",
        draw=draw,
        caption="Principal kernels that are required to approximate each layer (effective rank) over the rounds.",
        read=lambda results: results.probe("rank"),
    ),
)
