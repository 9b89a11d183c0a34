"""CIFAR-100: 60,000 colour images of 32×32 in a hundred classes."""

from __future__ import annotations

from functools import partial

from prism_bench.data.cifar10 import CIFAR10, read_batches, read_hub
from prism_bench.data.sources import RawForm


class CIFAR100(CIFAR10):
    """CIFAR-100: 50,000 training and 10,000 test images, 3×32×32, a hundred classes (the fine labels)."""

    title = "CIFAR-100"
    classes = 100
    hub = "uoft-cs/cifar100"
    forms = (
        RawForm("the Hub's layout", ("uoft-cs/cifar100",), ("**/*.parquet",), partial(read_hub, label="fine_label")),
        RawForm(
            "CIFAR-100's Python version",
            # Not the root itself, as for CIFAR-10: files of any data set are called "train" and "test".
            ("cifar-100-python",),
            ("train", "test"),
            partial(
                read_batches,
                title="CIFAR-100",
                files={"train": ("train",), "test": ("test",)},
                key="fine_labels",
                classes=100,
            ),
        ),
    )
