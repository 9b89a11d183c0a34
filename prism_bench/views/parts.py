"""The sub-models that clients are sent, beside the full model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prism_bench.analysis.view import Rows, View

if TYPE_CHECKING:
    from prism_bench.engine.federation import Federation
    from prism_bench.engine.round import Round


PARTS = 3


def record(federation: Federation, opened: Round) -> Rows:
    """How good the sub-models are that the first clients of the next round would be sent, before they train them.

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


VIEW = View(heading="The full model and its sub-models", record=record)
