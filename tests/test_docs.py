"""What the README says is so, and what is in results/ is what the code would write."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

from prism_bench.analysis import gate
from prism_bench.analysis.view import first_table
from prism_bench.harness.experiment import Experiment, known
from prism_bench.harness.results import Results

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PAGES = [ROOT / "README.md", ROOT / "results" / "FINDINGS.md"]
COMMITTED = sorted(folder.parent.name for folder in (ROOT / "results").glob("*/experiment.json"))


def blocks(page):
    """The tables of a page that stand between the command that prints them and an end: (command, table)."""
    found = re.findall(r"<!-- (prism-bench table .*?) -->\n(.*?)<!-- end -->", page.read_text("utf-8"), flags=re.S)
    assert found, page
    return found


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """results/ as it is in git: without the folders of the runs."""
    return shutil.copytree(
        ROOT / "results", tmp_path_factory.mktemp("git") / "results", ignore=shutil.ignore_patterns("runs")
    )


@pytest.mark.parametrize(("page", "command"), [(page, block[0]) for page in PAGES for block in blocks(page)])
def test_tables_on_pages_are_the_results(page, command, committed, here):
    """To the letter what the command above each prints; PRISM_BENCH_RENEW=1 writes that in its place."""
    [table] = [table for other, table in blocks(page) if other == command]
    _, _, folder, *options = shlex.split(command)
    code, printed, _ = here("table", str(committed / Path(folder).relative_to("results")), *options)
    assert code == 0
    rows = "".join(f"{line}\n" for line in printed.splitlines() if line.startswith("|"))
    if os.environ.get("PRISM_BENCH_RENEW"):
        text = page.read_text("utf-8")
        page.write_text(text.replace(f"<!-- {command} -->\n{table}", f"<!-- {command} -->\n{rows}"), "utf-8")
    else:
        assert table == rows


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_table_has_numbers_from_elsewhere(page):
    """A table with a number in a cell of its own stands below the command that prints it."""
    text = page.read_text("utf-8")
    for command, table in blocks(page):
        text = text.replace(f"<!-- {command} -->\n{table}<!-- end -->", "")
    for line in text.splitlines():
        cells = [cell.strip(" *") for cell in line.strip("|").split("|")] if line.startswith("|") else []
        assert not any(re.search(r"\d", cell) and re.fullmatch(r"[-+−±\d.,%()kM ]+", cell) for cell in cells), line


@pytest.mark.parametrize("experiment", COMMITTED)
def test_committed_results_are_whole_and_up_to_date(experiment, committed):
    """All runs are there, and today's code makes the same table of them."""
    results = Results.open(committed / experiment)
    assert results.missing == []
    assert results.about["command"].startswith("prism-bench run")
    assert results.environments(), "what it ran on is recorded"
    again, kept = first_table(results)[1], pd.read_csv(committed / experiment / "table.csv")
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


def test_the_report_has_every_result():
    """One page that needs nothing else; renewed by `prism-bench report --to results/report.html` in a fresh clone."""
    page = ROOT / "results" / "report.html"
    assert page.stat().st_size < 5e6
    text = page.read_text("utf-8")
    for experiment in COMMITTED:
        assert f"<h2>{experiment}" in text
        table = pd.read_csv(ROOT / "results" / experiment / "table.csv")
        for accuracy in table["accuracy"].dropna() if "accuracy" in table else []:
            assert f"{accuracy:.1f}" in text, experiment


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
