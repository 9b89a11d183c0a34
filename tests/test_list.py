"""``prism-bench list``: everything that is installed, whatever state it is in."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, entry_points

import pytest
from rich.console import Console

from prism_bench.base import registry
from prism_bench.cli import list as module


@pytest.fixture
def broken(monkeypatch):
    """Pretend that an algorithm and a view are installed which can't be imported."""
    values = {"algorithms": "badmethod", "views": "badview"}
    added = [EntryPoint(name, "no_such_module:A", f"prism_bench.{group}") for group, name in values.items()]
    monkeypatch.setattr(
        registry,
        "entry_points",
        lambda group: [*entry_points(group=group), *(point for point in added if point.group == group)],
    )
    registry.find.cache_clear()
    yield
    monkeypatch.undo()
    registry.find.cache_clear()


def test_a_plugin_that_can_not_be_imported_does_not_hide_the_others(broken, here):
    code, printed, _ = here("list")
    assert code == 0
    said = " ".join(printed.split())
    for name in ("badmethod", "badview"):
        assert re.search(rf"{name} (algorithms|views): '{name}' \(no_such_module:A .*? can't be loaded: Module", said)
    for name in ("prism", "iid", "digits", "cnn", "uniform", "threads", "rank", "tensorboard"):
        assert f"  {name} " in printed, name


def test_its_error_is_red(broken, here, monkeypatch):
    console = Console(record=True, width=200, force_terminal=True, color_system="standard")
    monkeypatch.setattr(module, "out_console", console)
    assert here("list")[0] == 0
    lines = [line for line in console.export_text(styles=True).splitlines() if "badview" in line]
    assert "\x1b[31mviews: 'badview'" in lines[0]


def test_asked_for_by_name_it_is_an_error(broken, here):
    for name in ("badmethod", "badview"):
        code, _, printed = here("list", name)
        assert code == 2
        assert f"'{name}' (no_such_module:A from unknown package) can't be loaded: ModuleNotFoundError" in printed


def test_views_are_listed_by_their_headings(here):
    _, printed, _ = here("list")
    assert re.search(r"^  rank +Required kernels over the rounds *$", printed, flags=re.M)
    assert re.search(r"^  accuracy +Accuracy *$", printed, flags=re.M)


def test_what_has_no_settings_says_so(here):
    for name, words in (("rank", "Required kernels over the rounds"), ("tensorboard", "")):
        code, printed, _ = here("list", name)
        assert code == 0
        assert printed.startswith(f"{name}: {words}")
        assert "It has no settings." in printed
