"""For every test."""

from __future__ import annotations

import sys

import pytest
import torch

from prism_bench.cli import main


@pytest.fixture(autouse=True)
def _one_thread():
    """Tiny tensors gain nothing from threads, and tests should not depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """Prepared data of a test is its own, and the user's settings don't reach it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    for name in ("PRISM_BENCH_DATA", "PRISM_BENCH_NETWORK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """Call the command in this process: a new one spends seconds on importing torch."""

    def call(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["prism-bench", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return call
