"""A million clients with five samples each, 100 active: set-up, memory, and a round against one of 1,000 clients.

Run with ``tox -e bench -- tests/benchmarks/bench_population.py``.
"""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest

from prism_bench.engine.federation import Federation, split
from prism_bench.engine.sections import Execution
from prism_bench.engine.spec import Run
from prism_bench.partitions.dirichlet import dirichlet
from prism_bench.partitions.iid import iid
from prism_bench.partitions.writers import by_writer

MILLION, EACH = 1_000_000, 5
SAMPLES = MILLION * EACH


def set_up(clients, redraw=False):
    run = Run.resolve(
        {
            "data": {"name": "noise", "shape": [1, 8, 8], "train": EACH * clients, "test": 500},
            "partition": {"name": "iid", "clients": clients},
            "model": {"name": "smallcnn", "width": 10},
            "algorithm": "prism",
            "capacity": {"keep": [0.4, 0.2], "share": [0.4, 0.6], "redraw": redraw},
            "training": {"active": 100, "rounds": 1000, "epochs": 1, "batch": 5},
            "evaluation": {"every": 1000},
        }
    )
    data = run.data.settings.load()
    data.digest()
    partition = split(run, data)
    partition.summary(data.train.labels.numpy())
    federation = Federation(run, data, partition, Execution(device="cpu"))
    federation.cohort(0)
    return federation


def test_set_up(benchmark, report):
    """Data of 5,000,000 samples, its digest, the partition and what progress says of it, the run and its first draw."""
    seconds = []

    def work():
        start = time.perf_counter()
        set_up(MILLION)
        seconds.append(time.perf_counter() - start)

    benchmark.pedantic(work, rounds=3, iterations=1)
    report("set-up of a million clients, s", sorted(seconds)[len(seconds) // 2], 10)


@pytest.mark.parametrize("redraw", [False, True])
def test_round(alternate, report, redraw):
    """100 active clients of a million, and of a thousand; then the draw of them alone, a thousand times."""
    few, many = set_up(1000, redraw), set_up(MILLION, redraw)
    turns = iter(range(1000))
    seconds = alternate(
        thousand=lambda: few.round(next(turns)),
        million=lambda: many.round(next(turns)),
        draw_of_thousand=lambda: [few.cohort(round) for round in range(1000)],
        draw_of_million=lambda: [many.cohort(round) for round in range(1000)],
    )
    report("round of a million clients / of a thousand", seconds["million"] / seconds["thousand"], 1.1)
    report("draw from a million clients / from a thousand", seconds["draw_of_million"] / seconds["draw_of_thousand"], 2)


NAMES = [f"writer {number}" for number in range(MILLION)]
LABELS = {classes: np.random.default_rng(0).integers(0, classes, SAMPLES) for classes in (10, 62)}


@pytest.mark.parametrize(
    "partition",
    [
        lambda rng: iid(SAMPLES, MILLION, rng),
        lambda rng: dirichlet(LABELS[10], MILLION, 0.1, rng),
        lambda rng: dirichlet(LABELS[10], MILLION, 1.0, rng),
        lambda rng: dirichlet(LABELS[62], MILLION, 0.1, rng),
        lambda rng: by_writer(NAMES * EACH, MILLION, 1, rng),
    ],
    ids=["iid", "dirichlet-0.1", "dirichlet-1", "dirichlet-0.1-of-62-classes", "writers"],
)
def test_partition(benchmark, report, partition):
    """Seconds, and bytes a sample: what is kept, and the peak on the way (numpy's and Python's own)."""
    seconds = []

    def work():
        start = time.perf_counter()
        partition(np.random.default_rng(1))
        seconds.append(time.perf_counter() - start)

    benchmark.pedantic(work, rounds=3, iterations=1)
    report("partition, s", sorted(seconds)[len(seconds) // 2], 10)
    tracemalloc.start()
    made = partition(np.random.default_rng(1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    report("kept, bytes a sample", (made.order.nbytes + made.starts.nbytes) / SAMPLES, 100)
    report("peak, bytes a sample", peak / SAMPLES, 100)
