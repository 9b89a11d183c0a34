"""Which kernels clients hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from prism_bench.analysis.view import Rows, View

if TYPE_CHECKING:
    from prism_bench.engine.federation import Federation
    from prism_bench.engine.round import Round


def record(federation: Federation, opened: Round) -> Rows:
    """Of each rank axis: how many of the round's clients held each kernel."""
    rows = []
    for axis in federation.algorithm.layout.of_kind("rank"):
        held = torch.zeros(axis.size, dtype=torch.int64)
        for task in opened.tasks:
            held[task.selection[axis.name].cpu() if axis.name in task.selection else slice(None)] += 1
        rows.append(
            {"layer": axis.name.removesuffix(".rank"), "kernel": list(range(axis.size)), "clients": held.tolist()}
        )
    return rows


VIEW = View(heading="Which kernels clients hold", record=record)
