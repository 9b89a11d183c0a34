"""What several test files share."""

from __future__ import annotations

ALGORITHMS = ("fedavg", "prism", "orthdrop", "origdrop", "splitmix")
MODELS = (
    {"name": "smallcnn", "width": 10, "norm": "batch"},
    {"name": "cnn", "width": 10},
    {"name": "vgg11", "width": 5},
    {"name": "lstm", "embedding": 10, "hidden": 10},
    {"name": "deit", "width": 30, "depth": 2},
    {"name": "resnet18", "width": 10, "blocks": (1, 1)},
)


def model_id(model: dict) -> str:
    return model["name"]
