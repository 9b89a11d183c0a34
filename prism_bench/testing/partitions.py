"""What every partition must hold. Each check takes the partition and, optionally, its settings and labels and owners to
split: one that reads something else of its owners than their names needs data of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prism_bench.base.errors import BadInput
from prism_bench.data.population import Population
from prism_bench.testing.tiny import Check, Given, Named, chosen, described

CLIENTS = 7
"""Where the settings don't say."""

Data = tuple[np.ndarray, Sequence[str] | None]
"""Labels, and whose each sample is."""


def check_described(partition: Named, settings: Given = None, data: Data | None = None) -> None:
    """It says in a line what it does, and its settings can't be changed under way."""
    plugin = chosen("partition", partition, settings)
    described(partition, plugin.kind, plugin.settings)


def check_population(partition: Named, settings: Given = None, data: Data | None = None) -> None:
    """The asked number of clients, each with at least one sample, and no sample twice."""
    labels, owners = data or some()
    splitter, population = split(partition, settings, (labels, owners))
    assert isinstance(population, Population), f"`split` must give a Population, not {type(population).__name__}"
    assert len(population) == splitter.clients, f"{splitter.clients} clients were asked for, not {len(population)}"
    assert population.sizes.min() >= 1, f"client {population.sizes.argmin()} has no sample"
    order = np.concatenate([population[client] for client in range(len(population))])
    assert 0 <= order.min() <= order.max() < len(labels), "an index is out of the data's range"
    assert len(np.unique(order)) == len(order), "a sample is in the population twice"


def check_repeatable(partition: Named, settings: Given = None, data: Data | None = None) -> None:
    """The same generator gives the same population."""
    (_, first), (_, second) = (split(partition, settings, data or some()) for _ in range(2))
    same = np.array_equal(first.order, second.order) and np.array_equal(first.starts, second.starts)
    assert same, "the same generator gave another population: draw from the generator that `split` is given only"


def check_untouched(partition: Named, settings: Given = None, data: Data | None = None) -> None:
    """Labels and owners are as they were."""
    labels, owners = data or some()
    before = labels.copy(), None if owners is None else list(owners)
    split(partition, settings, (labels, owners))
    assert np.array_equal(labels, before[0]), "`split` changes the labels that it is given: other runs share them"
    assert owners is None or list(owners) == before[1], "`split` changes the owners that it is given"


def check_too_many(partition: Named, settings: Given = None, data: Data | None = None) -> None:
    """More clients than there are samples are an error for the user."""
    labels, owners = data or some()
    try:
        split(partition, {**(settings or {}), "clients": len(labels) + 1}, (labels, owners))
    except BadInput:
        return
    raise AssertionError(f"{len(labels) + 1} clients of {len(labels)} samples must be a BadInput")


PARTITION_CHECKS: tuple[Check, ...] = (
    check_described,
    check_population,
    check_repeatable,
    check_untouched,
    check_too_many,
)


def some() -> Data:
    """Labels of ten classes and owners with unequal numbers of samples, in no order."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 10, 3000), [f"owner{number:03}" for number in rng.integers(0, 200, 3000)]


def split(partition: Named, settings: Given, data: Data) -> tuple[Any, Population]:
    """The partition's settings and what they make of the data."""
    splitter = chosen("partition", partition, {"clients": CLIENTS, **(settings or {})}).settings
    return splitter, splitter.split(*data, np.random.default_rng(0))
