"""Accuracy of a server model on the test set."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from prism_bench.core.algorithm import ServerModel
from prism_bench.core.network import evaluating
from prism_bench.core.threads import in_threads
from prism_bench.data.dataset import Dataset
from prism_bench.engine.hardware import arithmetic, compute


def evaluate(
    model: ServerModel, data: Dataset, batch: int, workers: int = 1, precision: str = "float32"
) -> tuple[float, float]:
    """Accuracy in % and mean loss. Batches are of nearly equal size, as BatchNorm uses each one's statistics."""
    total = len(data.test)
    parts = max(1, -(-total // batch))

    @torch.inference_mode()
    def of_part(part: int) -> tuple[Tensor, Tensor]:
        # Every so many-th sample: a test set in order of class or writer still gives batches like the whole.
        inputs, labels = data.test.inputs[part::parts], data.test.labels[part::parts]
        with evaluating(), arithmetic(precision):
            logits = compute(model.forward, precision)(model.state, data.prepare(inputs))
        return (logits.argmax(1) == labels).sum(), F.cross_entropy(logits, labels, reduction="sum")

    correct, losses = zip(*in_threads(of_part, range(parts), min(parts, workers)), strict=True)
    return 100 * torch.stack(correct).sum().item() / total, torch.stack(losses).sum().item() / total
