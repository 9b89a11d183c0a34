"""What several test files share."""

from __future__ import annotations

import pytest
import torch

ALGORITHMS = ("fedavg", "prism", "orthdrop", "origdrop", "splitmix")
MODELS = (
    {"name": "smallcnn", "width": 10, "norm": "batch"},
    {"name": "cnn", "width": 10},
    {"name": "resnet18", "width": 10, "blocks": (1, 1)},
)


def model_id(model: dict) -> str:
    return model["name"]


@pytest.fixture(autouse=True)
def _one_thread():
    """Tiny tensors gain nothing from threads, and tests should not depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
