"""What the README says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

from prism_bench.experiment import Experiment
from prism_bench.report import human, table
from prism_bench.results import COSTS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("experiment", ["quickstart", "scaling"])
def test_the_readmes_tables_are_the_results(experiment):
    """Every row of a committed table stands in the README, digit by digit, and no other row does."""
    block = README.partition(f"<!-- {experiment} -->")[2].partition(f"<!-- /{experiment} -->")[0]
    rows = block.strip().splitlines()[2:]
    results = pd.read_csv(ROOT / "results" / experiment / "table.csv")
    assert len(rows) == len(results)
    for row, result in zip(rows, results.to_dict("records"), strict=True):
        expected = [
            f"{result['accuracy']:.1f} ± {result['std']:.1f} ({result['n']})",
            f"{result['accuracy_full']:.1f}",
            f"{result['accuracy_trained']:.1f}",
            *(f"{human(result[cost])} ({result[f'{cost}_%']:.0f}%)" for cost in COSTS),
        ]
        cells = [cell.strip() for cell in row.strip("| ").split("|")]
        assert cells[-7:] == expected
        assert f"`{result['algorithm']}`" in cells


def test_the_readmes_experiment_is_valid():
    [text] = re.findall(r"```yaml\n(.*?)```", README, flags=re.S)
    loaded = Experiment.load(yaml.safe_load(text), {"algorithm.kappa": 4}, seeds=3)
    assert len(loaded.runs) == 3 * 2 * 3


def test_the_committed_tables_have_todays_columns():
    """A table that the code would write otherwise is out of date."""
    for experiment in ("quickstart", "scaling"):
        folder = ROOT / "results" / experiment
        again = table(pd.read_csv(folder / "rounds.csv"))
        kept = pd.read_csv(folder / "table.csv")
        assert list(again)[: len(list(kept))] == list(kept)
        assert again["accuracy"].tolist() == pytest.approx(kept["accuracy"].tolist())
