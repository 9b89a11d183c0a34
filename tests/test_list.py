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


def algorithms(printed):
    """The lines on algorithms, by what they cut."""
    groups, names = {}, None
    for line in printed.splitlines():
        if not line.startswith(" "):
            names = None
        if line.strip().startswith("cut: "):
            names = groups.setdefault(line.strip().removeprefix("cut: "), [])
        elif names is not None and (name := re.match(r"  (\w+) ", line)):
            names.append(name[1])
    return groups


def test_algorithms_are_grouped_by_what_they_cut(here):
    groups = algorithms(here("list")[1])
    assert {"origdrop", "feddropout", "fedrolex", "anycost", "splitmix", "exclusive", "small"} <= set(groups["width"])
    assert "orthdrop" in groups["rank"]
    assert groups["rank and width"] == ["prism"]
    assert "fedavg" in groups["nothing"]
    assert groups["not said"] == ["spreaddrop"], "somebody else's, without the attribute; all of ours say it"
    assert next(iter(groups)) == "width"
    assert list(groups)[-2:] == ["nothing", "not said"]
    assert sorted(name for names in groups.values() for name in names) == list(registry.find("algorithms"))


def test_one_that_can_not_be_imported_says_nothing(broken, here):
    assert "badmethod" in here("list")[1]
    assert algorithms(here("list")[1])["not said"] == ["badmethod", "spreaddrop"]


def test_each_algorithm_names_its_paper(here):
    said = " ".join(here("list")[1].split())
    for words in (
        "the reference. (McMahan et al., AISTATS 2017)",
        "(≈ HeteroFL, FjORD). (Diao et al., ICLR 2021; Horváth et al., NeurIPS 2021)",
        "and the inputs that match. (Caldas et al., 2018)",
        "a subset of the output channels. (Niu et al., TMLR 2023)",
        "move on by some each round. (prism-bench-spreaddrop)",
    ):
        assert words in said
    ours = [name for name, point in registry.find("algorithms").items() if point.dist.name == "prism-bench"]
    without = [name for name in ours if not module._cited(registry.load("algorithms", name, ""))]
    assert without == ["small"], "a control of this suite's own"


@pytest.mark.parametrize(
    ("text", "cited"),
    [
        ('X.\n\nDiao, Ding, Tarokh, "HeteroFL: a\nb", ICLR 2021.', " (Diao et al., ICLR 2021)"),
        ('Kang et al., "NeFL", 2023 (arXiv:2308.07761).', " (Kang et al., 2023)"),
        ('Ann and Bob, "A, b", NeurIPS 2020; as in Eve, "C", ICML 2021, shows.',
         " (Ann et al., NeurIPS 2020; Eve, ICML 2021)"),
        ('Says "a word", and 2020.', ""),
        ("", ""),
        (None, ""),
    ],
)  # fmt: skip
def test_papers_in_a_docstring(monkeypatch, text, cited):
    class Plugin:
        __module__ = "somebodys"

    monkeypatch.setitem(module.sys.modules, "somebodys", type(re)("somebodys", text))
    assert module._cited(Plugin) == cited


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


def test_an_experiment_says_what_it_is(here, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "description: by hand\ndata: digits\npartition: {name: iid, clients: 20}\nmodel: smallcnn\nseeds: [3, 5]\n"
        "training: {rounds: 4, active: 4, epochs: 2, batch: 16}\n"
        "capacity: {keep: 0.5}\ngrid: {algorithm: [fedavg, prism]}\n"
    )
    code, printed, _ = here("list", "mine.yaml")
    assert code == 0
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert lines[:5] == ["mine: by hand", "shows accuracy, drops, costs", "grid algorithm: [fedavg, prism]", "seeds 2",
                         "runs 4"]  # fmt: skip
    assert "local steps per client and round 10" in lines, "67 digits each are 5 batches"
    assert "clients that hold a kernel 2" in lines
    assert "passes over the data 1.6" in lines


def test_a_name_of_a_view_and_of_an_experiment_shows_both(here):
    _, printed, _ = here("list", "rank")
    assert "It has no settings." in printed
    assert "rank: how many principal kernels each layer needs" in printed
    assert "passes over the data" in printed


def test_the_name_of_results_is_that_of_their_experiment(here):
    assert here("list", "heterogeneous-paper")[1] == here("list", "heterogeneous")[1]


def test_a_budget_is_found_when_it_runs(here):
    code, printed, _ = here("list", "equal_memory")
    assert code == 0
    assert "What a budget lets clients keep is found" in printed
    assert "clients that hold" not in printed


def test_what_there_is_not_is_an_error(here):
    for name, problem in (("prisn", "Did you mean 'prism'?"), ("none.yaml", "there is no such file")):
        code, _, printed = here("list", name)
        assert code == 2
        assert problem in printed
