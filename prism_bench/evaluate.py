"""Accuracy of a server model on the test set."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from prism_bench.algorithm import ServerModel
from prism_bench.data.dataset import Dataset


@torch.inference_mode()
def evaluate(model: ServerModel, data: Dataset, batch: int) -> tuple[float, float]:
    """Accuracy in % and mean loss. Batches are of nearly equal size, as BatchNorm uses each one's statistics."""
    total = len(data.test)
    correct = torch.zeros((), dtype=torch.int64, device=data.test.labels.device)
    loss = torch.zeros((), device=data.test.labels.device)
    parts = max(1, -(-total // batch))
    for part in range(parts):
        # Every so many-th sample: a test set in order of class or writer still gives batches like the whole.
        inputs, labels = data.test.inputs[part::parts], data.test.labels[part::parts]
        logits = model.forward(model.state, data.prepare(inputs))
        correct += (logits.argmax(1) == labels).sum()
        loss += F.cross_entropy(logits, labels, reduction="sum")
    return 100 * correct.item() / total, loss.item() / total
