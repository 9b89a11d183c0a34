"""Parts of a grid for an array of jobs: together they are the whole, and the last leaves the whole table."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from prism_bench.harness.callbacks import Callback
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.results import STAGES, Results
from prism_bench.harness.runner import carry_out

ROOT = Path(__file__).parent.parent
TREE = {
    "name": "mine",
    "data": {"name": "noise", "shape": [1, 8, 8], "classes": 4, "train": 60, "test": 20},
    "partition": {"name": "iid", "clients": 5},
    "model": {"name": "smallcnn", "width": 5},
    "capacity": {"keep": 0.4},
    "training": {"rounds": 2, "active": 2, "epochs": 1, "batch": 4},
    "grid": {"algorithm": ["fedavg", "prism", "origdrop"]},
    "seeds": 3,
}


def numbers(frame):
    return frame.drop(columns=["seconds", *(f"seconds_{stage}" for stage in STAGES)])


class Begun(Callback):
    def __init__(self):
        self.total, self.labels = 0, []

    def begin(self, experiment, data, population, device):
        self.total = len(experiment.runs)

    def run_done(self, number, label, summary, reused, error):
        assert number < self.total
        self.labels.append((label, reused))


def test_parts_are_the_whole_whatever_their_order(tmp_path):
    whole = carry_out(Experiment.load(TREE), tmp_path / "whole").rounds
    out, seen = tmp_path / "parts", []
    for part in (3, 1, 4, 2):
        watcher = Begun()
        outcome = carry_out(Experiment.load(TREE), out, shard=(part, 4), callbacks=[watcher])
        assert watcher.total == len(watcher.labels) in (2, 3)
        assert not any(reused for _, reused in watcher.labels)
        seen += [label for label, _ in watcher.labels]
        assert len(outcome.rounds) == 2 * len(seen), "what is done so far, by whichever part"
        assert len(Results.open(out).missing) == 9 - len(seen)
    assert len(set(seen)) == len(seen) == 9
    pd.testing.assert_frame_equal(numbers(outcome.rounds), numbers(whole))
    assert {"fedavg, seed 0", "origdrop at 0.4, seed 2"} <= set(seen), "called as in the whole"


def test_one_part_twice_trains_nothing_again_and_fresh_forgets_its_own(tmp_path):
    for fresh, reused in ((False, {False}), (False, {True}), (True, {False})):
        for part in (1, 2):
            watcher = Begun()
            carry_out(Experiment.load(TREE), tmp_path, shard=(part, 2), fresh=fresh, callbacks=[watcher])
            assert {again for _, again in watcher.labels} == reused


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_parts_that_end_at_the_same_time_leave_the_whole_table(tmp_path):
    children = []
    for part in (1, 2, 3):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                torch.set_num_threads(1)
                carry_out(Experiment.load(TREE), tmp_path, shard=(part, 3))
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 3
    (tmp_path / "runs").rename(tmp_path / "moved")
    assert Results.open(tmp_path).missing == []
    assert len(Results.open(tmp_path).rounds()) == 18


@pytest.mark.parametrize("shard", ["0/4", "5/4", "1/0", "4", "a/b", "1/", "/4", "1/4/2", "", "1.0/4"])
def test_a_part_that_is_none_is_an_error(tmp_path, here, shard):
    (tmp_path / "mine.json").write_text(json.dumps(TREE))
    code, _, err = here("run", "mine.json", "--out", "out", f"--shard={shard}")
    assert code == 2
    assert f"--shard {shard}: needs I/N with I from 1 to N, such as 1/4" in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.json"]


def test_more_parts_than_runs_are_an_error(tmp_path, here):
    (tmp_path / "mine.json").write_text(json.dumps(TREE))
    code, _, err = here("run", "mine.json", "--out", "out", "--shard", "1/10")
    assert code == 2
    assert "--shard 1/10: there are 9 runs, so at most 9 parts." in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.json"]


def test_the_array_script_of_the_docs(tmp_path):
    """SLURM's stand-in: what it sets for each job of an array. One is stopped halfway, and queued again."""
    [script] = re.findall(
        r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", (ROOT / "docs" / "scale.md").read_text(), flags=re.S
    )
    [first, last] = map(int, re.search(r"--array=(\d+)-(\d+)", script).groups())
    assert first == 1
    (tmp_path / "mine.yaml").write_text(json.dumps(TREE | {"training": TREE["training"] | {"rounds": 1}}))
    (tmp_path / "array.sh").write_text(script)
    binaries = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for number in [2, *range(1, last + 1)]:
        slurm = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_CPUS_PER_TASK": "1", "SLURM_SUBMIT_DIR": str(tmp_path)}
        done = subprocess.run(
            ["bash", str(tmp_path / "array.sh")],
            cwd=tmp_path, env=os.environ | slurm | {"PATH": binaries}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert Results.open(tmp_path / "results" / "mine").missing == []
    assert (
        Results.open(tmp_path / "results" / "mine").about["command"] == "prism-bench run mine.yaml --out results/mine"
    )
