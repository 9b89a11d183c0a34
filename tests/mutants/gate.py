"""The gate on some runs of `ci`, for mutants: equal to the same code's numbers without a defect, or not."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from prism_bench.analysis import gate
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.runner import carry_out


def equal_to(clean: Path, algorithm: str) -> int:
    """0 where the numbers of that algorithm's runs, first seed, are the file's; where there is none, it is written."""
    experiment = Experiment.load("ci", seeds=1)
    experiment = replace(experiment, runs=[run for run in experiment.runs if run.algorithm.name == algorithm])
    with tempfile.TemporaryDirectory() as folder:
        failed = carry_out(experiment, Path(folder)).failed
        if failed:
            print(failed)
            return 1
        now = gate.numbers_of(Path(folder))
    now = now[now["seed"] != ""]  # what is timed is not equal twice
    if not clean.exists():
        now.to_csv(clean, index=False)
        return 0
    compared = gate.compare(gate.read(clean), now)
    failing = compared[gate.fails(compared)]
    print(failing[["algorithm", "round", "metric", "value", "now", "verdict"]].to_string())
    return int(len(failing) > 0)
