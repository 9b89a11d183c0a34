"""The sub-models that clients are sent, beside the full model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from prism_bench.analysis.report.plots import (
    add_legend,
    contexts_of,
    entitle,
    grid,
    keeps_of,
    key,
    looks_of,
    probed,
    within,
)
from prism_bench.analysis.view import Picture, Rows, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from prism_bench.engine.federation import Federation
    from prism_bench.engine.round import Round
    from prism_bench.harness.results import Results


PARTS = 3


def record(federation: Federation, opened: Round) -> Rows:
    """Record how good the sub-models are that the next round's first clients would be sent, before they train them.

    Where they are no better than the full model, it is training that is slow; where they are much better, the full
    model has parts that disturb it.
    """
    algorithm = federation.algorithm
    cohort = federation.cohort(opened.number + 1)[:PARTS]
    return [
        {"client": client.number, "accuracy": federation.evaluate(algorithm.part(selection))[0]}
        for client, selections in zip(cohort, algorithm.select(opened.number + 1, cohort), strict=True)
        for selection in selections
    ]


def draw(probe: pd.DataFrame) -> Figure:
    """Draw accuracy by round of the full model (line) and of sub-models as clients are sent them (dashed)."""
    probe = probed(probe, "parts")
    places = [(context, keep) for context in contexts_of(probe) for keep in keeps_of(probe)]
    contexts, looks = contexts_of(probe), looks_of(probe)
    figure, axes = grid(len(places), min(len(places), 2), sharey=True)
    for (context, keep), panel in zip(places, axes, strict=True):
        here = within(probe, contexts[context])
        for method, group in here[here["keep"] == keep].groupby("method", sort=False):
            colour, _ = looks[str(method)]
            for column, line in (("accuracy_full", "-"), ("accuracy", "--")):
                mean = group.groupby("round")[column].mean()
                label = method if line == "-" else None
                panel.plot(mean.index, mean, linestyle=line, color=colour, label=label, linewidth=1.6)
        entitle(panel, context, f"keep ratio {keep}")
        panel.set(xlabel="round", ylabel="test accuracy, %")
    keys = [key(name, color=looks[name][0], linestyle="-") for name in dict.fromkeys(probe["method"])]
    keys += [
        key("full model", color="#777777", linestyle="-"),
        key("its sub-models", color="#777777", linestyle="--"),
    ]
    add_legend(figure, axes, keys)
    return figure


def read(results: Results) -> pd.DataFrame:
    """Read what was recorded of those that cut, with the full model's accuracy beside it."""
    probe = results.probe("parts")
    if probe.empty:
        return probe
    return probe[probe["cuts"].astype(bool)].merge(
        results.rounds()[["run", "round", "accuracy_full"]], on=["run", "round"]
    )


VIEW = View(
    heading="The full model and its sub-models",
    record=record,
    picture=Picture(
        name="parts",
        draw=draw,
        caption="Accuracy of the full model (line) and of the sub-models that clients are sent (dashed) by round.",
        read=read,
    ),
)
