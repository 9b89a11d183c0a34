"""Data: CIFAR-10 from parquet to tensors and from what is kept; a Dirichlet partition of a million samples.

Seconds, not ratios: they are what a person waits. Run with ``tox -e bench``.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
from raw_data import REAL, real

from prism_bench.data.cifar10 import CIFAR10
from prism_bench.partitions.dirichlet import dirichlet


@real
def test_cifar10(benchmark, report):
    """The first time, with the imports that it needs, and again."""
    start = time.perf_counter()
    CIFAR10(root=REAL).load()
    report("first time, s", time.perf_counter() - start, 15)
    benchmark.pedantic(CIFAR10(root=REAL).load, rounds=3, iterations=1)
    if benchmark.stats:
        report("from the cache, s", benchmark.stats.stats.median, 1)


@pytest.mark.parametrize(("alpha", "classes"), [(0.1, 10), (1.0, 10), (0.1, 62)])
def test_dirichlet(benchmark, report, alpha, classes):
    """1,000,000 samples over 10,000 clients."""
    labels = np.random.default_rng(0).integers(0, classes, 1_000_000)
    benchmark.pedantic(
        lambda: dirichlet(labels, 10_000, alpha, np.random.default_rng(1)), rounds=3, iterations=1, warmup_rounds=1
    )
    if benchmark.stats:
        report("a million samples, s", benchmark.stats.stats.median, 2)
