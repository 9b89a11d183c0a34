"""What CI watches: stages of a round, each timed in CPU-seconds of one thread, as ratios to the calibration loop.

`tox` compares them with results/baselines/benchmarks.csv.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from prism_bench.analysis.report import table
from prism_bench.core.algorithm import Client
from prism_bench.core.orthogonal import svd
from prism_bench.core.submodel import Merge, gather, gather_stacked
from prism_bench.engine.evaluate import evaluate
from prism_bench.engine.round import Task
from prism_bench.harness.runner import run
from prism_bench.testing import federation, tiny_data

CNN = {"name": "cnn", "width": 32}


@pytest.fixture
def cpu(benchmark):
    """CPU-seconds: what other programs do meanwhile matters less."""
    benchmark._timer = time.process_time

    def measure(work):
        benchmark.pedantic(work, rounds=9, iterations=1, warmup_rounds=2)

    return measure


def test_calibration(cpu):
    """Convolutions, small matrix products and Python, in about the mix of a local step."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(32, 16, 14, 14, generator=generator)
    kernels = torch.randn(16, 16, 3, 3, generator=generator)
    square = torch.randn(64, 64, generator=generator)

    def work():
        for _ in range(20):
            torch.nn.functional.conv2d(images, kernels, padding=1).relu_()
            for _ in range(20):
                torch.mm(square, square)
            sum(range(10_000))

    cpu(work)


def local_step(algorithm, keep, clients, model=CNN, data=None):
    data = data or tiny_data((1, 28, 28), 10, 32 * clients)
    one = federation(algorithm, None, model, keep, data, (32,) * clients, batch=32)
    selections = [one.algorithm.select(0, [Client(number, keep)])[0][0] for number in range(clients)]
    state = gather_stacked(one.algorithm.state, one.algorithm.layout, selections)
    tasks = [Task(Client(number, keep), selection) for number, selection in enumerate(selections)]
    return lambda: one.trainer.train(0, tasks, state)


def test_local_step_of_the_full_model(cpu):
    cpu(local_step("fedavg", 1.0, 1))


def test_local_step_of_a_fifth(cpu):
    cpu(local_step("prism", 0.2, 1))


def test_local_step_of_eight_fifths(cpu):
    cpu(local_step("prism", 0.2, 8))


def test_local_step_of_the_lstm(cpu):
    lstm = {"name": "lstm", "embedding": 32, "hidden": 64}
    cpu(local_step("fedavg", 1.0, 1, lstm, tiny_data((100,), 2, 32, vocabulary=200)))


def test_evaluation(cpu):
    one = federation("fedavg", None, CNN, 1.0, tiny_data((1, 28, 28), 10, 48))
    images = tiny_data((1, 28, 28), 10, 500)
    cpu(lambda: evaluate(one.algorithm.full_model(), replace(images, test=images.train), 500))


def test_create_and_merge(cpu):
    algorithm = federation("prism", None, CNN, 0.2, tiny_data((1, 28, 28), 10, 48)).algorithm
    cohort = [Client(number, 0.2) for number in range(20)]

    def work():
        merge = Merge(algorithm.state, algorithm.layout)
        for [selection] in algorithm.select(0, cohort):
            merge.add(selection, gather(algorithm.state, algorithm.layout, selection))
        merge.result()

    cpu(work)


def test_refresh(cpu):
    matrix = torch.randn(128, 1152, generator=torch.Generator().manual_seed(0))
    cpu(lambda: svd(matrix))


def test_table(cpu):
    rounds = run("ci", seeds=1, overrides={"training.rounds": 2})
    cpu(lambda: table(rounds))
