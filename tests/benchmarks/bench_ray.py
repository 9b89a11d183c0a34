"""Ray against this process: a round, a grid of short runs, and what a client costs the driver. Wall time, in turns.

Run with ``tox -e ray -- tests/benchmarks/bench_ray.py --override-ini python_files='bench_*.py' --benchmark-enable``.
A Ray of this machine alone is started, with two CPUs. docs/scale.md says what was measured, and what follows from it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from prism_bench.engine.federation import Federation, split
from prism_bench.engine.sections import Execution
from prism_bench.engine.spec import Run
from prism_bench.harness.callbacks import Callback
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.runner import carry_out
from prism_bench.integrations.ray.executor import RayExecutor
from prism_bench.integrations.ray.grid import RayGrid

if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed", allow_module_level=True)

WORKERS = 2


def resnet(keep, on, samples=64, clients=20):
    """A run of ResNet-18 with so many clients per round, each with two batches."""
    run = Run.resolve(
        {
            "data": {"name": "noise", "shape": [3, 32, 32], "train": samples * clients, "test": 32},
            "partition": {"name": "iid", "clients": clients},
            "model": "resnet18",
            "algorithm": "origdrop",
            "capacity": {"keep": keep},
            "training": {"rounds": 1000, "active": clients, "epochs": 1, "batch": 32},
            "evaluation": {"every": 1000},
        }
    )
    data = run.data.settings.load()
    return Federation(run, data, split(run, data), Execution(device="cpu", on=on, threads=WORKERS))


def wall(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def cpu():
    """CPU-seconds of this process and of Ray's workers, so far."""
    ticks = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (entry / "cmdline").read_bytes().startswith(b"ray::Trainer"):
                ticks += sum(map(int, (entry / "stat").read_text().rpartition(")")[2].split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def in_turns(benchmark, repeats, **arms):
    """Seconds and CPU-seconds of each arm, after two turns to warm up."""
    seconds, work = ({name: [] for name in arms} for _ in range(2))

    def turn():
        for name, arm in arms.items():
            before = cpu()
            seconds[name].append(wall(arm))
            work[name].append(cpu() - before)

    for _ in range(2):
        turn()
    benchmark.pedantic(turn, rounds=repeats, iterations=1)
    benchmark.extra_info.update({f"{name}_seconds": values[2:] for name, values in seconds.items()})
    return (*({name: values[2:] for name, values in kind.items()} for kind in (seconds, work)),)


def ratios(mine, theirs):
    """Turn by turn: what slows both arms in one turn cancels out."""
    return [one / other for one, other in zip(mine, theirs, strict=True)]


def test_a_round_of_resnet18(benchmark, report):
    """20 clients at 0.2×, two steps each: two Ray workers of one core against two threads of this process."""
    torch.set_num_threads(WORKERS)
    here = resnet(0.2, "threads")
    there = resnet(0.2, {"name": "ray", "workers": WORKERS})
    rounds = {"threads": iter(range(1000)), "ray": iter(range(1000))}
    try:
        seconds, work = in_turns(
            benchmark,
            9,
            threads=lambda: here.round(next(rounds["threads"])),
            ray=lambda: there.round(next(rounds["ray"])),
        )
    finally:
        there.stop()
    report("round on threads, s", seconds["threads"])
    report("round on Ray / on threads", ratios(seconds["ray"], seconds["threads"]), 1.10)
    report("the same in CPU-seconds, Ray's daemons apart", ratios(work["ray"], work["threads"]), 1.10)


class Clock(Callback):
    """When the first run began and the last one ended."""

    def __init__(self):
        self.first = self.last = None

    def run_started(self, number, run, label, done):
        self.first = self.first or time.perf_counter()

    def run_done(self, number, label, summary, reused, error):
        self.last = time.perf_counter()


@pytest.mark.parametrize("clients", [5, 60])
def test_a_grid_of_short_runs(benchmark, report, tmp_path, clients):
    """What is no work of a run: the share of the workers' time in which none of a run's rounds is under way.

    By two workers from the first run's start to the last one's end, so that Ray's own start counts apart.
    """
    count = int(os.environ.get("BENCH_RUNS", "200"))
    experiment = Experiment.load(
        {
            "name": "short",
            "data": {"name": "noise", "shape": [1, 8, 8], "classes": 4, "train": 12 * clients, "test": 20},
            "partition": {"name": "iid", "clients": clients},
            "model": {"name": "smallcnn", "width": 5},
            "algorithm": "origdrop",
            "capacity": {"keep": 0.4},
            "training": {"rounds": 3, "active": clients, "epochs": 1, "batch": 4},
            "execution": {"threads": 1},
        },
        seeds=count,
    )
    clock, began = Clock(), time.perf_counter()

    def work():
        with RayGrid(cpus=1) as grid:
            return carry_out(experiment, tmp_path, grid=grid, callbacks=[clock])

    outcome = benchmark.pedantic(work, rounds=1, iterations=1)
    assert not outcome.failed
    busy = outcome.rounds["seconds"].sum()
    each = outcome.rounds.groupby("run")["seconds"].sum().median()
    report(f"{count} runs: a run, s", [each])
    report("until the first begins, s", [clock.first - began])
    report("time of the workers that is no run's", [1 - busy / WORKERS / (clock.last - clock.first)], 0.05)


@pytest.mark.parametrize("keep", [0.2, 1.0])
def test_what_a_client_costs_the_driver(benchmark, report, keep):
    """Of ResNet-18, one after another on one thread: to gather and pack it, to unpack and merge it, and to train it."""
    torch.set_num_threads(1)
    one = resnet(keep, {"name": "ray", "workers": WORKERS}, clients=4)
    executor = RayExecutor.make(one.trainer, one.execution, 1)
    opened = one.open(0)
    groups = list(opened.groups(1))
    pack, unpack, train = [], [], []

    def timed(seconds, function, *arguments):
        start = time.perf_counter()
        value = function(*arguments)
        seconds.append(time.perf_counter() - start)
        return value

    def turn():
        for tasks in groups:
            _, arrays = timed(pack, executor.pack, opened, tasks)
            state = {name: torch.tensor(array) for name, array in arrays.items()}
            trained = timed(train, one.trainer.train, 0, tasks, state)
            came = ({name: tensor.numpy() for name, tensor in trained.state.items()}, trained.losses.numpy(), [{}])
            timed(unpack, lambda tasks=tasks, came=came: opened.add(executor._unpack(tasks, came)))

    turn()
    for seconds in (pack, unpack, train):
        seconds.clear()
    benchmark.pedantic(turn, rounds=3, iterations=1)
    sent = executor.pack(opened, groups[0])
    report("bytes there and back, by costs", [opened.costs[0].transfer_bytes])
    report("bytes of the message there / half of that", [2 * len(pickle.dumps(sent)) / opened.costs[0].transfer_bytes])
    report("gather and pack, s", pack)
    report("unpack and merge, s", unpack)
    report("two local steps of 32, s", train)


MEMORY = """
import json, sys
from pathlib import Path

import torch

from prism_bench.engine.federation import Federation, split
from prism_bench.engine.hardware import keep_memory
from prism_bench.engine.sections import Execution
from prism_bench.engine.spec import Run

keep_memory()
torch.set_num_threads(1)
clients = int(sys.argv[1])
run = Run.resolve(
    {
        "data": {"name": "noise", "shape": [1, 8, 8], "train": 20_000, "test": 32},
        "partition": {"name": "iid", "clients": 10_000},
        "model": {"name": "smallcnn", "width": 64},
        "algorithm": "origdrop",
        "capacity": {"keep": 0.4},
        "training": {"rounds": 100, "active": clients, "epochs": 1, "batch": 2},
        "evaluation": {"every": 100},
    }
)
data = run.data.settings.load()
execution = Execution(device="cpu", at_once=8, on={"name": "ray", "workers": 2})
one = Federation(run, data, split(run, data), execution)
for round in range(3):
    if round == 1:  # the first one warms up
        Path("/proc/self/clear_refs").write_text("5")
    one.round(round)
peak = next(1024 * int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
one.stop()
print(json.dumps({"peak": peak, "client": one.client_costs.transfer_bytes / 2}))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux to reset the peak")
def test_memory_of_the_driver(benchmark, report):
    """10,000 clients in a round against 100: the driver's peak, with all that a process of torch and Ray holds."""

    def measure(clients):
        command = [sys.executable, "-c", MEMORY, str(clients)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        return json.loads(done.stdout.splitlines()[-1])

    few = measure(100)
    many = benchmark.pedantic(measure, (10_000,), rounds=1, iterations=1)
    report("peak with 100 clients, MB", [few["peak"] / 1e6])
    report("bytes of a client's sub-model", [few["client"]])
    report("10,000 clients / 100", [many["peak"] / few["peak"]], 1.2)
