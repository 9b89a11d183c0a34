"""Tables of 1,000 runs of 1,000 rounds: from a folder by the command, and from frames.

Seconds, not ratios: they are what a person waits. Run with ``tox -e bench``.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from frames import rounds_of

from prism_bench.analysis.report import table
from prism_bench.base.settings import identity
from prism_bench.harness.results import LABELS, summarise
from prism_bench.harness.run_folder import RunFolder

ROUNDS = 1000
METHODS = [("fedavg", "1")] + [
    (name, keep) for name in ("prism", "orthdrop", "origdrop") for keep in ("0.2", "0.4", "0.6")
]


@pytest.fixture(scope="module")
def rounds():
    """Ten methods, ten partitions, ten seeds, 1,000 rounds: a million rows."""
    runs = pd.concat(
        rounds_of(
            *((*method, seed, [50]) for method in METHODS for seed in range(10)), partition=f"iid clients={clients}"
        )
        for clients in range(10, 20)
    ).reset_index(drop=True)
    frame = runs.loc[runs.index.repeat(ROUNDS)].reset_index(drop=True)
    frame["round"] = np.tile(np.arange(1, ROUNDS + 1), len(runs))
    frame["accuracy"] = np.random.default_rng(0).uniform(10, 90, len(frame))
    return frame


@pytest.fixture(scope="module")
def folder(rounds, tmp_path_factory):
    """The same as the store keeps it."""
    out, manifest = tmp_path_factory.mktemp("results"), []
    columns = ["round", "accuracy", "accuracy_full", "accuracy_trained", "seconds"]
    for number, summary in enumerate(summarise(rounds).to_dict("records")):
        run = RunFolder.of(out, identity({"number": number}), "data", "code")
        run.start({"number": number}, {})
        records = rounds[columns][number * ROUNDS : (number + 1) * ROUNDS].to_json(orient="records", lines=True)
        (run.path / "rounds.jsonl").write_text(records)
        labels = {key: summary.pop(key) for key in LABELS if key in summary}
        run.finish(summary)
        manifest.append({"folder": run.path.name, "label": labels["run"], "labels": labels})
    (out / "experiment.json").write_text(json.dumps({"name": "large", "runs": manifest}))
    return out


def test_the_command(benchmark, report, folder):
    """A process of its own, as a person starts it."""
    command = [sys.executable, "-m", "prism_bench", "table", str(folder)]

    def show():
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "(10)" in done.stdout
        assert done.stderr == ""

    benchmark.pedantic(show, rounds=3, iterations=1)
    if benchmark.stats:
        report("table of a folder, s", benchmark.stats.stats.median, 5)


def test_from_frames(benchmark, report, rounds):
    runs = summarise(rounds)
    assert len(table(runs)) == 100
    benchmark.pedantic(lambda: table(rounds), rounds=3, iterations=1)
    if benchmark.stats:
        report("table of a million rounds, s", benchmark.stats.stats.median, 5)
