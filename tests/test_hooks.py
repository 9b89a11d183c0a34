"""Every hook of an algorithm, used as a plugin's author would: exact small cases through whole rounds.

All imports of the contract are from `prism_bench.plugin`. Each method trains `TwoLayers`, whose steps are written out
below by hand, in double precision.
"""

from __future__ import annotations

import io
import itertools
from collections import Counter
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import PositiveInt

import prism_bench
from prism_bench.plugin import (
    Algorithm,
    Axis,
    BadInput,
    BadPlugin,
    Dim,
    Dropout,
    Linear,
    Merge,
    Model,
    Network,
    Settings,
    Signature,
    along,
    cross_entropy,
    prefix,
    stream,
)
from prism_bench.testing import CHECKS, double, federation

LR = 0.1


class Layers(Network):
    paper_layers = ("hidden",)

    def __init__(self, data, width, dropout):
        super().__init__()
        hidden = Axis("hidden", width)
        self.hidden = Linear(Dim(Axis("input", 1, "fixed"), expand=64), hidden)
        self.classifier = Linear(hidden, Axis("classes", data.classes, "fixed"))
        self.dropout = Dropout(dropout) if dropout else torch.nn.Identity()

    def forward(self, x):
        return self.classifier(self.dropout(torch.tanh(self.hidden(x.flatten(1)))))


class TwoLayers(Model):
    """64 pixels, four hidden features, four classes."""

    width: PositiveInt = 4
    dropout: float = 0.0
    usual: ClassVar[Signature] = Signature((1, 8, 8), 4)

    def build(self, data):
        return Layers(data, self.width, self.dropout)


PLAIN = {"momentum": 0, "decay": 0, "lr": LR, "schedule": "constant", "batch": 6, "epochs": 2}


def started(method, params=None, *, sizes=(6, 6), keep=1.0, model=None, **more):
    """A run of two clients with six samples, one batch, each: two epochs are two steps."""
    model = {"name": TwoLayers, **(model or {})}
    return double(federation(method, params, model, keep, sizes=sizes, **(PLAIN | more)))


def samples(one, client):
    chosen = one.population[client]
    return one.data.prepare(one.data.train.inputs[chosen]), one.data.train.labels[chosen]


def logits(params, x):
    hidden = torch.tanh(x.flatten(1) @ params["hidden.weight"].T + params["hidden.bias"])
    return hidden @ params["classifier.weight"].T + params["classifier.bias"]


def plain_loss(params, start, x, y):
    return F.cross_entropy(logits(params, x), y)


def by_hand(one, client, start, *, steps=2, loss=plain_loss, move=lambda gradient: gradient, train=None, batches=None):
    """A client's steps of gradient descent, written out: on all of its samples, or on one batch after another."""
    params = {name: tensor.clone() for name, tensor in start.items()}
    for chosen in batches or [one.population[client]] * steps:
        x, y = one.data.prepare(one.data.train.inputs[chosen]), one.data.train.labels[chosen]
        now = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
        gradients = torch.autograd.grad(loss(now, start, x, y), list(now.values()))
        for name, gradient in zip(now, gradients, strict=True):
            if train is None or name in train:
                params[name] = params[name] - LR * move(gradient)
    return params


def mean(states, weights=None):
    weights = weights or [1] * len(states)
    return {
        name: sum(weight * state[name] for weight, state in zip(weights, states, strict=True)) / sum(weights)
        for name in states[0]
    }


def before(one):
    return {name: tensor.clone() for name, tensor in one.algorithm.state.items()}


def close(state, expected):
    assert state.keys() == expected.keys()
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-12, atol=1e-14)


def first(layout, keep):
    """Where the first of the hidden features are in each tensor: its rows or columns."""
    rows = slice(int(keep * layout.axes["hidden"].size))
    columns = (slice(None), rows)
    return {"hidden.weight": rows, "hidden.bias": rows, "classifier.weight": columns, "classifier.bias": ...}


class Whole(Algorithm):
    """Every client trains the whole model."""

    cuts = False

    def select(self, round, cohort):
        return [[{}] for _ in cohort]


class First(Algorithm):
    """The first features."""

    def select(self, round, cohort):
        return [[along(self.layout.of_kind("feature"), client.keep, prefix)] for client in cohort]


# The loss -------------------------------------------------------------------------------------------------------------


class Near(Whole):
    """Stays near where it began: FedProx's loss."""

    class Params(Settings):
        mu: float = 0.5

    def loss(self, step):
        away = sum((tensor - step.start[name]).square().sum() for name, tensor in step.params.items())
        return cross_entropy(step.logits[None], step.labels[None])[0] + self.params.mu / 2 * away


@pytest.mark.parametrize("at_once", [1, 8])
def test_an_own_loss(at_once):
    def near(params, start, x, y):
        away = sum(((params[name] - start[name]) ** 2).sum() for name in params)
        return plain_loss(params, start, x, y) + 0.7 / 2 * away

    one = started(Near, {"mu": 0.7}, at_once=at_once)
    start = before(one)
    one.round(0)
    close(one.algorithm.state, mean([by_hand(one, client, start, loss=near) for client in range(2)]))


def test_the_loss_of_a_round_is_the_mean_over_steps_and_clients():
    one = started(Near, {"mu": 0.7}, epochs=1)
    start = before(one)
    expected = np.mean([plain_loss(start, start, *samples(one, client)).item() for client in range(2)])
    assert one.round(0)["train_loss"] == pytest.approx(expected, rel=1e-6)


# The optimiser --------------------------------------------------------------------------------------------------------


class Sign:
    """Moves each entry by the learning rate."""

    def slots(self, state):
        return []

    def step(self, state, gradients, slots, lr):
        for name, tensor in state.items():
            tensor.sub_(gradients[name].sign(), alpha=lr)


class SignSGD(Whole):
    """Steps of one length."""

    def optimiser(self, momentum):
        return Sign()


class Halving:
    """Each step is half as long as the last: what a slot keeps shows."""

    def slots(self, state):
        return [{name: torch.ones_like(tensor) for name, tensor in state.items()}]

    def step(self, state, gradients, slots, lr):
        for name, tensor in state.items():
            tensor.sub_(slots[0][name] * gradients[name], alpha=lr)
            slots[0][name].mul_(0.5)


class Shorter(Whole):
    """Steps that get shorter."""

    def optimiser(self, momentum):
        return Halving()


def test_an_own_optimiser():
    one = started(SignSGD)
    start = before(one)
    one.round(0)
    close(one.algorithm.state, mean([by_hand(one, client, start, move=torch.sign) for client in range(2)]))


@pytest.mark.parametrize("at_once", [1, 8])
def test_slots_are_kept_from_step_to_step_and_not_from_round_to_round(at_once):
    """Also of a client that has more batches than the other, which leaves the stack early."""
    one = started(Shorter, sizes=(12, 6), epochs=1, at_once=at_once)
    for round in range(2):
        start = before(one)
        early, late = one.trainer.schedule(round, 0).batches
        once = by_hand(one, 0, start, batches=[early])
        long = by_hand(one, 0, once, batches=[late], move=lambda gradient: gradient / 2)
        short = by_hand(one, 1, start, steps=1)
        one.round(round)
        close(one.algorithm.state, mean([long, short]))


# Frozen tensors -------------------------------------------------------------------------------------------------------


class ClassifierOnly(Whole):
    """The hidden layer stays as it is."""

    def frozen(self):
        return ("hidden.weight", "hidden.bias")


def test_frozen_tensors():
    one = started(ClassifierOnly)
    start = before(one)
    one.round(0)
    trained = ("classifier.weight", "classifier.bias")
    close(one.algorithm.state, mean([by_hand(one, client, start, train=trained) for client in range(2)]))
    for name in ("hidden.weight", "hidden.bias"):
        assert torch.equal(one.algorithm.state[name], start[name])
    hidden, classifier = 64 * 4 + 4, 4 * 4 + 4
    assert one.costs()["transfer_bytes"] == 4 * (hidden + classifier) + 4 * classifier, "all down, what was trained up"
    assert one.costs()["parameters"] == hidden + classifier
    assert one.costs()["full_transfer_bytes"] == 2 * 4 * (hidden + classifier)


# A view per step ------------------------------------------------------------------------------------------------------


class Views(First):
    """Two of the client's features at each step."""

    def views(self, layout):
        pairs = itertools.combinations(range(layout.axes["hidden"].size), min(2, layout.axes["hidden"].size))
        return [[{"hidden": torch.tensor(pair)}] for pair in pairs]


@pytest.mark.parametrize("at_once", [1, 8])
def test_a_view_per_step(at_once):
    one = started(Views, keep=0.75, at_once=at_once)
    start = before(one)
    each, seen = [], set()
    for client in range(2):
        x, y = samples(one, client)
        params = {name: tensor.clone() for name, tensor in start.items()}
        for step in range(2):
            view = [[0, 1], [0, 2], [1, 2]][stream(0, "view", 0, client, step).integers(3)]
            seen |= set(view)
            now = {
                "hidden.weight": params["hidden.weight"][view],
                "hidden.bias": params["hidden.bias"][view],
                "classifier.weight": params["classifier.weight"][:, view],
                "classifier.bias": params["classifier.bias"],
            }
            now = {name: tensor.clone().requires_grad_() for name, tensor in now.items()}
            gradients = dict(
                zip(now, torch.autograd.grad(plain_loss(now, None, x, y), list(now.values())), strict=True)
            )
            params["hidden.weight"][view] -= LR * gradients["hidden.weight"]
            params["hidden.bias"][view] -= LR * gradients["hidden.bias"]
            params["classifier.weight"][:, view] -= LR * gradients["classifier.weight"]
            params["classifier.bias"] -= LR * gradients["classifier.bias"]
        each.append(params)
    one.round(0)
    close(one.algorithm.state, mean(each))
    unseen = [feature for feature in range(4) if feature not in seen]
    assert 3 in unseen, "nobody held it"
    assert torch.equal(one.algorithm.state["hidden.weight"][unseen], start["hidden.weight"][unseen])


class ViewsBeyond(Views):
    """Views by the whole model's size, of which the client has a part."""

    def views(self, layout):
        return [[{"hidden": torch.tensor([0, 3])}]]


def test_a_view_beyond_the_sub_model_is_the_plugins_mistake():
    with pytest.raises(BadPlugin, match=r"out of range along 'hidden', which has 3 indices"):
        started(ViewsBeyond, keep=0.75).round(0)


# Weights in the mean --------------------------------------------------------------------------------------------------


def test_weights_by_samples():
    one, equal = (started(Whole, sizes=(2, 6), weights=weights) for weights in ("samples", "uniform"))
    start = before(one)
    each = [by_hand(one, client, start) for client in range(2)]
    one.round(0)
    close(one.algorithm.state, mean(each, [2, 6]))
    equal.round(0)
    close(equal.algorithm.state, mean(each))


class Trusting(First):
    """The first client's bias counts three times, and all else by the number of the client."""

    def weight(self, client):
        weights = dict.fromkeys(self.state, 1.0 + client.number)
        return weights | {"classifier.bias": 3.0 if client.number == 0 else 1.0}


class BySize(First):
    """By samples, whatever the settings say."""

    def weight(self, client):
        return float(client.samples)


def test_weights_of_an_own_per_client_and_tensor():
    one = started(Trusting, keep=0.5)
    start = before(one)
    part = first(one.algorithm.layout, 0.5)
    each = [by_hand(one, c, {name: start[name][where] for name, where in part.items()}) for c in range(2)]
    one.round(0)
    expected = {name: tensor.clone() for name, tensor in start.items()}  # what nobody held stays
    for name, where in part.items():
        weights = [3, 1] if name == "classifier.bias" else [1, 2]
        expected[name][where] = mean(each, weights)[name]
    close(one.algorithm.state, expected)
    assert torch.equal(one.algorithm.state["hidden.weight"][2:], start["hidden.weight"][2:])


def test_an_own_weight_goes_before_the_settings():
    one = started(BySize, sizes=(2, 6), weights="uniform")
    start = before(one)
    one.round(0)
    close(one.algorithm.state, mean([by_hand(one, client, start) for client in range(2)], [2, 6]))


# A report before selection --------------------------------------------------------------------------------------------


class ByLabels(Algorithm):
    """A client trains the feature with the number of its most frequent label."""

    def report(self, inputs, labels):
        return {"labels": labels.bincount(minlength=4)}

    def select(self, round, cohort):
        count = [client.report.get("labels", torch.zeros(4)) for client in cohort]
        return [[{"hidden": labels.argmax()[None]}] for labels in count]


def test_a_report_decides_the_selection():
    one = started(ByLabels, sizes=(6, 6, 6))
    opened = one.open(0)
    for task in opened.tasks:
        labels = Counter(samples(one, task.client.number)[1].tolist())
        assert task.client.report["labels"].tolist() == [labels[label] for label in range(4)]
        [feature] = task.selection["hidden"].tolist()
        assert labels[feature] == max(labels.values())
    one.carry_out(opened)
    numbers = 64 + 1 + 4 + 4
    assert one.costs()["transfer_bytes"] == 2 * 4 * numbers + 4 * 8, "the model both ways, and four whole numbers up"


# What clients remember ------------------------------------------------------------------------------------------------


class OwnBias(Whole):
    """Every client keeps its classifier's bias to itself, and goes on with it."""

    def recall(self, params, memory):
        return {**params, **memory}

    def remember(self, params, start, memory):
        return {"classifier.bias": params["classifier.bias"]}


class OddRounds(Whole):
    """Remembers what it began with, unless it remembers something already."""

    def remember(self, params, start, memory):
        return {} if memory else {"bias": start["classifier.bias"]}


@pytest.mark.parametrize("at_once", [1, 8])
def test_clients_remember(at_once):
    one = started(OwnBias, at_once=at_once)
    biases = {}
    for round in range(3):
        start = before(one)
        own = [{**start, "classifier.bias": biases.get(client, start["classifier.bias"])} for client in range(2)]
        each = [by_hand(one, client, own[client]) for client in range(2)]
        biases = {client: params["classifier.bias"] for client, params in enumerate(each)}
        one.round(round)
        close(one.algorithm.state, mean(each))
        for client in range(2):
            close(one.memories[client][0], {"classifier.bias": biases[client]})


def test_what_clients_remember_survives_a_resume():
    whole, interrupted, resumed = (started(OwnBias) for _ in range(3))
    for round in range(3):
        whole.round(round)
    interrupted.round(0)
    file = io.BytesIO()
    torch.save(interrupted.checkpoint(), file)
    assert file.tell() < 10_000, "copies of what is kept, not all that was trained with it"
    file.seek(0)
    resumed.restore(torch.load(file, weights_only=True))
    assert set(resumed.memories) == {0, 1}
    for round in (1, 2):
        resumed.round(round)
    for name, tensor in whole.algorithm.state.items():
        assert torch.equal(resumed.algorithm.state[name], tensor)


def test_clients_forget():
    one = started(OddRounds)
    start = before(one)["classifier.bias"]
    one.round(0)
    assert torch.equal(one.memories[1][0]["bias"], start)
    one.round(1)
    assert one.memories == {}


# A model that draws ---------------------------------------------------------------------------------------------------


def test_dropout_is_the_same_however_clients_train():
    def trained(at_once, threads=1):
        torch.set_num_threads(threads)
        one = started(Whole, model={"width": 16, "dropout": 0.5}, sizes=(6, 5, 6, 2), at_once=at_once)
        return one, [one.round(round) for round in range(2)]

    alone, records = trained(1)
    for other, _ in (trained(8), trained(8, threads=2)):
        close(other.algorithm.state, alone.algorithm.state)
    in_threads, _ = trained(1, threads=2)
    assert all(torch.equal(in_threads.algorithm.state[name], t) for name, t in alone.algorithm.state.items())
    without = started(Whole, model={"width": 16}, sizes=(6, 5, 6, 2))
    without.round(0)
    assert not torch.equal(without.algorithm.state["hidden.weight"], alone.algorithm.state["hidden.weight"])
    x, y = alone.data.prepare(alone.data.test.inputs), alone.data.test.labels
    expected = F.cross_entropy(logits(alone.algorithm.state, x), y).item()
    assert records[1]["test_loss"] == pytest.approx(expected, rel=1e-9), "evaluation draws nothing"


def test_dropout_by_hand():
    """One step of one client, with the noise of its stream."""
    one = started(Whole, model={"dropout": 0.5}, sizes=(6,), epochs=1)
    start = before(one)
    generator = torch.Generator().manual_seed(int(stream(0, "noise", 0, 0).integers(2**63)))
    kept = torch.rand((6, 4), generator=generator, dtype=torch.float64) >= 0.5

    def loss(params, start, x, y):
        hidden = torch.tanh(x.flatten(1) @ params["hidden.weight"].T + params["hidden.bias"]) * kept / 0.5
        return F.cross_entropy(hidden @ params["classifier.weight"].T + params["classifier.bias"], y)

    # The client's own order of its samples decides which noise each gets.
    [order] = one.trainer.schedule(0, 0).batches
    x, y = one.data.prepare(one.data.train.inputs[order]), one.data.train.labels[order]
    one.round(0)
    expected = by_hand(one, 0, start, steps=1, loss=lambda params, start, *_: loss(params, start, x, y))
    close(one.algorithm.state, expected)


# An own merge ---------------------------------------------------------------------------------------------------------


class OverAll(Merge):
    """The mean over all clients, holders or not: who did not hold an entry did not change it."""

    def __init__(self, state, layout):
        super().__init__(state, layout)
        self.clients = 0

    def add(self, selection, updated, weight=1.0):
        self.clients += 1
        super().add(selection, updated, weight)

    def result(self):
        for held in self.holders.values():
            held.fill_(self.clients)
        return super().result()


class Cautious(First):
    """Entries that few hold move little."""

    def merge(self):
        return OverAll(self.state, self.layout)


def test_an_own_merge():
    one = started(Cautious, keep=(0.5, 1.0))
    start = before(one)
    cohort = one.cohort(0)
    expected = {name: tensor.clone() for name, tensor in start.items()}
    for client in cohort:
        part = first(one.algorithm.layout, client.keep)
        held = {name: start[name][where] for name, where in part.items()}
        for name, tensor in by_hand(one, client.number, held).items():
            expected[name][part[name]] += (tensor - held[name]) / 2
    one.round(0)
    assert sorted(client.keep for client in cohort) == [0.5, 1.0]
    close(one.algorithm.state, expected)


# Samplers and costs ---------------------------------------------------------------------------------------------------


def test_clients_by_their_samples():
    one = started(Whole, sizes=(1, 3), sampler="by_samples", active=1)
    drawn = Counter(one.cohort(round)[0].number for round in range(2000))
    assert drawn[1] / 2000 == pytest.approx(0.75, abs=0.03)


class RandomSize(Algorithm):
    """The first so many features, as the round and the client draw them."""

    def select(self, round, cohort):
        counts = [int(self.random(round, client.number).integers(1, 5)) for client in cohort]
        return [[{"hidden": torch.arange(count)}] for count in counts]


def test_costs_are_the_mean_of_what_each_client_paid():
    one = started(RandomSize, sizes=(6, 6, 6))
    widths = []
    for round in range(3):
        opened = one.open(round)
        widths += [len(task.selection["hidden"]) for task in opened.tasks]
        one.carry_out(opened)
    assert len(set(widths)) > 1
    told = one.costs()
    assert told["parameters"] == pytest.approx(np.mean([64 * width + width + 4 * width + 4 for width in widths]))
    assert told["macs"] == pytest.approx(np.mean([64 * width + 4 * width for width in widths]))
    assert told["transfer_bytes"] == pytest.approx(2 * 4 * told["parameters"])


# The conformance suite on all of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__.removeprefix("check_") for check in CHECKS])
@pytest.mark.parametrize(
    "method",
    [Near, SignSGD, Shorter, ClassifierOnly, Views, Trusting, BySize, ByLabels, OwnBias, Cautious],
    ids=lambda method: method.__name__,
)
def test_conformance(method, check):
    check(method, model={"name": TwoLayers})


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__.removeprefix("check_") for check in CHECKS])
def test_conformance_with_dropout(check):
    check(First, model={"name": TwoLayers, "dropout": 0.5})


class Rooted(Near):
    """The distance itself, whose gradient is not a number at the start."""

    def loss(self, step):
        away = sum((tensor - step.start[name]).square().sum() for name, tensor in step.params.items())
        return cross_entropy(step.logits[None], step.labels[None])[0] + away.sqrt()


class ServersLoss(Near):
    """Reads the server's tensors in a client's training."""

    def loss(self, step):
        away = sum((step.params[name] - tensor).square().sum() for name, tensor in self.state.items())
        return cross_entropy(step.logits[None], step.labels[None])[0] + away


class Growing(Near):
    """A loss that follows what only the server counts."""

    rounds = 0

    def finish_round(self, round, merged):
        super().finish_round(round, merged)
        self.rounds += 1

    def loss(self, step):
        return (1 + self.rounds) * cross_entropy(step.logits[None], step.labels[None])[0]


class FreezesAll(Whole):
    """Nothing is left."""

    def frozen(self):
        return list(self.layout.dims)


class MistypedTensor(Whole):
    """A tensor that is none."""

    def frozen(self):
        return ["hidden.wieght"]


class ForgetsTensor(Whole):
    """A forward that leaves a tensor out."""

    def forward(self, params, x):
        return super().forward({**params, "hidden.weight": params["hidden.weight"].detach()}, x)


class NoWeight(Whole):
    """A weight of nothing."""

    def weight(self, client):
        return 0.0


class DrawsViews(Views):
    """Draws what the run should draw."""

    def views(self, layout):
        return [[{"hidden": torch.from_numpy(np.random.permutation(layout.axes["hidden"].size)[:2])}]]


class UnreadViews(Views):
    """Passes that no loss reads."""

    def views(self, layout):
        return [[{}, *view] for view in super().views(layout)]


class UnseededReport(Whole):
    """Noise that no seed decides."""

    def report(self, inputs, labels):
        return {"noise": torch.rand(64)}


class OnlyRecalls(Whole):
    """Nothing to recall."""

    def recall(self, params, memory):
        return {**params, **memory}


class KeepsCount(Whole):
    """The server's momentum is not in its checkpoint."""

    def finish_round(self, round, merged):
        self.velocity = {
            name: 0.9 * getattr(self, "velocity", {}).get(name, 0) + tensor - self.state[name]
            for name, tensor in merged.items()
        }
        self.state = {name: tensor + self.velocity[name] for name, tensor in self.state.items()}


class DeploysNothing(Whole):
    """No trained part."""

    deploys = "trained"


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Rooted, "gradient of `loss` is not finite where a client's training begins"),
        (ServersLoss, "clients train where only `build` was called"),
        (Growing, "something is the server's"),
        (FreezesAll, "nothing is left to train"),
        (NoWeight, "must be positive and finite"),
        (DrawsViews, "`views` must follow from the layout alone"),
        (UnreadViews, "there is no `loss` that reads them"),
        (UnseededReport, "must follow from the client's samples alone"),
        (OnlyRecalls, "there is no `remember`"),
        (KeepsCount, "a resumed run differs"),
        (DeploysNothing, "it has no `trained_part`"),
    ],
)
def test_mistakes_are_caught(method, message):
    errors = []
    for check in CHECKS:
        try:
            check(method, model={"name": TwoLayers})
        except Exception as error:
            errors.append(str(error))
    assert any(message in error for error in errors), errors


# A whole experiment with classes of one's own -------------------------------------------------------------------------

EXPERIMENT = {
    "data": {"name": "noise", "shape": [1, 8, 8], "classes": 4, "train": 40, "test": 20},
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": TwoLayers, "width": 4},
    "training": {"rounds": 2, "active": 2, "epochs": 1, "batch": 5},
}


def test_an_experiment_with_a_class():
    rounds = prism_bench.run(EXPERIMENT, overrides={"algorithm": Near})
    assert (len(rounds), set(rounds["algorithm"]), set(rounds["variant"])) == (2, {"near"}, {""})
    assert set(rounds["model"]) == {"twolayers width=4"}


def test_an_experiment_with_an_instance():
    rounds = prism_bench.run(EXPERIMENT, overrides={"algorithm": Near(mu=3)})
    assert set(rounds["variant"]) == {"mu=3.0"}
    same = prism_bench.run(EXPERIMENT, overrides={"algorithm": Near, "algorithm.mu": 3})
    assert rounds["train_loss"].tolist() == same["train_loss"].tolist()
    again = prism_bench.run(EXPERIMENT, overrides={"algorithm": Near(mu=3), "algorithm.mu": 2})
    assert set(again["variant"]) == {"mu=2.0"}


def test_a_grid_of_classes_instances_and_names():
    grid = {"algorithm": ["fedavg", Near, Near(mu=3), {"name": Near, "mu": 9}]}
    rounds = prism_bench.run(EXPERIMENT | {"grid": grid})
    found = set(zip(rounds["algorithm"], rounds["variant"], strict=True))
    assert found == {("fedavg", ""), ("near", ""), ("near", "mu=3.0"), ("near", "mu=9.0")}
    changed = prism_bench.run(EXPERIMENT | {"grid": grid}, overrides={"algorithm.mu": 1.5})
    assert set(changed["variant"]) == {"", "mu=1.5"}


def test_runs_of_classes_are_kept_and_resumed(tmp_path):
    first, again = (prism_bench.run(EXPERIMENT | {"algorithm": Near(mu=3)}, out=tmp_path) for _ in range(2))
    assert first["train_loss"].tolist() == again["train_loss"].tolist()
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_other_plugins_as_instances():
    rounds = prism_bench.run(EXPERIMENT | {"algorithm": "fedavg", "model": TwoLayers(width=3)})
    assert set(rounds["model"]) == {"twolayers width=3"}


def test_a_class_that_is_no_plugin():
    with pytest.raises(BadInput, match="Merge is no class of a plugin"):
        prism_bench.run(EXPERIMENT | {"algorithm": Merge})


# Mistakes -------------------------------------------------------------------------------------------------------------


class Selecting(Algorithm):
    """Selects what a test tells it to."""

    def select(self, round, cohort):
        return [[{self.axis: torch.tensor(self.chosen)}] for _ in cohort]


class MistypedAxis(Selecting):
    """An axis that is none."""

    axis, chosen = "hiden", (0, 1)


class NegativeIndex(Selecting):
    """Python's way to say the last."""

    axis, chosen = "hidden", (-1, 0)


class DoubleIndex(Selecting):
    """One feature twice."""

    axis, chosen = "hidden", (1, 1)


class BeyondIndex(Selecting):
    """One feature too many."""

    axis, chosen = "hidden", (0, 4)


class FixedAxis(Selecting):
    """Fewer classes."""

    axis, chosen = "classes", (0, 1)


class NoIndex(Selecting):
    """No feature at all."""

    axis, chosen = "hidden", ()

    def select(self, round, cohort):
        return [[{"hidden": torch.zeros(0, dtype=torch.int64)}] for _ in cohort]


class RealIndex(Selecting):
    """Halves."""

    axis, chosen = "hidden", (0.0, 1.0)


class EmptyPlan(Selecting):
    """Nothing for anybody."""

    def select(self, round, cohort):
        return []


class EmptyClient(Selecting):
    """No sub-model for a client."""

    def select(self, round, cohort):
        return [[] for _ in cohort]


MISTAKES = [
    (MistypedAxis, r"MistypedAxis: `select` selects along 'hiden', .* Did you mean 'hidden'\?"),
    (NegativeIndex, r"out of range along 'hidden', which has 4 indices"),
    (BeyondIndex, r"out of range along 'hidden', which has 4 indices"),
    (DoubleIndex, r"selects an index twice along 'hidden'"),
    (FixedAxis, r"along 'classes', which is never cut"),
    (NoIndex, r"selects nothing along 'hidden'"),
    (RealIndex, r"whole numbers \(int64\)"),
    (EmptyPlan, r"EmptyPlan: `select` must give one list of sub-models per client"),
    (EmptyClient, r"EmptyClient: `select` must give one list of sub-models per client"),
    (FreezesAll, r"freezesall: `frozen` names every tensor"),
    (ForgetsTensor, r"the loss doesn't depend on 'hidden.weight': leave it out"),
    (MistypedTensor, r"mistypedtensor: `frozen` names 'hidden.wieght', .* Did you mean 'hidden.weight'\?"),
]


@pytest.mark.parametrize(("method", "message"), MISTAKES)
def test_a_mistake_names_the_method_and_what_is_wrong(method, message):
    with pytest.raises(BadPlugin, match=message):
        started(method, keep=0.5).round(0)


@pytest.mark.parametrize(("method", "message"), MISTAKES)
def test_a_mistake_ends_its_run_and_no_other(method, message):
    with pytest.warns(UserWarning, match=message):
        rounds = prism_bench.run(EXPERIMENT | {"grid": {"algorithm": [method, "fedavg"]}})
    assert set(rounds["algorithm"]) == {"fedavg"}


def test_a_method_that_contradicts_itself_is_found_before_any_run():
    with pytest.raises(BadPlugin, match="DeploysNothing: deploys = 'trained', but it has no `trained_part`"):
        started(DeploysNothing)
    with pytest.raises(BadInput, match="DeploysNothing: deploys = 'trained', but it has no `trained_part`"):
        prism_bench.run(EXPERIMENT | {"grid": {"algorithm": ["fedavg", DeploysNothing]}})
