"""Which kernels clients hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from prism_bench.analysis.report.plots import by_layer, probed
from prism_bench.analysis.view import Picture, Rows, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from prism_bench.engine.federation import Federation
    from prism_bench.engine.round import Round


def record(federation: Federation, opened: Round) -> Rows:
    """Record of each rank axis: how many of the round's clients held each kernel."""
    # Imported here: pictures and tables of what was recorded are made without torch.
    import torch

    rows = []
    for axis in federation.algorithm.layout.of_kind("rank"):
        held = torch.zeros(axis.size, dtype=torch.int64)
        for task in opened.tasks:
            held[task.selection[axis.name].cpu() if axis.name in task.selection else slice(None)] += 1
        rows.append(
            {"layer": axis.name.removesuffix(".rank"), "kernel": list(range(axis.size)), "clients": held.tolist()}
        )
    return rows


def draw(probe: pd.DataFrame) -> Figure:
    """Draw how many clients hold each principal kernel in a round, in the mean: large singular values first."""
    probe = probed(probe, "sampling")
    probe = probe.assign(kernels=probe.groupby(["model", "layer"], sort=False)["kernel"].transform("max") + 1)
    return by_layer(probe, "kernel", "clients", "principal kernel, by falling σ", "clients per round")


VIEW = View(
    heading="Which kernels clients hold",
    record=record,
    picture=Picture(
        name="sampling",
        draw=draw,
        caption="Clients that hold each principal kernel in a round, in the mean; kernels by falling singular value.",
        read=lambda results: results.probe("sampling"),
    ),
)
