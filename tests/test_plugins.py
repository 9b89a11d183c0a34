"""Plugins: found by entry point, a third party's like our own."""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint

import pytest

from prism_bench.base import registry
from prism_bench.base.errors import BadInput
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.runner import carry_out
from prism_bench.testing import CHECKS

INSTALLED = "spreaddrop" in registry.find("algorithms")


@pytest.mark.skipif(
    not INSTALLED and "TOX_ENV_NAME" not in os.environ, reason="needs: pip install --no-deps tests/thirdparty"
)
@pytest.mark.parametrize("check", CHECKS)
def test_a_third_partys_plugin_conforms(check):
    assert registry.find("algorithms")["spreaddrop"].dist.name == "prism-bench-spreaddrop"
    check("spreaddrop", {"step": 3})


@pytest.mark.skipif(
    not INSTALLED and "TOX_ENV_NAME" not in os.environ, reason="needs: pip install --no-deps tests/thirdparty"
)
def test_a_third_partys_plugin_is_in_the_table():
    tree = {
        "data": "digits",
        "partition": {"name": "iid", "clients": 4},
        "model": {"name": "smallcnn", "width": 5},
        "training": {"rounds": 1, "active": 2, "epochs": 1},
        "capacity": {"keep": 0.4},
        "grid": {"algorithm": ["origdrop", {"name": "spreaddrop", "step": 2}]},
    }
    assert set(carry_out(Experiment.load(tree)).rounds["algorithm"]) == {"origdrop", "spreaddrop"}


@pytest.fixture
def points(monkeypatch):
    """Pretend that these are all that is installed."""

    def pretend(*values):
        found = [EntryPoint(name, value, "prism_bench.algorithms") for name, value in values]
        monkeypatch.setattr(registry, "entry_points", lambda group: found)
        registry.find.cache_clear()

    yield pretend
    monkeypatch.undo()
    registry.find.cache_clear()


def test_two_of_one_name_are_an_error_that_names_both(points):
    points(("prism", "one.module:A"), ("prism", "other.module:B"))
    with pytest.raises(BadInput, match=r"called 'prism': one\.module:A .* and other\.module:B"):
        registry.find("algorithms")


def test_a_plugin_that_cannot_be_imported_is_named(points):
    points(("broken", "no_such_module_anywhere:A"))
    with pytest.raises(BadInput, match=r"algorithm\.name: 'broken' \(no_such_module_anywhere:A .*can't be loaded"):
        registry.load("algorithms", "broken", "algorithm.name")
