"""How many principal kernels each layer requires, over the rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from prism_bench.analysis.view import Rows, View
from prism_bench.core.orthogonal import svd

if TYPE_CHECKING:
    from prism_bench.engine.federation import Federation
    from prism_bench.engine.round import Round


def record(federation: Federation, opened: Round) -> Rows:
    """Of each layer that the paper factorises: how many principal kernels it takes to approximate it."""
    dense = federation.dense_weights()
    if dense is None:
        return []
    rows = []
    for path in federation.algorithm.network.paper_layers:
        sigma = svd(dense[f"{path}.weight"].flatten(1))[1].double()
        rows.append({"layer": path, "kernels": len(sigma), "value": required_kernels(sigma)})
    return rows


def required_kernels(sigma: Tensor) -> float:
    """The effective rank: 2 to the entropy of p = σ/Σσ.

    The paper's formula is malformed; this is the one that its source has, and equals n for n equal values.

    >>> round(required_kernels(torch.ones(4)), 6), round(required_kernels(torch.tensor([1.0, 0.0])), 6)
    (4.0, 1.0)
    """
    p = sigma / sigma.sum()
    return float(2 ** -(torch.special.xlogy(p, p).sum() / torch.log(torch.tensor(2.0, dtype=p.dtype))).item())


VIEW = View(heading="Required kernels over the rounds", record=record)
