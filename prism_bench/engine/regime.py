"""Regime: the numbers that decide whether training by sampled sub-models can work, from settings and layout alone.

They are local steps in a round, clients that hold a kernel, kernels that a layer keeps, the decay that makes the
spectrum fall, and passes over the data. Nothing is trained for them, and no number of a run follows from them: the
engine itself never imports this file, so it is no part of a run's identity.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from prism_bench.base.errors import BadInput
from prism_bench.core.algorithm import Algorithm
from prism_bench.core.axes import Layout
from prism_bench.core.capacity import kept
from prism_bench.data.dataset import Dataset, Signature
from prism_bench.data.sources import StoredSource
from prism_bench.engine.federation import split
from prism_bench.engine.sections import Training
from prism_bench.engine.spec import Run

Spread = tuple[float, float, float]
"""Least, median and largest over the layers."""

Samples = int | np.ndarray
"""How many training samples each client has: one number for all, or one per client."""

TRAINING: Mapping[str, int] = {"cifar10": 50_000, "cifar100": 50_000, "imdb": 37_500}
"""Training samples of data sets that are whole wherever they are: known where the data is not at hand."""


@dataclass(frozen=True)
class Regime:
    """What decides whether sub-models can be sampled; None where it is not known, or there is no such thing."""

    steps: float | None
    """Local steps of a client in a round, of the median client."""
    holders: float | None
    """Clients that hold a kernel in a round: active clients times the keep ratio, over the shares of a mix."""
    kernels: Spread | None
    """Kernels that a layer keeps at the smallest capacity."""
    channels: Spread | None
    """The same of channels, by axis of features."""
    decay: float | None
    """Σ lr·λ/(1-momentum) over the local steps of all rounds."""
    passes: float | None
    """How often all rounds together go through the data."""


@dataclass(frozen=True)
class Known:
    """What is known of a run's data."""

    samples: Samples | None
    signature: Signature | None


def of_run(run: Run, samples: Samples | None, signature: Signature | None) -> Regime:
    """A run's regime, as far as it follows from what is known of the data.

    Where a budget limits clients, the keep ratio is found when the run starts, and what follows from it is not known.
    """
    training, capacity = run.training, run.capacity
    batches = None if samples is None else -(-np.atleast_1d(samples) // training.batch)
    steps = None if batches is None else float(np.median(_steps(batches, training)))
    holders, kernels, channels = None, None, None
    if not capacity.budget:
        shared = zip(capacity.keep, capacity.share, strict=True)
        holders = round(training.active * sum(keep * share for keep, share in shared), 9)
        layout = layout_of(run, signature) if run.algorithm.kind.cuts and signature is not None else None
        if layout is not None:
            kernels, channels = (_spread(layout, kind, min(capacity.keep)) for kind in ("rank", "feature"))
    return Regime(
        steps=steps,
        holders=holders,
        kernels=kernels,
        channels=channels,
        decay=None if steps is None else total_decay(training, steps),
        passes=_passes(training, run.partition.settings.clients, batches),
    )


def layout_of(run: Run, signature: Signature) -> Layout | None:
    """The axes of the tensors that a run's method works with; None where it can't be built."""
    try:
        algorithm: Algorithm = run.algorithm.kind(run.algorithm.settings)
        algorithm.build(run.model.settings.build(signature), run.seed)
    except Exception:
        return None  # whatever a method does wrong is its run's failure, and not that of what is said about it
    return algorithm.layout


def total_decay(training: Training, steps: float) -> float:
    """How far decay alone would shrink a weight, as an exponent: Σ lr·λ/(1-momentum) over so many steps in each round.

    >>> total_decay(Training(rounds=1000, lr=0.1, momentum=0.9, decay=2e-4), steps=32)
    3.2032
    """
    # The cosine's mean over the rounds is a half, and its first round is whole.
    full_rounds = {"constant": training.rounds, "cosine": (training.rounds + 1) / 2}[training.schedule]
    return float(f"{full_rounds * steps * training.lr * training.decay / (1 - training.momentum):.6g}")


def _steps(batches: np.ndarray, training: Training) -> np.ndarray:
    """Each client's local steps in a round."""
    whole: np.ndarray = training.epochs * batches
    return whole if training.steps is None else np.minimum(whole, training.steps)


def _passes(training: Training, clients: int, batches: np.ndarray | None) -> float | None:
    epochs: float = training.epochs
    if training.steps is not None:
        if batches is None:
            return None
        epochs = float(np.median(_steps(batches, training) / np.maximum(batches, 1)))
    return round(training.rounds * training.active * epochs / clients, 6)


def _spread(layout: Layout, kind: str, keep: float) -> Spread | None:
    """What axes of one kind keep; None where there is none."""
    sizes = [kept(keep, axis.size) for axis in layout.of_kind(kind)]
    return (min(sizes), float(statistics.median(sizes)), max(sizes)) if sizes else None


# Of an experiment -------------------------------------------------------------------------------------------------


def of_runs(runs: Sequence[Run], known: Callable[[Run], Known]) -> list[dict[str, Any]]:
    """The regimes of an experiment, each once with its keep ratio, in plain values.

    Of the runs that cut, if any do. Methods under equal settings are in one regime: kernels are those of the first
    method that has some, and so are channels.
    """
    cutting = [run for run in runs if run.algorithm.kind.cuts] or runs
    found: dict[str, tuple[str, Regime]] = {}
    told: dict[str, Known] = {}
    for run in _methods(cutting):
        data, settings = _text(run, "data", "partition", "model"), _text(run, "capacity", "training")
        if data not in told:
            told[data] = known(run)  # once: it may have to read the data
        own = of_run(run, told[data].samples, told[data].signature)
        _, first = found.setdefault(data + settings, (run.capacity.label, own))
        both = replace(first, kernels=first.kernels or own.kernels, channels=first.channels or own.channels)
        found[data + settings] = run.capacity.label, both
    entries = [{"keep": label} | asdict(regime) for label, regime in found.values()]
    return [entry for number, entry in enumerate(entries) if entry not in entries[:number]]


def _methods(runs: Iterable[Run]) -> Iterable[Run]:
    """The first run of each method under each settings: seeds differ in no number here."""
    first: dict[tuple[str, str], Run] = {}
    for run in runs:
        settings = _text(run, "data", "partition", "model", "capacity", "training")
        first.setdefault((settings, run.algorithm.label), run)
    return first.values()


def _text(run: Run, *sections: str) -> str:
    tree = run.as_dict()
    return json.dumps([tree[section] for section in sections], default=str)


def known_of(run: Run) -> Known:
    """What is known of a run's data without preparing any: from the settings, from the data set, or from what lies
    prepared."""
    usual = getattr(run.model.settings, "usual", None)
    samples = _each(run)
    if samples is not None:
        return Known(samples, usual)
    try:
        data = _prepared(run)
        return Known(None, usual) if data is None else Known(split(run, data).sizes, data.signature)
    except BadInput:
        return Known(None, usual)  # fewer writers than the partition needs, for one


def _each(run: Run) -> int | None:
    """Samples of every client, where the partition deals them out evenly and the settings say how many there are."""
    partition, source = run.partition.settings, run.data.settings
    if "samples" not in type(partition).model_fields:
        return None
    if partition.samples is not None:
        return int(partition.samples)
    total = getattr(source, "train", None) or TRAINING.get(run.data.name)
    if total is None or getattr(source, "split", "paper") != "paper":
        return None
    return int(total * (1 - source.validation) + 0.5) // int(partition.clients)


def _prepared(run: Run) -> Dataset | None:
    """The run's data, where nothing has to be fetched or prepared for it."""
    source = run.data.settings
    if isinstance(source, StoredSource) and not source.prepared(source.find()):
        return None
    data: Dataset = source.read(run.evaluation.on)
    return data
