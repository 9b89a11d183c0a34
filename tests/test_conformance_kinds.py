"""The conformance suites on every registered plugin, and that each check catches what it is there for."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import numpy as np
import pytest
import raw_data
import torch
import torch.nn.functional as F
from shared import MODELS

from prism_bench.base import registry
from prism_bench.plugin import (
    Axis,
    Conv2d,
    Dataset,
    Dropout,
    Executor,
    Layer,
    Linear,
    Model,
    Network,
    Partitioner,
    Population,
    Sampler,
    Signature,
    Source,
    Split,
)
from prism_bench.testing import (
    DATASET_CHECKS,
    EXECUTOR_CHECKS,
    MODEL_CHECKS,
    PARTITION_CHECKS,
    SAMPLER_CHECKS,
    tiny_data,
)


def every(checks):
    return pytest.mark.parametrize("check", checks, ids=[check.__name__.removeprefix("check_") for check in checks])


def catches(checks, plugin, message, settings=None):
    """At least one of the checks must fail, and say that."""
    errors = []
    for check in checks:
        try:
            check(plugin, settings)
        except Exception as error:
            errors.append(str(error))
    assert any(message in error for error in errors), errors or "every check passes"


# Models ---------------------------------------------------------------------------------------------------------------

SMALL = {model["name"]: {key: value for key, value in model.items() if key != "name"} for model in MODELS}


@every(MODEL_CHECKS)
@pytest.mark.parametrize("model", registry.find("models"))
def test_models(model, check):
    check(model, SMALL.get(model))


@every(MODEL_CHECKS)
@pytest.mark.parametrize(
    ("model", "settings"), [("smallcnn", {"width": 6}), ("resnet18", {**SMALL["resnet18"], "recompute": True})]
)
def test_variants_of_models(model, settings, check):
    check(model, settings)


class Convolutions(Network):
    """Two convolutions that are added, and whatever is done to the features before the classifier."""

    def __init__(self, data, tied=True, extra=None):
        super().__init__()
        stem = Axis("stem", 8)
        other = stem if tied else Axis("other", 8)
        self.stem = Conv2d(Axis("input", data.shape[0], "fixed"), stem, 3)
        self.inner = Conv2d(stem, other, 3)
        self.classifier = Linear(other, Axis("classes", data.classes, "fixed"))
        self.extra = extra

    def forward(self, x):
        x = self.stem(x)
        x = F.relu(x + self.inner(x)).mean((2, 3))
        return self.classifier(self.extra(x) if self.extra else x)


class Built(Model):
    """A model to be told how to build."""

    usual = Signature((1, 8, 8), 4)


class Residual(Built):
    """As it should be."""

    def build(self, data):
        return Convolutions(data)


class TwoAxes(Built):
    """A residual network that ties no axes."""

    def build(self, data):
        return Convolutions(data, tied=False)


class GlobalNoise(torch.nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, self.training)


class GlobalDropout(Built):
    """Dropout by torch's own generator."""

    def build(self, data):
        return Convolutions(data, extra=GlobalNoise())


class AlwaysDropout(Built):
    """Dropout in evaluation, too."""

    def build(self, data):
        return Convolutions(data, extra=torch.nn.functional.dropout)


class NoDropout(Built):
    """A module that draws nothing, and says that it does."""

    def build(self, data):
        return Convolutions(data, extra=Dropout(0.0))


class Shift(Layer):
    """A shift whose axes are told wrongly, or not at all."""

    def __init__(self, dims):
        super().__init__()
        self.declare(shift=(8,))
        self.own = dims

    def dims(self):
        return self.own

    def initial(self, rng):
        return {"shift": torch.zeros(8)}

    def forward(self, x):
        return x + self.shift[: x.shape[-1]]


class WithoutAxis(Built):
    """A layer along the features that says nothing of it."""

    def build(self, data):
        return Convolutions(data, extra=Shift({"shift": (None,)}))


class Unnamed(Built):
    """A parameter whose axes are unknown."""

    def build(self, data):
        return Convolutions(data, extra=Shift({}))


class FixedSize(Built):
    """A forward that knows the full size."""

    def build(self, data):
        return Convolutions(data, extra=EightFeatures())


class EightFeatures(torch.nn.Module):
    def forward(self, x):
        return x.view(-1, 8)


class Buffered(Built):
    """Running statistics, which no client would get."""

    def build(self, data):
        network = Convolutions(data)
        network.register_buffer("seen", torch.zeros(1))
        return network


class Mean(torch.nn.Module):
    def forward(self, x):
        return x / x.shape[-1]


class OfItsSize(Built):
    """What it computes depends on how many features are there."""

    def build(self, data):
        return Convolutions(data, extra=Mean())


class SeedlessWeights(Built):
    """Weights that no seed decides."""

    def build(self, data):
        return Convolutions(data)

    def initial(self, network, rng):
        return {name: torch.randn(tensor.shape) for name, tensor in network.named_parameters()}


class Undescribed(Built):
    def build(self, data):
        return Convolutions(data)


@every(MODEL_CHECKS)
def test_a_model_by_its_class(check):
    check(Residual)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (TwoAxes, "two axes that an addition ties together are declared as two"),
        (GlobalDropout, "prism_bench.plugin.Dropout"),
        (AlwaysDropout, "evaluation mode is not deterministic"),
        (NoDropout, "leave the module out where it does nothing"),
        (WithoutAxis, "a tensor that goes along it does not say so"),
        (Unnamed, "no axes are known of ['extra.shift']"),
        (FixedSize, "a plain sub-model does not run"),
        (OfItsSize, "computes something else than the whole"),
        (Buffered, "values that are no parameters"),
        (SeedlessWeights, "draw from the generator"),
        (Undescribed, "needs a docstring"),
    ],
)
def test_mistakes_of_models_are_caught(model, message):
    catches(MODEL_CHECKS, model, message)


# Partitions -----------------------------------------------------------------------------------------------------------


@every(PARTITION_CHECKS)
@pytest.mark.parametrize("partition", registry.find("partitions"))
def test_partitions(partition, check):
    check(partition, {"alpha": 0.5} if partition == "dirichlet" else None)


class Whole(Partitioner):
    """Every sample to a client drawn for it, which may leave a client without; as an owner, where told."""

    def owners(self, labels, rng):
        return np.arange(len(labels)) % self.clients

    def split(self, labels, owners, rng):
        return Population.from_owners(self.owners(labels, rng), self.clients)


class EmptyClient(Whole):
    """The last client has nothing."""

    def owners(self, labels, rng):
        return np.arange(len(labels)) % (self.clients - 1)


class Seedless(Whole):
    """No seed decides."""

    def owners(self, labels, rng):
        return np.random.permutation(super().owners(labels, rng))


class Sorting(Whole):
    """Sorts what others read."""

    def owners(self, labels, rng):
        labels.sort()
        return super().owners(labels, rng)


class Twice(Partitioner):
    """Every sample twice."""

    def split(self, labels, owners, rng):
        order = np.concatenate([np.arange(len(labels))] * 2)
        return Population(order, np.linspace(0, len(order), self.clients + 1).astype(int))


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (Whole, "must be a BadInput"),
        (EmptyClient, "client 6 has no sample"),
        (Seedless, "the same generator gave another population"),
        (Sorting, "changes the labels"),
        (Twice, "a sample is in the population twice"),
    ],
)
def test_mistakes_of_partitions_are_caught(partition, message):
    catches(PARTITION_CHECKS, partition, message)


# Data sets ------------------------------------------------------------------------------------------------------------


def fedml_clients():
    """What a FedML loader gives."""
    from prism_bench.integrations.fedml.data import to_fedml

    data = tiny_data(samples=24)
    return to_fedml(data, Population.from_owners(np.arange(24) % 3, 3), batch=4)


def settings_of(data, root):
    """What a data set needs to be loaded: files that stand for the real ones, or a loader."""
    if data == "cifar10":
        raw_data.cifar_hub(root, raw_data.cifar(12), raw_data.cifar(8, seed=1))
    elif data == "cifar100":
        raw_data.cifar100_hub(root, raw_data.cifar(12, classes=100), raw_data.cifar(8, seed=1, classes=100))
    elif data == "femnist":
        raw_data.femnist_hub(root, *raw_data.handwriting([60, 55, 70]))
    elif data == "imdb":
        reviews = [(number % 2, f"a film as good as number {number}") for number in range(40)]
        raw_data.imdb_hub(root, reviews[:20], reviews[20:])
    elif data == "fedml":
        return {"loader": f"{__name__}:fedml_clients"}
    elif data == "noise":
        return {"train": 100, "test": 20}
    else:
        return {}
    return {"root": root}


@every(DATASET_CHECKS)
@pytest.mark.parametrize("data", registry.find("datasets"))
def test_data_sets(data, check, tmp_path, monkeypatch):
    monkeypatch.setenv("PRISM_BENCH_TRUST", __name__)
    check(data, settings_of(data, tmp_path))


@every(DATASET_CHECKS)
def test_words(check):
    check("noise", {"train": 100, "test": 20, "shape": [7], "vocabulary": 30})


class Some(Source):
    """Some images, as a data set with a mistake would have them."""

    def images(self, count):
        return torch.zeros(count, 1, 8, 8, dtype=torch.uint8)

    def labels(self, count):
        return torch.arange(count) % 4

    def load(self):
        train, test = (Split(self.images(count), self.labels(count)) for count in (20, 10))
        return Dataset(train, test, classes=4)


class FiveLabels(Some):
    """One class too many."""

    def labels(self, count):
        return torch.arange(count) % 5


class ShortLabels(Some):
    """Labels in bytes."""

    def labels(self, count):
        return super().labels(count).to(torch.uint8)


class Changing(Some):
    """Other images each time."""

    def images(self, count):
        return torch.randint(256, (count, 1, 8, 8)).to(torch.uint8)


class Flat(Some):
    """Images without channels."""

    def images(self, count):
        return super().images(count).flatten(1)


class Online(Some):
    """Asks the network."""

    def images(self, count):
        import urllib.error
        import urllib.request

        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen("http://127.0.0.1:9/images")
        return super().images(count)


class Ownerless(Some):
    """Fewer owners than samples."""

    def load(self):
        return Dataset(**(vars(super().load()) | {"owners": ["ann", "bob"]}))


@every(DATASET_CHECKS)
def test_a_data_set_by_its_class(check):
    check(Some)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (FiveLabels, "labels are 0 to 4, of 4 classes"),
        (ShortLabels, "labels must be a row of int64"),
        (Changing, "loaded again, the data is another"),
        (Flat, "a sample is (64,)"),
        (Online, "loading connects to ('127.0.0.1', 9)"),
        (Ownerless, "20 training samples have 2 owners"),
    ],
)
def test_mistakes_of_data_sets_are_caught(data, message):
    catches(DATASET_CHECKS, data, message)


# Samplers -------------------------------------------------------------------------------------------------------------


@every(SAMPLER_CHECKS)
@pytest.mark.parametrize("sampler", registry.find("samplers"))
def test_samplers(sampler, check):
    check(sampler)


class Repeating(Sampler):
    """Draws with replacement."""

    def draw(self, count, known, rng):
        return rng.integers(0, len(known), count)


class FromOne(Sampler):
    """Counts clients from one."""

    def draw(self, count, known, rng):
        return 1 + rng.permutation(len(known))[:count]


class Alone(Sampler):
    """No seed decides."""

    def draw(self, count, known, rng):
        return np.random.permutation(len(known))[:count]


class TooFew(Sampler):
    """Only clients of the first capacity."""

    def draw(self, count, known, rng):
        return np.flatnonzero(np.zeros(len(known)) if known.capacity is None else known.capacity == 0)[:count]


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (Repeating, "a client was drawn twice"),
        (FromOne, "there is no such client"),
        (Alone, "the same generator drew other clients"),
        (TooFew, "12 of 12 clients were asked for, and (6,) came"),
    ],
)
def test_mistakes_of_samplers_are_caught(sampler, message):
    catches(SAMPLER_CHECKS[1:2] if sampler is TooFew else SAMPLER_CHECKS, sampler, message)


# Executors ------------------------------------------------------------------------------------------------------------


@every(EXECUTOR_CHECKS)
@pytest.mark.parametrize("executor", sorted(registry.find("executors").keys() - {"ray"}))  # has tests of its own
def test_executors(executor, check):
    check(executor)


class OneAfterAnother(Executor):
    """One after another; the order and what is handed over are for others to get wrong."""

    def order(self, tasks):
        return tasks

    def tensors(self, round, task):
        return round.gather([task])

    def train(self, round):
        for task in self.order(round.tasks):
            yield self.trainer.train(round.number, [task], self.tensors(round, task))


class Backwards(OneAfterAnother):
    """The last first."""

    def order(self, tasks):
        return tasks[::-1]


class Forgetful(OneAfterAnother):
    """Leaves out the last."""

    def order(self, tasks):
        return tasks[:-1]


class AnotherRound(OneAfterAnother):
    """Trains as in the first round, always."""

    def train(self, round):
        for task in round.tasks:
            yield self.trainer.train(0, [task], round.gather([task]))


class InPlace(OneAfterAnother):
    """Trains the server's own tensors."""

    def tensors(self, round, task):
        if task.client.keep < 1:
            return super().tensors(round, task)
        return {name: tensor[None] for name, tensor in round.merge.state.items()}


class ClosesOnce(OneAfterAnother):
    """Ends what is no longer there."""

    def close(self):
        assert not hasattr(self, "closed"), "closed already"
        self.closed = True


class SortedReports(OneAfterAnother):
    """Reports in an order of its own."""

    def report(self, clients):
        return super().report(sorted(clients))


@every(EXECUTOR_CHECKS)
def test_an_executor_by_its_class(check):
    check(OneAfterAnother)


@pytest.mark.parametrize(
    ("executor", "message"),
    [
        (Backwards, "in the order of `round.tasks`"),
        (Forgetful, "6 tasks were to train, and 5 came back"),
        (AnotherRound, "the numbers are not those of plain training"),
        (InPlace, "training changes the server's"),
        (ClosesOnce, "closed already"),
        (SortedReports, "what came as client 3's report is not its own"),
    ],
)
def test_mistakes_of_executors_are_caught(executor, message):
    catches(EXECUTOR_CHECKS, executor, message)


# A third party's package ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(
    "spreaddrop" not in registry.find("algorithms") and "TOX_ENV_NAME" not in os.environ,
    reason="needs: pip install --no-deps tests/thirdparty",
)
def test_an_experiment_of_a_third_partys_plugins_alone(tmp_path, here):
    file = tmp_path / "theirs.yaml"
    file.write_text(
        "{data: stripes, partition: {name: one_class, clients: 8}, model: {name: perceptron, width: 10}, "
        "algorithm: {name: spreaddrop, step: 2}, sampler: largest, capacity: {keep: 0.5}, execution: {on: serial}, "
        "training: {rounds: 3, active: 4, epochs: 1}}"
    )
    code, _, err = here("run", str(file), "--out", str(tmp_path / "out"), "--track", "diary")
    assert code == 0, err
    lines = next(tmp_path.rglob("diary.txt")).read_text().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["run 0, round 1", "run 0, round 2", "run 0, round 3"]


HERE = Path(__file__).parent
THEIRS = sorted((HERE / "thirdparty").glob("*.py"))


@pytest.mark.parametrize("file", THEIRS, ids=lambda file: file.stem)
def test_a_third_party_needs_nothing_but_the_facade(file):
    froms = [node.module for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    assert {module for module in froms if module.startswith("prism_bench")} == {"prism_bench.plugin"}


def test_the_guide_shows_what_is_there():
    guide = (HERE.parent / "CONTRIBUTING.md").read_text("utf-8")
    code = (HERE / "thirdparty" / "spreaddrop.py").read_text("utf-8")
    assert code.partition("annotations\n\n")[2] in guide
    for line in re.findall(r"^ *(from prism_bench\S* import .*)$", guide, re.MULTILINE):
        exec(line, {})
    for name in re.findall(r"tests/thirdparty/(\w+\.py)", guide):
        assert HERE / "thirdparty" / name in THEIRS
