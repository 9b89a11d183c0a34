"""What the harness itself costs: the rest of a run beside its stages, and the time until --help."""

from __future__ import annotations

import subprocess
import sys
import time

from prism_bench.engine.stages import STAGES
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.runner import carry_out


def test_overhead_of_a_quickstart_run(benchmark, report, tmp_path):
    """Everything that is not create, train, merge, refresh or evaluate: checkpoints, records, progress, seeds.

    By the middle round of PriSM at 0.4: set-up and warming up belong to the first.
    """
    experiment = Experiment.load("quickstart", {"algorithm": "prism", "capacity.keep": 0.4}, seeds=1)
    frames = []
    benchmark.pedantic(
        lambda: frames.append(carry_out(experiment, tmp_path, fresh=True).rounds), rounds=3, iterations=1
    )
    shares = []
    for frame in frames:
        rounds = frame[frame["round"] > 1]
        stages = rounds[[f"seconds_{stage}" for stage in STAGES]].sum(axis=1)
        shares.append(float((1 - stages / rounds["seconds"]).median()))
    report("harness / round", sorted(shares)[1], 0.02)


def test_help(benchmark, report):
    """A process of its own; torch and pandas are not imported for it."""

    def call():
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "prism_bench", "--help"], capture_output=True, check=True)
        return time.perf_counter() - start

    seconds = []
    benchmark.pedantic(lambda: seconds.append(call()), rounds=5, iterations=1, warmup_rounds=1)
    report("prism-bench --help, s", sorted(seconds)[len(seconds) // 2], 0.5)
