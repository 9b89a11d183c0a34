"""How speed is measured here: arms alternate in one process, one thread, CPU-seconds, medians with their spread."""

from __future__ import annotations

import csv
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from prism_bench.engine.hardware import keep_memory

_rows = []


@dataclass(frozen=True)
class Spread:
    """The median of repeated measurements, and how far they lie apart."""

    values: tuple[float, ...]

    @property
    def median(self):
        return statistics.median(self.values)

    def __str__(self):
        between = f", {min(self.values):.4g}-{max(self.values):.4g}" if len(self.values) > 1 else ""
        return f"{self.median:.4g} (median of {len(self.values)}{between})"

    def __truediv__(self, other):
        """Turn by turn: what slows both arms in one turn cancels out. Or by a number."""
        others = other.values if isinstance(other, Spread) else [other] * len(self.values)
        return Spread(tuple(mine / theirs for mine, theirs in zip(self.values, others, strict=True)))


@pytest.fixture(autouse=True)
def same_memory():
    """As in a run, for all arms."""
    keep_memory()


@pytest.fixture
def alternate(benchmark):
    """Time several functions in turn, after a warm-up of each; returns the CPU-seconds of each."""

    def measure(repeats=5, **arms):
        for arm in arms.values():
            arm()
        times = {name: [] for name in arms}

        def turn():
            for name, arm in arms.items():
                start = time.process_time()
                arm()
                times[name].append(time.process_time() - start)

        benchmark.pedantic(turn, rounds=repeats, iterations=1)
        for name, seconds in times.items():
            benchmark.extra_info[f"{name}_cpu_seconds"] = seconds
        return {name: Spread(tuple(seconds)) for name, seconds in times.items()}

    return measure


@pytest.fixture
def report(benchmark, request):
    """Put a number, or a list of repeats, with what it is meant to be at most, into record, summary and CSV."""

    def tell(what, value, target=None):
        values = tuple(value) if isinstance(value, list) else (value,)
        spread = value if isinstance(value, Spread) else Spread(values)
        benchmark.extra_info[what] = spread.median
        _rows.append((request.node.name, what, spread, target))

    return tell


def pytest_addoption(parser):
    parser.addoption("--ratios", metavar="FILE", type=Path, help="also write the ratios to this CSV")


def pytest_terminal_summary(terminalreporter, config):
    if not _rows:
        return
    terminalreporter.section("ratios")
    for name, what, spread, target in _rows:
        meant = f", meant to be at most {target:g}" if target else ""
        terminalreporter.write_line(f"{name}: {what} {spread}{meant}")
    if config.getoption("ratios"):
        config.getoption("ratios").parent.mkdir(parents=True, exist_ok=True)
        with config.getoption("ratios").open("w", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["benchmark", "what", "median", "min", "max", "repeats", "meant_to_be_at_most", "torch"])
            for name, what, spread, target in _rows:
                numbers = (f"{value:.4g}" for value in (spread.median, min(spread.values), max(spread.values)))
                table.writerow([name, what, *numbers, len(spread.values), target, torch.__version__])
