"""How speed is measured here: arms alternate in one process, one thread, CPU-seconds, medians with their spread."""

from __future__ import annotations

import statistics
import time

import pytest

# Each of its arms is imported where its framework is installed; tests/test_peers.py drives those that need none.
collect_ignore = ["peers"]

_lines = []


@pytest.fixture
def alternate(benchmark):
    """Time several functions in turn, after a warm-up of each; returns the median CPU-seconds of each."""

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
            low, high = min(seconds), max(seconds)
            _lines.append(
                f"  {name}: {statistics.median(seconds):.4f} CPU-s (median of {repeats}, {low:.4f}-{high:.4f})"
            )
        return {name: statistics.median(seconds) for name, seconds in times.items()}

    return measure


@pytest.fixture
def report(benchmark, request):
    """Put a ratio, and what it is meant to be, into the benchmark's record and the summary."""

    def tell(what, value, target=None):
        benchmark.extra_info[what] = value
        meant = f" (meant to be at most {target})" if target else ""
        _lines.append(f"{request.node.name}: {what} {value:.3f}{meant}")

    return tell


def pytest_terminal_summary(terminalreporter):
    if _lines:
        terminalreporter.section("ratios")
        for line in _lines:
            terminalreporter.write_line(line)
