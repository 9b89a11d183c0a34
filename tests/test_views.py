"""Views: one object and one entry point each, a third party's like our own."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points

import pandas as pd
import pytest
import yaml
from frames import rounds_of, write_results

from prism_bench.analysis.report import plot, write_pictures
from prism_bench.analysis.report.page import page
from prism_bench.analysis.view import every_view, pictures, shown_by, tables
from prism_bench.base import registry
from prism_bench.base.errors import BadInput
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.results import Results
from prism_bench.harness.runner import carry_out

BUILT_IN = ["accuracy", "clients", "costs", "drops", "features", "parts", "rank", "sampling", "time"]

MINE = '''
"""How large the steps of the server are: a view of somebody else's, in one file."""

from prism_bench.analysis.report.cells import number, sheet_of
from prism_bench.analysis.report.plots import add_legend, grid, probed
from prism_bench.analysis.view import Picture, Table, View


def record(federation, opened):
    return [{"client": client.number, "size": opened.number + 10.0} for client in opened.cohort]


def read(results):
    return results.probe("mine")


def numbers(frame):
    return frame.groupby("algorithm", as_index=False)["size"].mean()


def sheet(frame, form):
    return sheet_of(frame, form, {"size": number("size", form.digits)}, ["The size of a step."])


def draw(frame):
    figure, [panel] = grid(1, 1)
    for name, rows in probed(frame, "mine").groupby("method"):
        panel.plot(rows["round"], rows["size"], label=name)
    add_legend(figure, [panel])
    return figure


VIEW = View(
    heading="Steps of mine & theirs",
    record=record,
    table=Table(numbers, sheet, read),
    picture=Picture("steps", draw, caption="Steps by round.", read=read),
)
'''

TREE = {
    "name": "small",
    "shows": ["mine", "accuracy"],
    "data": "digits",
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "smallcnn", "width": 5},
    "capacity": {"keep": 0.4},
    "training": {"rounds": 2, "active": 2, "epochs": 1},
    "evaluation": {"probes": ["mine"]},
    "grid": {"algorithm": ["fedavg", "prism"]},
}
ROUNDS = rounds_of(("fedavg", "1", 0, [50, 60]), ("prism", "0.2", 0, [40, 50]))


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Pretend that a package with such a view is installed: one module, one entry point."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    (tmp_path / "site").mkdir()
    installed = []

    def pretend(name, content):
        (tmp_path / "site" / f"third_{name}.py").write_text(content)
        installed.append(EntryPoint(name, f"third_{name}:VIEW", "prism_bench.views"))
        registry.find.cache_clear()

    def points(group):
        return [*entry_points(group=group), *(point for point in installed if point.group == group)]

    monkeypatch.setattr(registry, "entry_points", points)
    yield pretend
    monkeypatch.undo()
    registry.find.cache_clear()
    for point in installed:
        sys.modules.pop(point.module, None)


def test_ours_are_all_there():
    assert list(every_view()) == BUILT_IN
    assert list(tables()) == ["accuracy", "clients", "costs", "drops", "time"]
    assert sorted(pictures()) == sorted({*BUILT_IN, "curves"} - {"accuracy"})
    assert len({view.heading for view in every_view().values()}) == len(BUILT_IN)


def test_a_third_partys_view_from_the_record_to_the_page(install, tmp_path, here):
    install("mine", MINE)
    folder = tmp_path / "results" / "small"
    carry_out(Experiment.load(TREE), folder)

    recorded = pd.read_csv(folder / "mine.csv")
    assert recorded.groupby(["algorithm", "round"])["size"].agg(["mean", "count"]).values.tolist() == [
        [10, 2], [11, 2], [10, 2], [11, 2],
    ]  # fmt: skip

    code, printed, _ = here("table", "small", "--show", "mine", "--format", "markdown")
    assert code == 0
    assert "| fedavg | 10.5 |\n| prism | 10.5 |" in printed
    assert "The size of a step." in printed
    assert here("table", "small", "--format", "markdown")[1] == printed, "the experiment is about it first"

    code, printed, _ = here("plot", "small", "--show", "steps", "--to", "figures")
    assert (code, printed.split()) == (0, ["figures/steps.png"])
    assert (tmp_path / "figures" / "steps.png").stat().st_size > 5000
    files = write_pictures(Results.open(folder), tmp_path / "all")
    assert [file.name for file in files] == ["steps.png", "curves.png"]
    [axes] = plot(Results.open(folder), "steps").axes
    assert [line.get_label() for line in axes.lines] == ["fedavg", "prism"]

    text = page([Results.open(folder)])
    assert text.index("<h3>Steps of mine &amp; theirs</h3>") < text.index("<h3>Accuracy</h3>")
    assert "<figcaption>Steps by round.</figcaption>" in text
    assert '<td class=number data-value="10.5">10.5</td>' in text

    assert "Steps of mine & theirs" in here("list")[1]


def test_a_run_ends_in_the_table_and_the_picture_of_a_third_partys_view(install, tmp_path, here, monkeypatch):
    install("mine", MINE)
    # Known to this process alone, so the run can't have one to itself as somebody else's code would.
    monkeypatch.setattr("prism_bench.harness.runner.foreign", lambda *_: False)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(TREE))
    code, printed, _ = here("run", "small.yaml")
    assert code == 0
    assert "results/small/steps.png" in printed
    assert pd.read_csv(tmp_path / "results" / "small" / "table.csv")["size"].tolist() == [10.5, 10.5]


def test_where_nothing_was_recorded_the_next_table_is_shown(install, tmp_path, here):
    install("mine", MINE)
    write_results(tmp_path / "results" / "small", ROUNDS, shows=["mine", "costs"])
    assert "Costs of one client" in " ".join(here("table", "small")[1].split())
    for command, name in (("table", "mine"), ("plot", "steps")):
        code, _, printed = here(command, "small", "--show", name)
        assert code == 2
        assert f"{name}: the results have nothing of the kind." in printed
    assert "<h3>Steps" not in page([Results.open(tmp_path / "results" / "small")])


def test_a_view_that_is_not_installed_is_left_out(tmp_path):
    folder = write_results(tmp_path / "small", ROUNDS, shows=["theirs", "accuracy"])
    assert list(shown_by(Results.open(folder).about)) == ["accuracy"]
    assert "<h3>Accuracy</h3>" in page([Results.open(folder)])


def test_a_view_that_can_not_be_loaded_is_in_nobodys_way_but_its_own(install, tmp_path, here):
    install("broken", "import no_such_module_anywhere")
    write_results(tmp_path / "results" / "small", ROUNDS)
    assert here("table", "small", "--show", "costs")[0] == 0
    assert here("plot", "small", "--show", "curves")[0] == 0
    for command in ("table", "plot"):
        code, _, printed = here(command, "small", "--show", "broken")
        assert code == 2
        assert "'broken' (third_broken:VIEW from unknown package) can't be loaded: ModuleNotFoundError" in printed
    with pytest.warns(UserWarning, match=r"left out: views: 'broken' \(third_broken:VIEW"):
        assert list(shown_by({"shows": ["broken", "time"]})) == ["time"]


def test_what_is_no_view_is_named(install, here):
    install("odd", "VIEW = 7")
    assert list(every_view()) == BUILT_IN
    assert "views: 'odd' (third_odd:VIEW) is not a View." in here("plot", "--show", "odd")[2]


def test_two_pictures_of_one_name_are_an_error_that_names_both(install):
    install("mine", MINE.replace('"steps"', '"curves"'))
    with pytest.raises(BadInput, match="Two views call their picture 'curves': accuracy and mine"):
        pictures()


def test_a_view_that_records_nothing_is_no_probe():
    with pytest.raises(BadInput, match=r"the view 'accuracy' records nothing\. Known: features, parts, rank, sampling"):
        Experiment.load(TREE | {"shows": ["accuracy"], "evaluation": {"probes": ["accuracy"]}})


def test_no_view_brings_torch():
    code = "import sys\nfrom prism_bench.analysis.view import every_view\n"
    code += f"assert list(every_view()) == {BUILT_IN}\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_experiment_that_shows_a_view_that_is_not_there_is_an_error():
    with pytest.raises(BadInput, match=r"shows: there is no view called 'acuracy'. Did you mean 'accuracy'"):
        Experiment.load("quickstart", {"shows": ["acuracy"]})
