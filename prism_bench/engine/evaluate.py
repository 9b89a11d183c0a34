"""Accuracy of a server model on the test set."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from prism_bench.core.algorithm import ServerModel
from prism_bench.core.network import Moments, evaluating, fitted, measuring
from prism_bench.core.seeds import stream
from prism_bench.core.threads import in_threads
from prism_bench.data.dataset import Dataset, Split
from prism_bench.engine.hardware import arithmetic, compute

FITTED_ON = 5000
"""Training samples that statistics are fitted to, at most: means over so many hardly move with more."""


class Evaluated(NamedTuple):
    """How a model did on the test set."""

    accuracy: float
    """In %."""
    loss: float
    correct: np.ndarray
    """Whether each sample was told right."""


def evaluate(
    model: ServerModel,
    data: Dataset,
    batch: int,
    workers: int = 1,
    precision: str = "float32",
    statistics: Sequence[Moments] | None = None,
) -> Evaluated:
    """Batches are of nearly equal size, and drawn: BatchNorm uses each one's statistics, and a test set in order of
    class or writer must still give batches like the whole. The draw is the same for all.

    With ``statistics``, which `fit` gives for a model of static BatchNorm, a sample's logits depend on no other.
    """
    total = len(data.test)
    order, parts = _drawn(data.test, batch)

    @torch.inference_mode()
    def of_part(part: int) -> tuple[Tensor, Tensor]:
        chosen = order[part::parts]
        labels = data.test.labels[chosen]
        with fitted(statistics) if statistics is not None else nullcontext():
            logits = _logits(model, data, data.test.inputs[chosen], precision)
        return logits.argmax(1) == labels, F.cross_entropy(logits, labels, reduction="sum")

    right, losses = zip(*in_threads(of_part, range(parts), min(parts, workers)), strict=True)
    correct = torch.zeros(total, dtype=torch.bool, device=order.device)
    for part, told in enumerate(right):
        correct[order[part::parts]] = told
    loss = torch.stack(losses).sum().item() / total
    return Evaluated(100 * int(correct.sum()) / total, loss, correct.cpu().numpy())


def fit(model: ServerModel, data: Dataset, batch: int, workers: int = 1, precision: str = "float32") -> list[Moments]:
    """The statistics of a trained model's static BatchNorms, as HeteroFL fits them: of each the mean over batches.

    Of training samples, up to `FITTED_ON` in a draw that is the same for all. Each batch is normalised by its own. In a
    federation this would be one more forward pass of the clients when training is over; no client is charged for it.
    """
    order, parts = _drawn(data.train, batch)
    enough = min(parts, -(-FITTED_ON // batch))

    @torch.inference_mode()
    def of_part(part: int) -> list[Moments]:
        met: list[Moments] = []
        with measuring(met):
            _logits(model, data, data.train.inputs[order[part::parts]], precision)
        return met

    each = in_threads(of_part, range(enough), min(enough, workers))
    layers = zip(*each, strict=True)
    return [Moments(*(torch.stack(values).mean(0) for values in zip(*layer, strict=True))) for layer in layers]


def _drawn(split: Split, batch: int) -> tuple[Tensor, int]:
    """The samples in an order that is always the same, and how many batches of nearly equal size they make."""
    total = len(split)
    order = torch.from_numpy(stream(0, "evaluation").permutation(total)).to(split.labels.device)
    return order, max(1, -(-total // batch))


def _logits(model: ServerModel, data: Dataset, inputs: Tensor, precision: str) -> Tensor:
    with evaluating(), arithmetic(precision):
        return compute(model.forward, precision)(model.state, data.prepare(inputs))
