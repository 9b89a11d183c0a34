"""Local training, sub-model creation, merge, refresh and evaluation, as ratios; peak memory of a round.

Random images: only time and memory are looked at. Run with ``tox -e bench``.
"""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from prism_bench.base import registry
from prism_bench.core.algorithm import Client
from prism_bench.core.orthogonal import svd
from prism_bench.core.submodel import gather_stacked
from prism_bench.engine.evaluate import evaluate
from prism_bench.engine.local import Schedule, train
from prism_bench.testing import federation, tiny_data

RESNET = {"name": "resnet18"}


def usual_data(model, samples):
    """Random samples of the shape that the model is known for."""
    usual = registry.load("models", model["name"], "model.name").usual
    return tiny_data(usual.shape, usual.classes, samples, vocabulary=usual.vocabulary)


def local_steps(algorithm, keep, model=RESNET, clients=1, steps=1):
    """Steps of batch 32 of so many clients in one pass."""
    one = federation(algorithm, None, model, keep, usual_data(model, 32 * clients), (32,) * clients, batch=32)
    selections = [one.algorithm.select(0, [Client(number, keep)])[0][0] for number in range(clients)]
    state = gather_stacked(one.algorithm.state, one.algorithm.layout, selections)
    samples = [one.population[number] for number in range(clients)]
    work = [Schedule([each] * steps, np.random.default_rng(0), each) for each in samples]
    forward = one.trainer.forward({name: tuple(tensor.shape[1:]) for name, tensor in state.items()})
    return lambda: train(one.algorithm, state, work, one.data, one.run.training, 0.0, forward=forward)


def test_local_training_of_parts(alternate, report):
    """Sub-models' steps against the full model's; the MACs' share is 4.7% at 0.2× and 18.4% at 0.4×."""
    seconds = alternate(
        full=local_steps("fedavg", 1.0, steps=3),
        fifth=local_steps("prism", 0.2, steps=30),
        two_fifths=local_steps("prism", 0.4, steps=9),
    )
    report("ResNet-18: 0.2× step / full step", seconds["fifth"] / 10 / seconds["full"], 0.08)
    report("ResNet-18: 0.4× step / full step", seconds["two_fifths"] / 3 / seconds["full"])


def test_recomputed_blocks(alternate, report):
    """What less activation memory costs in time; by count of operations a third more."""
    again = RESNET | {"recompute": True}
    seconds = alternate(
        full=local_steps("fedavg", 1.0, steps=2),
        full_again=local_steps("fedavg", 1.0, again, steps=2),
        part=local_steps("orthdrop", 0.2, steps=4),
        part_again=local_steps("orthdrop", 0.2, again, steps=4),
    )
    report("ResNet-18: step with recomputed blocks / without", seconds["full_again"] / seconds["full"])
    report("ResNet-18, OrthDrop 0.2×: recomputed blocks / without", seconds["part_again"] / seconds["part"])


def test_local_training_of_a_fifth_of_the_lstm(alternate, report):
    """500 words, batch 32: the recurrence is a loop over steps in both."""
    model = {"name": "lstm"}
    seconds = alternate(full=local_steps("fedavg", 1.0, model), fifth=local_steps("prism", 0.2, model))
    report("LSTM: 0.2× step / full step", seconds["fifth"] / seconds["full"], 0.4)


def test_overhead_of_sub_models(benchmark, report):
    """Create + merge + refresh in a round of 20 clients at 0.2×, 32 steps each, as the paper's; the second of two."""
    one = federation(
        "prism", None, RESNET, 0.2, usual_data(RESNET, 20 * 512), (512,) * 20, at_once=1, batch=32, epochs=2
    )
    records = []
    benchmark.pedantic(lambda: records.append(one.round(len(records))), rounds=2, iterations=1)
    record = records[-1]
    stages = {stage: record[f"seconds_{stage}"] for stage in ("create", "train", "merge", "refresh")}
    benchmark.extra_info.update(stages)
    overhead = stages["create"] + stages["merge"] + stages["refresh"]
    report("(create + merge + refresh) / round", overhead / (overhead + stages["train"]), 0.03)


@pytest.mark.parametrize(("rows", "columns"), [(512, 4608), (64, 576)])
def test_refresh_of_one_layer(alternate, report, rows, columns):
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    seconds = alternate(gram=lambda: svd(matrix), full=lambda: torch.linalg.svd(matrix, full_matrices=False))
    report(f"{rows}×{columns}: Gram matrix / full SVD", seconds["gram"] / seconds["full"], 0.5)


class PlainBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs, track_running_stats=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs, track_running_stats=False)
        self.shortcut = nn.Sequential()
        if stride > 1:
            norm = nn.BatchNorm2d(outputs, track_running_stats=False)
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def plain_resnet18():
    """By hand, with torch's own modules."""
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64, track_running_stats=False), nn.ReLU()]
    blocks = [PlainBlock(64, 64, 1), PlainBlock(64, 64, 1)]
    for width in (128, 256, 512):
        blocks += [PlainBlock(width // 2, width, 2), PlainBlock(width, width, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)).eval()


def test_evaluation(alternate, report):
    """The full ResNet-18 on 500 images with the default batch, against plain torch in each of several batch sizes."""
    one = federation("fedavg", None, RESNET, 1.0, usual_data(RESNET, 500), (32,) * 4)
    one.data = replace(one.data, test=one.data.train)
    images, plain = one.data.prepare(one.data.train.inputs).contiguous(), plain_resnet18()

    @torch.inference_mode()
    def by_hand(batch):
        for part in images.split(batch):
            plain(part).argmax(1)

    batches = (25, 50, 100, 250, 500)
    arms = {f"plain_{batch}": partial(by_hand, batch) for batch in batches}
    seconds = alternate(ours=lambda: evaluate(one.algorithm.full_model(), one.data, 500), **arms)
    best = min(seconds, key=lambda name: seconds[name].median if name != "ours" else math.inf)
    ratio = seconds["ours"] / seconds[best]
    report(f"evaluation / plain torch in its best batch ({best.removeprefix('plain_')})", ratio, 1)


@pytest.mark.parametrize(
    ("model", "algorithm", "keep"),
    [("smallcnn", "fedavg", 1.0), ("cnn", "prism", 0.2), ("cnn", "fedavg", 1.0), ("resnet18", "prism", 0.2)],
)
def test_clients_at_once(alternate, report, model, algorithm, keep):
    """Where stacking eight clients pays on this machine and where it does not: what 'auto' has to get right."""
    one_by_one = local_steps(algorithm, keep, {"name": model})
    seconds = alternate(
        stacked=local_steps(algorithm, keep, {"name": model}, clients=8),
        loop=lambda: [one_by_one() for _ in range(8)],
    )
    report("stacked / one by one", seconds["stacked"] / seconds["loop"])


PEAK = """
import sys
from pathlib import Path
from prism_bench.testing import federation, tiny_data
cohort = int(sys.argv[1])
data = tiny_data((3, 32, 32), 10, 32 * cohort)
one = federation("prism", None, {"name": "resnet18"}, 0.2, data, (32,) * cohort, at_once=1, batch=32)
Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew: setting up is not the round
one.round(0)
print(*[line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")])
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux to reset the peak")
def test_peak_memory_does_not_grow_with_the_cohort(benchmark, report):
    """A round of 100 clients against one of 20, one training at a time."""

    def peak(cohort):
        command = [sys.executable, "-c", PEAK, str(cohort)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    small = peak(20)
    large = benchmark.pedantic(peak, args=(100,), rounds=1, iterations=1)
    benchmark.extra_info.update(kib_of_20=small, kib_of_100=large)
    report("peak of 100 / peak of 20", large / small, 1.2)
