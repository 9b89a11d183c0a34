"""PriSM written once more from the paper, with plain loops: a run of the suite must have the same numbers.

Nothing here is the suite's but what defines a run: its data, first weights, clients with their capacities, and random
numbers. A client takes its own from its stream in this order: one Gumbel number per kernel, layer by layer, then what
its channels need, axis by axis. With ``importance: part`` the channels come first.
"""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from prism_bench.baselines.prism_variants import inclusion
from prism_bench.core.seeds import stream
from prism_bench.data.digits import Digits
from prism_bench.plugin import sample
from prism_bench.testing import double, federation

ROUNDS, BATCH, EPOCHS, LR, MOMENTUM, DECAY = 3, 8, 2, 0.1, 0.9, 0.01
KEEPS = (0.5, 0.2)
SIZES = (12, 5, 9, 8, 14)
ACTIVE = 4


# Networks: axes with their sizes, factorised layers with the axis that each writes, which entries of each tensor belong
# to the given features of the axes, and the logits. Tensors are named as the suite's are. ----------------------------


def linear(p, name, x, full):
    """A layer on the last dimension; ``full`` output features, where the ones that are there are to be scaled."""
    y = (x @ p[f"{name}.v"].T) @ p[f"{name}.u"].T if f"{name}.u" in p else x @ p[f"{name}.weight"].T
    y = y + p[f"{name}.bias"] if f"{name}.bias" in p else y
    return y * full / y.shape[-1] if full else y


def conv(p, name, x, full, stride=1):
    v = p[f"{name}.v"] if f"{name}.u" in p else p[f"{name}.weight"]
    y = F.conv2d(x, v, stride=stride, padding=v.shape[-1] // 2)
    y = torch.einsum("nr,brhw->bnhw", p[f"{name}.u"], y) if f"{name}.u" in p else y
    y = y + p[f"{name}.bias"][:, None, None] if f"{name}.bias" in p else y
    return y * full / y.shape[1] if full else y


def norm(p, name, x):
    """BatchNorm on the batch's own statistics, always."""
    mean = x.mean((0, 2, 3), keepdim=True)
    variance = ((x - mean) ** 2).mean((0, 2, 3), keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt() * p[f"{name}.weight"][:, None, None] + p[f"{name}.bias"][:, None, None]


class CNN:
    """3×3 convolutions, pooled after the first and the last, and a classifier on channels × 2 × 2 positions."""

    axes: ClassVar = {"conv0": 6, "conv1": 12, "conv2": 12}
    writes: ClassVar = {"convs.1": "conv1", "convs.2": "conv2"}

    def __init__(self, normalised):
        self.model = {"name": "smallcnn", "width": 6, "norm": "batch" if normalised else "none"}
        self.normalised = normalised

    def entries(self, kept):
        inputs, where = [0], {}
        for number in range(3):
            outputs = kept[f"conv{number}"]
            where[f"convs.{number}.weight"] = (outputs, inputs)
            for tensor in ("norms.{}.weight", "norms.{}.bias") if self.normalised else ("convs.{}.bias",):
                where[tensor.format(number)] = (outputs,)
            inputs = outputs
        flattened = [4 * channel + position for channel in inputs for position in range(4)]
        return {**where, "classifier.weight": (range(10), flattened), "classifier.bias": (range(10),)}

    def logits(self, p, x, scaling):
        for number, width in enumerate((6, 12, 12)):
            x = conv(p, f"convs.{number}", x, scaling and width)
            x = F.relu(norm(p, f"norms.{number}", x) if self.normalised else x)
            x = F.max_pool2d(x, 2) if number != 1 else x
        return linear(p, "classifier", x.reshape(len(x), -1), None)


class ResNet:
    """Two stages of one block: the additions tie all that is added."""

    axes: ClassVar = {"stage1": 6, "stage1.0": 6, "stage2.0": 12, "stage2": 12}
    writes: ClassVar = {
        "blocks.0.conv1": "stage1.0",
        "blocks.0.conv2": "stage1",
        "blocks.1.conv1": "stage2.0",
        "blocks.1.conv2": "stage2",
    }
    inner = ("stage1.0", "stage2.0")
    model: ClassVar = {"name": "resnet18", "width": 6, "blocks": [1, 1]}

    def entries(self, kept):
        one, inner_one, inner_two, two = (kept[axis] for axis in self.axes)
        where = {
            "stem.weight": (one, [0]),
            "blocks.0.conv1.weight": (inner_one, one),
            "blocks.0.conv2.weight": (one, inner_one),
            "blocks.1.conv1.weight": (inner_two, one),
            "blocks.1.conv2.weight": (two, inner_two),
            "blocks.1.shortcut.0.weight": (two, one),
            "classifier.weight": (range(10), two),
            "classifier.bias": (range(10),),
        }
        norms = {
            "norm": one,
            "blocks.0.norm1": inner_one,
            "blocks.0.norm2": one,
            "blocks.1.norm1": inner_two,
            "blocks.1.norm2": two,
            "blocks.1.shortcut.1": two,
        }
        return where | {
            f"{name}.{part}": (channels,) for name, channels in norms.items() for part in ("weight", "bias")
        }

    def logits(self, p, x, scaling):
        x = F.relu(norm(p, "norm", conv(p, "stem", x, scaling and 6)))
        y = F.relu(norm(p, "blocks.0.norm1", conv(p, "blocks.0.conv1", x, scaling and 6)))
        x = F.relu(x + norm(p, "blocks.0.norm2", conv(p, "blocks.0.conv2", y, scaling and 6)))
        y = F.relu(norm(p, "blocks.1.norm1", conv(p, "blocks.1.conv1", x, scaling and 12, 2)))
        y = norm(p, "blocks.1.norm2", conv(p, "blocks.1.conv2", y, scaling and 12))
        short = norm(p, "blocks.1.shortcut.1", conv(p, "blocks.1.shortcut.0", x, scaling and 12, 2))
        return linear(p, "classifier", F.relu(y + short).mean((2, 3)), None)


class LSTM:
    """Two layers whose four gates (input, forget, cell, output) are stacked; its embedding holds a word per column."""

    axes: ClassVar = {"embedding": 6, "hidden": 5}
    writes: ClassVar = {f"stack.{layer}.{part}": "hidden" for layer in range(2) for part in ("input", "recurrent")}
    model: ClassVar = {"name": "lstm", "embedding": 6, "hidden": 5}

    def entries(self, kept):
        words, hidden = kept["embedding"], kept["hidden"]
        gates = [5 * gate + feature for gate in range(4) for feature in hidden]
        where = {"embedding.weight": (words,), "classifier.weight": (range(3), hidden), "classifier.bias": (range(3),)}
        for layer in range(2):
            where[f"stack.{layer}.input.weight"] = (gates, words if layer == 0 else hidden)
            where[f"stack.{layer}.input.bias"] = (gates,)
            where[f"stack.{layer}.recurrent.weight"] = (gates, hidden)
        return where

    def logits(self, p, tokens, scaling):
        full = scaling and 20
        sequence = [p["embedding.weight"].T[words] for words in tokens.T]
        for layer in range(2):
            state = memory = None
            states = []
            for x in sequence:
                gates = linear(p, f"stack.{layer}.input", x, full)
                if state is not None:
                    gates = gates + linear(p, f"stack.{layer}.recurrent", state, full)
                let_in, forget, cell, let_out = gates.chunk(4, 1)
                new = torch.sigmoid(let_in) * torch.tanh(cell)
                memory = new if memory is None else new + torch.sigmoid(forget) * memory
                state = torch.sigmoid(let_out) * torch.tanh(memory)
                states.append(state)
            sequence = states
        return linear(p, "classifier", sequence[-1], None)


# The method ----------------------------------------------------------------------------------------------------------


def take(tensor, where):
    for dimension, chosen in enumerate(where):
        tensor = tensor.index_select(dimension, torch.tensor(list(chosen)))
    return tensor


def ceil(ratio, size):
    return math.ceil(Fraction(str(ratio)) * size)


def summed(u, v):
    """Σ u_i v_iᵀ."""
    return sum(torch.outer(u[:, i], v[i].flatten()) for i in range(len(v))).reshape(-1, *v.shape[1:])


def subsets(p, count):
    """How likely each index is among the first ``count`` drawn without replacement: through all sets on the way."""
    chance = {frozenset(): 1.0}
    for _ in range(count):
        larger = {}
        for drawn, so_far in chance.items():
            left = [i for i in range(len(p)) if i not in drawn]
            total = math.fsum(p[i] for i in left)
            for i in left:
                larger[drawn | {i}] = larger.get(drawn | {i}, 0.0) + so_far * p[i] / total
        chance = larger
    return [math.fsum(c for drawn, c in chance.items() if i in drawn) for i in range(len(p))]


class Reference:
    """The server: dense weights, decomposed anew in every round."""

    def __init__(self, network, weights, clip=None, **settings):
        self.network, self.weights, self.clip = network, weights, clip
        self.settings = {"channels": "prefix", "importance": "whole"} | settings
        self.scaling = settings.get("scaling", False)
        self.rank_keep, self.channel_keep = (settings.get(f"{what}_keep") for what in ("rank", "channel"))
        self.decompose()

    def decompose(self):
        self.server = {}
        for name, tensor in self.weights.items():
            layer, part = name.rsplit(".", 1)
            if part == "weight" and layer in self.network.writes:
                u, sigma, vt = torch.linalg.svd(tensor.flatten(1), full_matrices=False)
                self.server[f"{layer}.u"] = u * sigma.sqrt()
                self.server[f"{layer}.v"] = (sigma.sqrt()[:, None] * vt).reshape(-1, *tensor.shape[1:])
            else:
                self.server[name] = tensor

    def rebuilt(self, factors):
        """Every u and v as one weight."""
        dense = {}
        for name, tensor in factors.items():
            layer, part = name.rsplit(".", 1)
            if part == "u":
                dense[f"{layer}.weight"] = summed(tensor, factors[f"{layer}.v"])
            elif part != "v":
                dense[name] = tensor
        return dense

    def held(self, kept, kernels):
        """Which entries of the server's tensors a client holds."""
        where = {}
        for name, places in self.network.entries(kept).items():
            layer = name.rsplit(".", 1)[0]
            if name == f"{layer}.weight" and layer in self.network.writes:
                outputs, inputs = places
                where[f"{layer}.u"], where[f"{layer}.v"] = (outputs, kernels[layer]), (kernels[layer], inputs)
            else:
                where[name] = places
        return where

    def probabilities(self, layer, keep, kept=None):
        """log p of each kernel, but for a constant: σ is its size, ‖u'_i‖·‖v'_i‖, in the kept features."""
        u, v = self.server[f"{layer}.u"], self.server[f"{layer}.v"]
        if kept is not None:
            outputs, inputs = self.network.entries(kept)[f"{layer}.weight"]
            u, v = take(u, (outputs,)), take(v, (range(len(v)), inputs))
        sigma = [u[:, i].norm().item() * v[i].norm().item() for i in range(len(v))]
        kappa = self.settings.get("kappa", 4 if (self.rank_keep or keep) <= 0.2 else 2.5)
        rules = {"power": lambda σ: kappa * math.log(σ), "softmax": lambda σ: σ, "uniform": lambda σ: 0.0}
        return [rules[self.settings.get("sampling", "power")](σ) for σ in sigma]

    def kernels(self, keep, rng, kept=None):
        chosen = {}
        for layer in self.network.writes:
            scores = self.probabilities(layer, keep, kept)
            race = dict(enumerate(np.array(scores) + rng.gumbel(size=len(scores))))
            chosen[layer] = []
            for _ in range(ceil(self.rank_keep or keep, len(scores))):
                first = max(race, key=race.get)
                chosen[layer].append(first)
                del race[first]
        return chosen

    def channels(self, round, keep, kernels, rng):
        kept = {}
        for axis, size in self.network.axes.items():
            rule, count = self.settings["channels"], ceil(self.channel_keep or keep, size)
            if rule == "all" or (rule == "inner" and axis not in self.network.inner):
                kept[axis] = list(range(size))
            elif rule == "rolling":
                kept[axis] = [(round + step) % size for step in range(count)]
            elif rule == "random":
                kept[axis] = rng.permutation(size)[:count].tolist()
            else:
                kept[axis] = []
                writers = [layer for layer, written in self.network.writes.items() if written == axis]
                if rule == "kernels" and writers:
                    numbers = sorted({kernel % size for kernel in kernels[writers[0]]})
                    kept[axis] = rng.permutation(numbers)[:count].tolist()
                while len(kept[axis]) < count:
                    kept[axis].append(min(set(range(size)) - set(kept[axis])))
        return kept

    def sub_model(self, round, client, keep):
        rng = stream(0, "selection", round, 0 if self.settings.get("draw") == "round" else client)
        if self.settings["importance"] == "part":
            kept = self.channels(round, keep, None, rng)
            return self.held(kept, self.kernels(keep, rng, kept))
        kernels = self.kernels(keep, rng)
        return self.held(self.channels(round, keep, kernels, rng), kernels)

    def train(self, round, client, where, x, y):
        """Local SGD; returns the client's tensors and its mean loss."""
        p = {name: take(self.server[name], places).clone().requires_grad_() for name, places in where.items()}
        lr = LR * (1 + math.cos(math.pi * round / ROUNDS)) / 2
        optimiser, losses = torch.optim.SGD(p.values(), lr, MOMENTUM), []
        for epoch in range(EPOCHS):
            order = stream(0, "batches", round, client, epoch).permutation(len(y))
            for start in range(0, len(y), BATCH):
                batch = order[start : start + BATCH]
                optimiser.zero_grad()
                loss = F.cross_entropy(self.network.logits(p, x[batch], self.scaling), y[batch])
                loss.backward()
                if self.clip:
                    torch.nn.utils.clip_grad_norm_(p.values(), self.clip)
                # λ/2‖Σ u'_i v'_iᵀ‖² of the factors, and plain weight decay of the rest.
                decayed = p if self.settings.get("regulariser") == "weight_decay" else self.rebuilt(p)
                (DECAY / 2 * sum((tensor**2).sum() for tensor in decayed.values())).backward()
                optimiser.step()
                losses.append(loss.item())
        return {name: tensor.detach().numpy() for name, tensor in p.items()}, np.mean(losses)

    def round(self, round, cohort, samples):
        """The mean of what was trained of each entry, over the clients that held it; the others stay."""
        total, count = ({name: np.zeros(tensor.shape) for name, tensor in self.server.items()} for _ in range(2))
        losses = []
        for client, keep in cohort:
            where = self.sub_model(round, client, keep)
            trained, loss = self.train(round, client, where, *samples[client])
            losses.append(loss)
            for name, places in where.items():
                for here, there in zip(
                    itertools.product(*(range(len(chosen)) for chosen in places)),
                    itertools.product(*places),
                    strict=True,
                ):
                    total[name][there] += trained[name][here]
                    count[name][there] += 1
        for name, tensor in self.server.items():
            mean = total[name] / np.maximum(count[name], 1)
            self.server[name] = torch.from_numpy(np.where(count[name] > 0, mean, tensor))
        self.weights = self.rebuilt(self.server)
        if (round + 1) % self.settings.get("refresh", 1) == 0:
            self.decompose()
        return np.mean(losses)

    def full(self, x):
        return self.network.logits(self.weights, x, self.scaling)

    def trained(self, x):
        """The first channels of the largest capacity; with ``deploy: expected`` each kernel by its probability."""
        keep, kept = max(KEEPS), {axis: list(range(size)) for axis, size in self.network.axes.items()}
        if self.settings["channels"] in ("prefix", "inner"):
            kept = self.channels(0, keep, None, None)
        factors = dict(self.server)
        if self.settings.get("deploy") == "expected":
            for layer in self.network.writes:
                part = kept if self.settings["importance"] == "part" else None
                p = np.exp(self.probabilities(layer, keep, part))
                likely = subsets(p.tolist(), ceil(self.rank_keep or keep, len(p)))
                u = factors[f"{layer}.u"]
                factors[f"{layer}.u"] = torch.stack([u[:, i] * chance for i, chance in enumerate(likely)], 1)
        weights = {
            name: take(tensor, self.network.entries(kept)[name]) for name, tensor in self.rebuilt(factors).items()
        }
        return self.network.logits(weights, x, self.scaling)


@functools.cache
def digits():
    return Digits().load()


def largest_difference(network, clip=None, data=None, **settings):
    """Three rounds of the suite and of the reference; the largest difference between any two numbers."""
    training = {"rounds": ROUNDS, "batch": BATCH, "epochs": EPOCHS, "lr": LR, "momentum": MOMENTUM, "decay": DECAY}
    one = double(
        federation(
            "prism", settings, network.model, KEEPS, data, SIZES, active=ACTIVE, clip=clip, **training
        )
    )  # fmt: skip
    first = one.run.model.settings.initial(one.algorithm.network, stream(0, "weights"))
    one.algorithm.start({name: tensor.double() for name, tensor in first.items()})
    reference = Reference(network, {name: tensor.double() for name, tensor in first.items()}, clip, **settings)
    x, labels = one.data.prepare(one.data.train.inputs), one.data.train.labels
    ends = np.cumsum(SIZES)
    samples = [(x[end - size : end], labels[end - size : end]) for end, size in zip(ends, SIZES, strict=True)]
    test, labels = one.data.prepare(one.data.test.inputs), one.data.test.labels
    differences = []
    for round in range(ROUNDS):
        cohort = [(client.number, client.keep) for client in one.cohort(round)]
        loss, record = reference.round(round, cohort, samples), one.round(round)
        assert record["train_loss"] == pytest.approx(loss, abs=1e-5), "which the suite adds up in single precision"
        full, part = one.algorithm.full_model(), one.algorithm.trained_part() or one.algorithm.full_model()
        assert full.state.keys() == reference.weights.keys()
        with torch.no_grad():
            mine, trained = reference.full(test), reference.trained(test)
            pairs = [(full.state[name], tensor) for name, tensor in reference.weights.items()]
            pairs += [(full.forward(full.state, test), mine), (part.forward(part.state, test), trained)]
        deployed = mine if settings.get("deploy", "full") == "full" else trained
        differences += [(one - other).abs().max().item() for one, other in pairs]
        differences.append(abs(record["test_loss"] - F.cross_entropy(deployed, labels).item()))
        for name, logits in (("accuracy", deployed), ("accuracy_full", mine), ("accuracy_trained", trained)):
            assert record[name] == pytest.approx(100 * (logits.argmax(1) == labels).double().mean().item())
    assert all((full.state[name] - first[name]).abs().max() > 1e-3 for name in first), "every tensor was trained"
    return max(differences)


CASES = [
    {"channels": "prefix"},
    {"channels": "kernels"},
    {"channels": "rolling"},
    {"channels": "random", "clip": 0.5},
    {"importance": "part"},
    {"deploy": "expected"},
    {"scaling": True, "deploy": "trained"},
]
MORE = [
    {"channels": "prefix", "clip": 0.5},
    {"channels": "random"},
    {"channels": "random", "draw": "round"},
    {"channels": "all", "kappa": 1.5},
    {"channels": "all", "kappa": 5, "deploy": "expected"},
    {"channels": "kernels", "scaling": True, "rank_keep": 0.3, "channel_keep": 0.6},
    {"channels": "kernels", "scaling": True, "rank_keep": 0.6, "channel_keep": 0.3},
    {"importance": "part", "channels": "random"},
    {"importance": "part", "channels": "rolling", "kappa": 6},
    {"importance": "part", "deploy": "expected", "scaling": True},
    {"sampling": "softmax", "refresh": 2},
    {"sampling": "uniform", "regulariser": "weight_decay"},
]


def said(case):
    return "-".join(f"{name}={value}" for name, value in case.items())


@pytest.mark.parametrize("case", CASES + MORE, ids=said)
def test_the_suite_has_the_numbers_of_the_reference(case):
    assert largest_difference(CNN(normalised=False), data=digits(), **case) < 1e-10


@pytest.mark.parametrize("case", CASES, ids=said)
def test_also_with_batchnorm(case):
    assert largest_difference(CNN(normalised=True), data=digits(), **case) < 1e-10


@pytest.mark.parametrize(
    "case", [{"channels": "kernels"}, {"channels": "random"}, {"channels": "inner", "deploy": "expected"}], ids=said
)
def test_also_where_additions_tie_channels(case):
    assert largest_difference(ResNet(), data=digits(), **case) < 1e-10


@pytest.mark.parametrize(
    "case",
    [
        {"channels": "kernels"},
        {"channels": "random", "importance": "part"},
        {"channels": "rolling", "scaling": True},
        {"deploy": "expected"},
    ],
    ids=said,
)
def test_also_where_gates_repeat_an_axis(case):
    assert largest_difference(LSTM(), **case) < 1e-10


# How likely a kernel is to be drawn ----------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0, 0.5, 2, 8, 40])
@pytest.mark.parametrize("size", [2, 4, 7])
def test_inclusion_is_exact(size, spread):
    """Against the sum over all orders in which kernels may be drawn."""
    scores = spread * np.random.default_rng(size).normal(size=size)
    p = np.exp(scores - scores.max())
    wanted = np.zeros((size + 1, size))
    for order in itertools.permutations(range(size)):
        # What is left is added up, not taken off: that would lose the small ones.
        chance = math.prod(p[i] / math.fsum(p[list(order[place:])]) for place, i in enumerate(order))
        for count in range(1, size + 1):
            wanted[count, list(order[:count])] += chance
    for count in range(1, size + 1):
        found = inclusion(scores, count)
        assert np.abs(found - wanted[count]).max() < 1e-11
        assert found.sum() == pytest.approx(count, abs=1e-9)


def test_inclusion_is_how_often_many_kernels_are_drawn():
    scores, count, draws = 4 * np.log(np.linspace(3, 0.1, 64)), 26, 20_000
    rng, seen = np.random.default_rng(0), np.zeros(64)
    for _ in range(draws):
        seen[sample(scores, count, rng)] += 1
    likely = inclusion(scores, count)
    assert (np.abs(seen - draws * likely) < 5 * np.sqrt(draws * likely * (1 - likely)) + 1).all()


@pytest.mark.parametrize(("size", "count"), [(64, 13), (65, 64), (512, 410)])
def test_inclusion_of_extreme_scores(size, count):
    rng = np.random.default_rng(0)
    groups = np.zeros(size)
    groups[count - 2 :] = -700  # all of the first, and two of the others
    assert np.abs(inclusion(groups, count) - np.where(groups, 2 / (size - count + 2), 1)).max() < 1e-10
    steps = -500.0 * np.arange(size)
    assert np.abs(inclusion(steps, count) - (np.arange(size) < count)).max() < 1e-10
    assert np.abs(inclusion(np.full(size, 1e4), count) - count / size).max() < 1e-12
    for scores in (300 * rng.normal(size=size), 4 * np.log(np.linspace(3, 0.1, size))):
        found = inclusion(scores, count)
        assert found.min() >= 0
        assert found.max() <= 1
        assert found.sum() == pytest.approx(count, abs=1e-9)
        assert (np.diff(found[np.argsort(scores)]) > -1e-11).all(), "who is likelier to be first is likelier to be in"
