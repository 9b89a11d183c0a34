"""Accuracy of a server model on the test set."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from prism_bench.core.algorithm import ServerModel
from prism_bench.core.network import evaluating
from prism_bench.core.seeds import stream
from prism_bench.core.threads import in_threads
from prism_bench.data.dataset import Dataset
from prism_bench.engine.hardware import arithmetic, compute


class Evaluated(NamedTuple):
    """How a model did on the test set."""

    accuracy: float
    """In %."""
    loss: float
    correct: np.ndarray
    """Whether each sample was told right."""


def evaluate(model: ServerModel, data: Dataset, batch: int, workers: int = 1, precision: str = "float32") -> Evaluated:
    """Batches are of nearly equal size, and drawn: BatchNorm uses each one's statistics, and a test set in order of
    class or writer must still give batches like the whole. The draw is the same for all."""
    total = len(data.test)
    parts = max(1, -(-total // batch))
    order = torch.from_numpy(stream(0, "evaluation").permutation(total)).to(data.test.labels.device)

    @torch.inference_mode()
    def of_part(part: int) -> tuple[Tensor, Tensor]:
        chosen = order[part::parts]
        inputs, labels = data.test.inputs[chosen], data.test.labels[chosen]
        with evaluating(), arithmetic(precision):
            logits = compute(model.forward, precision)(model.state, data.prepare(inputs))
        return logits.argmax(1) == labels, F.cross_entropy(logits, labels, reduction="sum")

    right, losses = zip(*in_threads(of_part, range(parts), min(parts, workers)), strict=True)
    correct = torch.zeros(total, dtype=torch.bool, device=order.device)
    for part, told in enumerate(right):
        correct[order[part::parts]] = told
    loss = torch.stack(losses).sum().item() / total
    return Evaluated(100 * int(correct.sum()) / total, loss, correct.cpu().numpy())
