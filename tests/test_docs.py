"""What the README says is so, and what is in results/ is what the code would write."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

from prism_bench import gate
from prism_bench.experiment import Experiment, known
from prism_bench.report import view_of
from prism_bench.results import Results

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
COMMITTED = sorted(folder.parent.name for folder in (ROOT / "results").glob("*/experiment.json"))


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """results/ as it is in git: without the folders of the runs."""
    return shutil.copytree(
        ROOT / "results", tmp_path_factory.mktemp("git") / "results", ignore=shutil.ignore_patterns("runs")
    )


@pytest.mark.parametrize("experiment", re.findall(r"<!-- (\w+) -->", README))
def test_the_readmes_tables_are_the_results(experiment, committed, here):
    """To the letter, what `prism-bench table EXPERIMENT --format markdown` prints."""
    block = README.partition(f"<!-- {experiment} -->\n")[2].partition(f"<!-- /{experiment} -->")[0]
    code, printed, _ = here("table", str(committed / experiment), "--format", "markdown")
    assert code == 0
    rows = [line for line in printed.splitlines() if line.startswith("|")]
    assert block.splitlines() == rows


@pytest.mark.parametrize("experiment", COMMITTED)
def test_committed_results_are_whole_and_up_to_date(experiment, committed):
    """All runs are there, and today's code makes the same table of them."""
    results = Results.open(committed / experiment)
    assert results.missing == []
    assert results.about["command"].startswith("prism-bench run")
    assert results.environments(), "what it ran on is recorded"
    again, kept = view_of(results.about).frame(results.runs()), pd.read_csv(committed / experiment / "table.csv")
    assert list(again) == list(kept)
    numbers = again.select_dtypes("number").columns.difference(["keep"])
    pd.testing.assert_frame_equal(again[numbers], kept[numbers], check_dtype=False)


def test_every_result_has_its_command():
    listed = (ROOT / "results" / "README.md").read_text("utf-8")
    for folder in (ROOT / "results").iterdir():
        if folder.is_dir():
            assert f"`{folder.name}`" in listed, folder.name
    for experiment in COMMITTED:
        assert Results.open(ROOT / "results" / experiment).about["command"] in listed


def test_the_readmes_experiment_is_valid():
    [text] = re.findall(r"```yaml\n(.*?)```", README, flags=re.S)
    loaded = Experiment.load(yaml.safe_load(text), {"algorithm.kappa": 4}, seeds=3)
    assert len(loaded.runs) == 3 * 2 * 3


def test_the_readmes_python_runs(committed, monkeypatch, tmp_path):
    [text] = re.findall(r"```python\n(import prism_bench.*?)```", README, flags=re.S)
    monkeypatch.chdir(committed.parent)
    exec(text.replace("seeds=3", "seeds=2").replace('"training.rounds": 20', '"training.rounds": 1'))
    assert Path("costs.png").stat().st_size > 10_000


def test_the_readme_names_every_experiment():
    for name in set(known()) - {"quickstart"}:
        assert f"`{name}`" in README or f"run {name}" in README, name


@pytest.mark.parametrize("file", sorted((ROOT / "results" / "baselines").glob("*.csv")), ids=lambda file: file.name)
def test_baselines_can_be_read(file):
    assert len(gate.read(file)) > 5
