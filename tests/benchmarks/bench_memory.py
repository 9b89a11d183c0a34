"""Peak memory of a round against what it must hold, each in a process of its own.

Counted is the server's (its tensors, the merge's sums and counts of holders) and, for each client that trains at the
same time, what `costs` says: parameters, gradients and momentum, and the activations kept for the backward pass.

*In use* is the resident set with an allocator that gives every large block back at once; *resident* is the same
as in a run, where freed memory is kept for the next tensor. Evaluation is left out:
its batch is a setting of its own.
Run with ``tox -e bench -- tests/benchmarks/bench_memory.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROUND = """
import ctypes, gc, json, sys
from pathlib import Path

import torch

from prism_bench.base import registry
from prism_bench.engine.federation import Federation, split
from prism_bench.engine.hardware import keep_memory
from prism_bench.engine.sections import Execution
from prism_bench.engine.spec import Run

keep_memory()
model, algorithm, keep, at_once = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
usual = registry.load("models", model, "model.name").usual
noise = {"name": "noise", "shape": list(usual.shape), "classes": usual.classes, "vocabulary": usual.vocabulary}
run = Run.resolve(
    {
        "data": noise | {"train": 2 * at_once * 64, "test": 32},
        "partition": {"name": "iid", "clients": 2 * at_once},
        "model": model,
        "algorithm": algorithm,
        "capacity": {"keep": keep},
        "training": {"rounds": 100, "active": 2 * at_once, "epochs": 1, "batch": 32},
        "evaluation": {"every": 100},
    }
)
data = run.data.settings.load()
one = Federation(run, data, split(run, data), Execution(device="cpu", at_once=at_once))


def size(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def status(key):
    return next(1024 * int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))


merge = one.open(0).merge
state, sums = size(merge.state), size(merge.change) + size(merge.holders)
del merge
costs = one.client_costs
client = 3 * 4 * costs.parameters + costs.activation_bytes
for round in range(2):  # the first one warms up: kernels are compiled, threads started
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    one.round(round)
    peak = state + status("VmHWM") - before
print(json.dumps({"peak": peak, "server": state + sums, "client": client}))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux to reset the peak")
@pytest.mark.parametrize(
    ("model", "algorithm", "keep", "at_once"),
    [
        ("resnet18", "prism", 0.2, 1),
        ("resnet18", "prism", 0.2, 4),
        ("resnet18", "fedavg", 1, 1),
        ("cnn", "fedavg", 1, 1),
        ("cnn", "fedavg", 1, 4),
        ("lstm", "fedavg", 1, 1),
        ("lstm", "prism", 0.2, 1),
    ],
)
def test_peak_of_a_round(benchmark, report, model, algorithm, keep, at_once):
    def measure(**environment):
        command = [sys.executable, "-c", ROUND, model, algorithm, str(keep), str(at_once)]
        variables = os.environ | {"OMP_NUM_THREADS": "1"} | environment
        return json.loads(subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout)

    resident = benchmark.pedantic(measure, rounds=1, iterations=1)
    in_use = measure(MALLOC_MMAP_THRESHOLD_="16384")
    counted = resident["server"] + at_once * resident["client"]
    benchmark.extra_info.update(resident, in_use=in_use["peak"], counted=counted)
    report("in use / counted", in_use["peak"] / counted, 1.3)
    report("resident / counted", resident["peak"] / counted, 1.3)
