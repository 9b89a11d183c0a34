"""Where a round's time goes, measured on real rounds: its stages, and how much of the machine training uses."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch.profiler import ProfilerActivity, profile

from prism_bench.engine.federation import Federation
from prism_bench.engine.hardware import Stopwatch, threads
from prism_bench.engine.spec import Run
from prism_bench.engine.stages import STAGES
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.jobs import Shelf

FLOPS_PER_MAC = 2
PASSES = 3
"""Forward; backward to the activations and to the weights, each as much again."""


def time_rounds(experiment: Experiment, shelf: Shelf, rounds: int, begin: Callable[[str], None]) -> pd.DataFrame:
    """Profile the runs of the first seed: one row per run and stage, after one round to warm up.

    The stages are those of the middle round by its seconds, so that they add up to ``round``; ``other`` is the rest.
    Every round evaluates. ``peak_gflops`` is what a matrix product reaches with the same threads and device.
    """
    rows = []
    for run in first_seed(experiment):
        begin(experiment.label(run))
        federation = _prepare(run, experiment, shelf, rounds)
        with threads(experiment.execution, federation.step_macs):
            federation.round(0)
            measured = [_round(federation, number) for number in range(1, 1 + rounds)]
            middle = sorted(measured, key=lambda each: each["seconds"])[(rounds - 1) // 2]
            rows += [experiment.labels(run) | row for row in _rows(middle, federation)]
    frame: pd.DataFrame = pd.DataFrame(rows)
    return frame


def trace(experiment: Experiment, shelf: Shelf, file: Path) -> None:
    """Write one round of the first run, after one to warm up, as a Chrome trace with its stages by name."""
    federation = _prepare(experiment.runs[0], experiment, shelf, rounds=1)
    with threads(experiment.execution, federation.step_macs):
        federation.round(0)
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if federation.device.type == "cuda" else [])]
        with profile(activities=kinds) as recorded:
            federation.round(1)
    file.parent.mkdir(parents=True, exist_ok=True)
    recorded.export_chrome_trace(str(file))


def first_seed(experiment: Experiment) -> list[Run]:
    """Another seed takes the same time."""
    return [run for run in experiment.runs if run.seed == experiment.runs[0].seed]


def matrix_product(device: torch.device, tries: int = 8) -> float:
    """FLOP/s of a product of two large float32 matrices, the best of a few: the peak that a program can hope for."""
    size = 1024 if device.type == "cpu" else 8192
    left, right = torch.rand(2, size, size, device=device)
    seconds = []
    for _ in range(tries):
        clock = Stopwatch(device)
        with clock("train"):
            torch.mm(left, right)
        seconds.append(clock.seconds["train"])
    return FLOPS_PER_MAC * size**3 / min(seconds)


def _prepare(run: Run, experiment: Experiment, shelf: Shelf, rounds: int) -> Federation:
    """The run, cut to a round to warm up and those measured, each with its evaluation."""
    short = replace(
        run,
        training=run.training.model_copy(update={"rounds": 1 + rounds}),
        evaluation=run.evaluation.model_copy(update={"every": 1, "probes": ()}),
    )
    return Federation(short, shelf.data(run), shelf.population(run), experiment.execution)


def _round(federation: Federation, number: int) -> dict[str, Any]:
    """A round's record with its seconds in all, its clients, and the samples and MACs (forward) that they train."""
    start = time.perf_counter()
    opened = federation.open(number)
    record = federation.carry_out(opened)
    seconds = time.perf_counter() - start
    schedules = [federation.trainer.schedule(number, client.number) for client in opened.cohort]
    samples = [sum(map(len, schedule.batches)) for schedule in schedules]
    forward = sum(count * paid.macs for count, paid in zip(samples, opened.costs, strict=True))
    return record | {"seconds": seconds, "clients": len(opened.cohort), "samples": sum(samples), "macs": forward}


def _rows(measured: dict[str, Any], federation: Federation) -> list[dict[str, Any]]:
    stages = {stage: measured[f"seconds_{stage}"] for stage in STAGES}
    whole, clients, samples = measured["seconds"], measured["clients"], measured["samples"]
    stages |= {"other": whole - sum(stages.values()), "round": whole}
    reached = PASSES * FLOPS_PER_MAC * measured["macs"] / stages["train"] / 1e9
    peak = matrix_product(federation.device) / 1e9
    about = {
        "clients": clients,
        "samples": samples,
        "train_gflops": reached,
        "peak_gflops": peak,
        "peak_share": 100 * reached / peak,
        "threads": torch.get_num_threads(),
        "at_once": federation.executor.at_once,
        "device": federation.device.type,
        "torch": torch.__version__,
    }
    return [
        {
            "stage": stage,
            "seconds": seconds,
            "share": 100 * seconds / whole,
            "seconds_client": seconds / clients,
            "seconds_sample": seconds / max(1, samples),
        }
        | about
        for stage, seconds in stages.items()
    ]
