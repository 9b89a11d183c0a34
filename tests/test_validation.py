"""Validation data: held out of training, apart from the test set, and all that settings are chosen by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import Field

import prism_bench
from prism_bench.base.errors import BadInput
from prism_bench.data.dataset import Dataset, Source, Split
from prism_bench.data.digits import Digits
from prism_bench.engine.federation import split
from prism_bench.engine.spec import Run

TREE = {
    "data": "digits",
    "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 7},
    "model": {"name": "smallcnn", "width": 8},
    "algorithm": "origdrop",
    "capacity": {"keep": 0.5},
    "training": {"rounds": 2, "active": 3, "epochs": 1, "lr": 0.05},
}


def rows(part: Split) -> list[bytes]:
    return [sample.numpy().tobytes() for sample in part.inputs]


class Numbered(Source):
    """Samples that carry their own number, so that each can be followed; by writer, or not."""

    written: bool = False
    shift: int = Field(0, description="what the test labels are off by")

    def load(self) -> Dataset:
        numbers = torch.arange(400)
        inputs = torch.stack([numbers % 256, numbers // 256], 1).to(torch.uint8).view(-1, 2, 1, 1)
        whole = Split(inputs, numbers % 4)
        train, test = whole[np.arange(300)], whole[np.arange(300, 400)]
        owners = [f"writer {number // 20}" for number in range(300)] if self.written else None
        tested = [f"writer {number % 15}" for number in range(100)] if self.written else None
        test = Split(test.inputs, (test.labels + self.shift) % 4)
        return Dataset(train, test, classes=4, owners=owners, test_owners=tested)


@pytest.mark.parametrize("written", [False, True])
def test_validation_is_apart_from_training_and_from_the_test_set(written):
    source = Numbered(written=written, validation=0.1)
    whole, tested, validated = source.load(), source.read("test"), source.read("validation")
    held = set(rows(validated.test))
    assert len(held) == (30 if written else 32)
    assert held <= set(rows(whole.train))
    assert not held & set(rows(whole.test))
    assert not held & set(rows(tested.train))
    assert rows(tested.train) == rows(validated.train)
    assert len(tested.train) == 300 - len(held)
    assert rows(tested.test) == rows(whole.test)
    if written:
        assert set(validated.test_owners) == set(whole.owners), "some of every writer's"
        for data in (tested, validated):
            assert len(data.owners) == len(data.train)
            assert len(data.test_owners) == len(data.test)
    else:
        assert torch.bincount(validated.test.labels).tolist() == [8, 8, 8, 8], "a tenth of each class's 75"


@pytest.mark.parametrize("on", ["test", "validation"])
def test_no_client_trains_on_validation_data(on):
    run = Run.resolve(TREE | {"data": {"name": "digits", "validation": 0.2}, "evaluation": {"on": on}})
    data, held = run.data.settings.read(on), run.data.settings.read("validation").test
    population = split(run, data)
    trained = {row for client in range(len(population)) for row in rows(data.train[population[client]])}
    assert not set(rows(held)) & trained
    assert sum(population.sizes) <= len(data.train)


def test_the_same_samples_for_every_seed_and_every_share_of_a_group():
    first, second = (Digits(validation=0.1).read("validation") for _ in range(2))
    assert torch.equal(first.test.inputs, second.test.inputs)
    classes = torch.bincount(Digits().load().train.labels)
    held = torch.bincount(first.test.labels)
    assert torch.equal(held, (classes * 0.1).round().long())


def test_a_run_on_validation_never_sees_the_test_set():
    """Whatever the test labels are, what is recorded is the same to the last digit."""
    outcomes = []
    for shift in (0, 1):
        frame = prism_bench.run(
            TREE
            | {
                "data": Numbered(validation=0.2, shift=shift),
                "model": {"name": "resnet18", "width": 4, "blocks": [1]},
                "evaluation": {"on": "validation"},
            },
        )
        outcomes.append(frame[["accuracy", "accuracy_full", "accuracy_worst", "validation_loss"]])
        assert "test_loss" not in frame
    assert outcomes[0].equals(outcomes[1])


def test_validation_without_validation_data_is_an_error():
    with pytest.raises(BadInput, match=r"evaluation.on: 'validation' needs validation data; set data.validation"):
        prism_bench.run(TREE | {"evaluation": {"on": "validation"}})


@pytest.mark.parametrize("share", [1.0, -0.1, "much"])
def test_a_share_that_makes_no_sense(share):
    with pytest.raises(BadInput, match=r"data.validation"):
        Run.resolve(TREE | {"data": {"name": "digits", "validation": share}})


def test_what_is_prepared_on_disk_does_not_depend_on_it(tmp_path):
    from prism_bench.data.cifar10 import CIFAR10
    from prism_bench.data.sources import Raw

    raw = Raw(CIFAR10.forms[0], "somewhere")
    assert CIFAR10(validation=0.1).key(raw) == CIFAR10().key(raw)


def test_evaluation_batches_are_like_the_whole_in_any_order_of_labels():
    """Cyclic labels with as many batches as classes: a stride would give batches of one class each."""
    from prism_bench.core.algorithm import ServerModel
    from prism_bench.engine.evaluate import evaluate

    labels = torch.arange(440) % 10
    data = replace(
        Digits().load(),
        test=Split(torch.zeros(440, 1, 8, 8, dtype=torch.uint8) + labels.view(-1, 1, 1, 1).byte(), labels),
    )
    seen = []

    def forward(state, x):
        seen.append(len(x.flatten(1)[:, 0].unique()))
        return torch.zeros(len(x), 10)

    evaluate(ServerModel(forward, {}), data, 44)
    assert len(seen) == 10
    assert min(seen) >= 8
