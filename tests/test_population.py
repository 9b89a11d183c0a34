"""A large population: what is not active costs a partition's few bytes per sample, and no round anything."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import numpy as np
import pytest

from prism_bench.core.capacity import Capacity
from prism_bench.data.population import Population
from prism_bench.engine.federation import Federation
from prism_bench.engine.sections import Execution
from prism_bench.engine.spec import Run
from prism_bench.partitions.dirichlet import dirichlet
from prism_bench.partitions.iid import iid
from prism_bench.partitions.writers import by_writer
from prism_bench.testing import tiny_data

MILLION = 1_000_000


def federation(redraw, clients=MILLION, active=100):
    run = Run.resolve(
        {
            "data": "digits",
            "partition": {"name": "iid", "clients": clients},
            "model": {"name": "smallcnn", "width": 5},
            "algorithm": "prism",
            "capacity": {"keep": [0.4, 0.2], "share": [0.4, 0.6], "redraw": redraw},
            "training": {"active": active, "rounds": 3},
        }
    )
    partition = Population(np.arange(clients, dtype=np.int32) % 48, np.arange(clients + 1))
    return Federation(run, tiny_data(), partition, Execution(device="cpu"))


def traced(work):
    """What the work gives, and its peak of memory in bytes (numpy's and Python's own)."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("redraw", [False, True])
def test_a_round_touches_nothing_of_the_size_of_the_population(redraw):
    one = federation(redraw)
    one.open(0)
    opened, peak = traced(lambda: one.open(1))
    assert len({task.client for task in opened.tasks}) == 100, "clients are drawn without replacement"
    assert peak < MILLION, "not even a byte a client"


def test_capacities_of_the_population_are_exact_and_a_byte_each():
    dealt = federation(redraw=False).dealt
    assert np.bincount(dealt).tolist() == [400_000, 600_000]
    assert dealt.nbytes == MILLION


def test_redrawn_capacities_are_a_sample_of_the_exact_mix():
    """Five of ten clients, one of which has the first capacity: half of the time it is among them, at any place."""
    mix = Capacity(keep=(0.4, 0.2), share=(0.1, 0.9), redraw=True)
    draws = [mix.deal_some(5, 10, np.random.default_rng(seed)).tolist() for seed in range(2000)]
    assert {draw.count(0) for draw in draws} == {0, 1}
    places = Counter(draw.index(0) for draw in draws if 0 in draw)
    assert sorted(places) == [0, 1, 2, 3, 4]
    assert sum(places.values()) == pytest.approx(1000, abs=100)
    assert all(count == pytest.approx(200, abs=60) for count in places.values())


LABELS = np.arange(MILLION) % 10
NAMES = [f"writer {number}" for number in range(200_000)]


@pytest.mark.parametrize(
    "split",
    [
        lambda rng: iid(MILLION, 200_000, rng),
        lambda rng: dirichlet(LABELS, 200_000, 0.1, rng),
        lambda rng: by_writer(NAMES * 5, 200_000, 1, rng),
    ],
    ids=["iid", "dirichlet", "writers"],
)
def test_a_partition_of_200_000_clients(split):
    partition, peak = traced(lambda: split(np.random.default_rng(0)))
    assert partition.sizes.tolist() == [5] * 200_000
    assert partition.order.nbytes + partition.starts.nbytes <= 6 * MILLION
    assert peak <= 100 * MILLION, "at most 100 bytes per sample on the way"
    assert partition[7].dtype == np.int64, "what indexes a tensor"
    summary, peak = traced(lambda: partition.summary(LABELS))
    assert summary.startswith("200000 clients, samples 5, classes ")
    assert peak <= 100 * MILLION
