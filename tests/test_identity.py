"""A run's identity covers the code that decides its numbers, and no other."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import prism_bench
from prism_bench.base.errors import BadInput
from prism_bench.engine import identity
from prism_bench.engine.spec import Run
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.runner import carry_out
from prism_bench.plugin import Algorithm

ROOT = Path(__file__).parent.parent
TREE = {
    "data": {"name": "noise", "shape": [1, 8, 8], "classes": 4, "train": 60, "test": 20},
    "partition": {"name": "imdb", "clients": 3, "samples": 12},
    "model": {"name": "smallcnn", "width": 5},
    "algorithm": "prism",
    "capacity": {"keep": 0.4},
    "training": {"rounds": 1, "active": 2, "epochs": 1, "batch": 4, "lr": 0.05},
    "evaluation": {"probes": ["rank"]},
}

WATCH = """
import json, sys
from pathlib import Path
root = Path(sys.argv[1])
from prism_bench.engine import identity
from prism_bench.engine.federation import Federation, split
from prism_bench.engine.sections import Execution
from prism_bench.engine.spec import Run

trees = json.loads(sys.stdin.read())
found = []
for tree in trees:
    called = set()
    run = Run.resolve(tree)
    sys.setprofile(lambda frame, event, _: event == "call" and called.add(frame.f_code.co_filename))
    try:
        data = run.data.settings.load()
        list(Federation(run, data, split(run, data), Execution(device="cpu", threads=1)).rounds())
    finally:
        sys.setprofile(None)
    took_part = sorted(str(Path(name).relative_to(root)) for name in called if Path(name).is_relative_to(root))

    def code():
        identity.closure.cache_clear()
        return run.code()

    before, changed = code(), []
    for file in sorted(root.rglob("*.py")):
        content = file.read_bytes()
        file.write_bytes(content + b"\\n# edited\\n")
        if code() != before:
            changed.append(str(file.relative_to(root)))
        file.write_bytes(content)
    assert code() == before
    found.append({"took_part": took_part, "changed": changed, "code": before})
    (root / "baselines" / "brand_new.py").write_text("class New: pass\\n")
    assert code() == before, "a new algorithm's file"
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The package's source tree, to be edited."""
    root = tmp_path_factory.mktemp("tree")
    for name in ("prism_bench", "baselines", "partitions"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


@pytest.fixture(scope="module")
def watched(copy):
    """For each of some runs: the files whose functions were called, and those whose edit is another identity."""
    more = [{}, {"algorithm": "splitmix", "partition": {"name": "iid", "clients": 3}}, {"algorithm": "orthdrop"}]
    done = subprocess.run(
        [sys.executable, "-c", WATCH, str(copy)],
        cwd=copy,
        input=json.dumps([TREE | one for one in more]),
        env={"PYTHONPATH": str(copy), "PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_file_that_takes_part_in_a_run_decides_its_identity(watched):
    """But for what can't change a number by its contract: where tasks train, and the room that knows no learning."""
    for run in watched:
        apart = (
            "prism_bench/base/",
            "prism_bench/engine/executors.py",
            "prism_bench/views/",
            "prism_bench/__init__.py",
        )
        decide = [file for file in run["took_part"] if not file.startswith(apart)]
        assert len(decide) > 15
        assert set(decide) <= set(run["changed"])


def test_what_only_shows_or_carries_runs_out_decides_nothing(watched):
    rooms = ("cli", "analysis", "harness", "integrations", "testing", "base")
    for run in watched:
        assert not [file for file in run["changed"] if file.split("/")[1] in rooms]
        assert "prism_bench/plugin.py" not in run["changed"]
        assert "prism_bench/engine/executors.py" not in run["changed"]


def test_a_plugins_own_imports_count_and_others_files_do_not(watched):
    prism, splitmix, orthdrop = (set(run["changed"]) for run in watched)
    assert {"partitions/imdb.py", "partitions/dirichlet.py", "partitions/iid.py"} <= prism
    assert {"baselines/prism.py", "baselines/prism_variants.py"} <= prism, "the base of a derived plugin"
    assert "partitions/dirichlet.py" not in splitmix
    for name, changed in (("prism.py", prism), ("splitmix.py", splitmix), ("orthdrop.py", orthdrop)):
        others = {"baselines/fedavg.py", "baselines/origdrop.py", "baselines/splitmix.py", "baselines/orthdrop.py"}
        assert not (others - {f"baselines/{name}"}) & changed
    assert "prism_bench/engine/costs.py" in prism, "it picks budgets' keep ratios and the forward that trains"
    assert len({run["code"] for run in watched}) == 3


def test_femnist_counts_writers():
    run = Run.resolve(TREE | {"partition": {"name": "femnist", "clients": 3}})
    files = {file.name for name in identity.modules([run.partition.kind]) for file in identity.closure(name)}
    assert {"femnist.py", "writers.py", "population.py"} <= files


PLUGIN = """
from helper import step
from prism_bench.plugin import Algorithm

class Mine(Algorithm):
    def select(self, round, cohort):
        return [[{}] for _ in cohort]
"""


def test_a_third_partys_helper_module_counts(tmp_path, monkeypatch):
    (tmp_path / "mine_plugin.py").write_text(PLUGIN)
    (tmp_path / "helper.py").write_text("from deeper import more\nstep = 1\n")
    (tmp_path / "deeper.py").write_text("more = 1\n")
    (tmp_path / "unrelated.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mine_plugin", "helper", "deeper"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import mine_plugin

    def code():
        identity.closure.cache_clear()
        identity._file.cache_clear()
        return Run.resolve(TREE | {"algorithm": mine_plugin.Mine}).code()

    before = code()
    for name, counts in (("helper", True), ("deeper", True), ("unrelated", False), ("mine_plugin", True)):
        file = tmp_path / f"{name}.py"
        content = file.read_text()
        file.write_text(content + "# edited\n")
        assert (code() != before) is counts, name
        file.write_text(content)
    assert code() == before


def test_a_helper_counts_wherever_it_lies_and_so_does_its_packages_own_file(tmp_path, monkeypatch):
    """A plugin in one folder of the search path, what it uses in another, neither of them installed."""
    plugins, common = tmp_path / "plugins", tmp_path / "common"
    (common / "tools").mkdir(parents=True)
    plugins.mkdir()
    (plugins / "far_plugin.py").write_text(PLUGIN.replace("from helper", "from tools.steps"))
    (common / "tools" / "__init__.py").write_text("import tools.steps\n")
    by_name = "import importlib\nother = importlib.import_module('tools.by_name')\n"
    (common / "tools" / "steps.py").write_text(f"import json\nstep = 1\n{by_name}")
    (common / "tools" / "by_name.py").write_text("")
    (common / "tools" / "unrelated.py").write_text("")
    for folder in (plugins, common):
        monkeypatch.syspath_prepend(folder)
    import far_plugin

    def code():
        identity.closure.cache_clear()
        return Run.resolve(TREE | {"algorithm": far_plugin.Mine}).code()

    before = code()
    for name, counts in (("steps", True), ("by_name", True), ("__init__", True), ("unrelated", False)):
        file = common / "tools" / f"{name}.py"
        content = file.read_text()
        file.write_text(content + "# edited\n")
        assert (code() != before) is counts, name
        file.write_text(content)
    assert not [file for file in identity.closure("far_plugin") if file.name in ("decoder.py", "encoder.py")]


def test_a_class_from_a_notebook_is_known_by_its_source(tmp_path, monkeypatch):
    """As IPython does it: the cell's text is in linecache, and there is no module file."""
    import linecache

    codes = []
    for number, width in enumerate((1, 1, 2)):
        cell = textwrap.dedent(
            f"""
            def helper():
                return {width}

            class Typed(Algorithm):
                def select(self, round, cohort):
                    helper()
                    return [[{{}}] for _ in cohort]
            """
        )
        name = f"<ipython-input-{number}>"
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        space = {"Algorithm": Algorithm, "__name__": "typed_here"}
        exec(compile(cell, name, "exec"), space)
        codes.append(Run.resolve(TREE | {"algorithm": space["Typed"]}).code())
    assert codes[0] == codes[1] != codes[2]


def test_a_class_from_a_plain_shell_is_known_by_what_it_was_compiled_to():
    codes = []
    for wanted in ("[]", "[]", "[[]]"):
        space = {"Algorithm": Algorithm, "__name__": "typed_here"}
        exec(f"class Lost(Algorithm):\n    def select(self, round, cohort):\n        return {wanted}", space)
        codes.append(Run.resolve(TREE | {"algorithm": space["Lost"]}).code())
    assert codes[0] == codes[1] != codes[2]


def test_a_probes_recording_counts_where_it_is_asked_for(monkeypatch):
    with_probe, without = (Run.resolve(TREE | {"evaluation": {"probes": probes}}) for probes in (["rank"], []))
    before = with_probe.code(), without.code()
    from prism_bench.views import rank

    monkeypatch.setattr(identity, "sources", lambda what, seen=None: iter(["edited"]))
    assert with_probe.code() != before[0]
    assert without.code() == before[1]
    assert rank.VIEW.record is not None


def experiment(**more):
    return Experiment.load({"name": "tiny", **TREE, "evaluation": {}, **more})


def test_finished_runs_of_other_code_count_once_they_are_accepted(tmp_path, monkeypatch, here):
    monkeypatch.setattr("prism_bench.engine.spec.codes.code", lambda *_: "0" * 8)
    first = carry_out(experiment(), tmp_path).rounds
    # As an older version would have left it: without a setting that came later.
    [folder] = (tmp_path / "runs").iterdir()
    settings = json.loads((folder / "settings.json").read_text())
    del settings["sampler"], settings["training"]["weights"]
    older = prism_bench.base.settings.identity(settings)
    (folder / "settings.json").write_text(json.dumps(settings))
    folder.rename(folder.with_name(f"{older}-{folder.name.split('-', 1)[1]}"))
    monkeypatch.undo()

    heard = []

    class Listens(prism_bench.Callback):
        def other_code(self, code, runs):
            heard.append((code, runs))

        def run_done(self, number, label, summary, reused, error):
            heard.append(reused)

    accepted = carry_out(experiment(), tmp_path, callbacks=[Listens()], accept=["0" * 8]).rounds
    assert heard == [True]
    assert accepted["code"].unique().tolist() == ["0" * 8]
    assert accepted["accuracy"].tolist() == first["accuracy"].tolist()
    grown = carry_out(experiment(seeds=2), tmp_path, accept=["0" * 8]).rounds
    assert grown.groupby("seed")["code"].first().tolist() == ["0" * 8, experiment().runs[0].code()]
    shown = prism_bench.table(grown)
    assert shown["code"].tolist() == [" ".join(dict.fromkeys(grown["code"]))], "a table says which code made it"

    heard.clear()
    carry_out(experiment(), tmp_path, callbacks=[Listens()])
    assert heard == [("0" * 8, 1), False], "it is offered, and not taken unasked"
    with pytest.raises(BadInput, match=r"--accept 12345678: .* has no finished run of it"):
        carry_out(experiment(), tmp_path, accept=["12345678"])
    assert carry_out(experiment(), tmp_path / "none", accept=["all"]).rounds["code"].nunique() == 1, "none to accept"
    shutil.rmtree(next((tmp_path / "runs").glob(f"{experiment().runs[0].identity}-*")))
    assert carry_out(experiment(), tmp_path, accept=["all"]).rounds["code"].unique().tolist() == ["0" * 8]
    other = experiment(training={**TREE["training"], "lr": 0.01})
    assert carry_out(other, tmp_path, accept=["0" * 8]).rounds["code"].unique().tolist() != ["0" * 8], "other settings"
    code, _, printed = here("run", "--fresh", "--accept", "abc")
    assert code == 2
    assert "--accept: is for runs that are kept" in printed
