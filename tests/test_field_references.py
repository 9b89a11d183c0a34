"""HeteroFL, FjORD, FIARSE, FedProx, SCAFFOLD and the norms: each one's rule by hand, and where it is another's."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from frames import rounds_of

import prism_bench
from prism_bench.analysis.report.cells import Form
from prism_bench.analysis.report.tables import table
from prism_bench.base.errors import BadInput
from prism_bench.core.algorithm import Client, ServerModel
from prism_bench.core.axes import Axis, Dim
from prism_bench.core.network import Network, dense_forward, fitted
from prism_bench.core.seeds import stream
from prism_bench.core.submodel import gather
from prism_bench.data.dataset import Signature
from prism_bench.engine import costs
from prism_bench.engine.evaluate import evaluate, fit
from prism_bench.engine.spec import Plugin, Run
from prism_bench.harness.results import summarise
from prism_bench.models.layers import BatchNorm2d, GroupNorm, Linear
from prism_bench.models.model import Model
from prism_bench.testing import federation, tiny_data
from prism_bench.testing.models import MODEL_CHECKS
from prism_bench.views import accuracy

CNN = {"name": "cnn", "width": 10}
BATCH = {"name": "smallcnn", "width": 10, "norm": "batch"}
LR = 0.1


class Layers(Network):
    """Four features, then the classes."""

    def __init__(self, data):
        super().__init__()
        pixels = Axis("pixels", data.shape[0] * data.shape[1] * data.shape[2], "fixed")
        hidden = Axis("hidden", 4)
        self.hidden = Linear(Dim(pixels), hidden)
        self.classifier = Linear(hidden, Axis("classes", data.classes, "fixed"))

    def forward(self, x):
        return self.classifier(F.relu(self.hidden(x.flatten(1))))


class TwoLayers(Model):
    """Two layers."""

    usual = Signature((1, 8, 8), 4)

    def build(self, data):
        return Layers(data)


def started(algorithm, params=None, keep=1.0, **training):
    """Two clients of four samples, one batch each and an epoch: all that a round does can be done by hand."""
    plain = {"lr": LR, "momentum": 0.0, "decay": 0.0, "schedule": "constant"} | training
    return federation(algorithm, params, {"name": TwoLayers}, keep, sizes=(4, 4), **plain)


def copied(one):
    return {name: tensor.clone() for name, tensor in one.algorithm.state.items()}


def samples(one, client):
    chosen = torch.from_numpy(one.population[client])
    return one.data.prepare(one.data.train.inputs[chosen]), one.data.train.labels[chosen]


def logits_of(params, x):
    hidden = F.relu(F.linear(x.flatten(1), params["hidden.weight"], params["hidden.bias"]))
    return F.linear(hidden, params["classifier.weight"], params["classifier.bias"])


def first(params, count):
    """The sub-model of the first hidden features."""
    return {
        "hidden.weight": params["hidden.weight"][:count],
        "hidden.bias": params["hidden.bias"][:count],
        "classifier.weight": params["classifier.weight"][:, :count],
        "classifier.bias": params["classifier.bias"],
    }


def gradients(params, loss):
    """Of a loss that is a function of the tensors."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in params.items()}
    return dict(zip(leaves, torch.autograd.grad(loss(leaves), list(leaves.values())), strict=True))


def moved(params, slopes):
    return {name: tensor - LR * slopes[name] for name, tensor in params.items()}


def mean(each):
    return {name: torch.stack([one[name] for one in each]).mean(0) for name in each[0]}


def close(state, expected):
    for name, tensor in expected.items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-5, atol=1e-6)


def same(one, other, rounds=2):
    """Bit for bit, for some rounds."""
    for round in range(rounds):
        one.round(round)
        other.round(round)
    mine, theirs = (each.algorithm.full_model().state for each in (one, other))
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


# Each by hand ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 8])
def test_fedprox_pulls_back_to_where_the_client_began(at_once):
    one = started("fedprox", {"mu": 0.5}, epochs=3, at_once=at_once)
    start, each = copied(one), []
    for client in range(2):
        x, y = samples(one, client)
        params = start
        for _ in range(3):
            slopes = gradients(params, lambda now, x=x, y=y: F.cross_entropy(logits_of(now, x), y))
            pulled = {name: slope + 0.5 * (params[name] - start[name]) for name, slope in slopes.items()}
            params = moved(params, pulled)
        each.append(params)
    one.round(0)
    close(one.algorithm.state, mean(each))


@pytest.mark.parametrize("at_once", [1, 8])
def test_scaffold_corrects_each_step_by_the_control_variates(at_once):
    """Two rounds of two steps: in the first all controls are zero, in the second they are mean gradients."""
    one = started("scaffold", epochs=2, at_once=at_once)
    server = copied(one)
    weights = [name for name in server if not name.startswith("control.")]
    x_of = dict(enumerate(samples(one, client) for client in range(2)))
    model = {name: server[name] for name in weights}
    c, own = ({name: torch.zeros_like(model[name]) for name in weights} for _ in range(2))
    own = {0: own, 1: own}
    for round in range(2):
        each, seen = [], {}
        for client, (x, y) in x_of.items():
            params = model
            for _ in range(2):
                slopes = gradients(params, lambda now, x=x, y=y: F.cross_entropy(logits_of(now, x), y))
                params = moved(params, {name: slopes[name] - own[client][name] + c[name] for name in weights})
            each.append(params)
            seen[client] = {
                name: own[client][name] - c[name] + (model[name] - params[name]) / (2 * LR) for name in weights
            }
        change = {name: sum(seen[k][name] - own[k][name] for k in range(2)) / 2 for name in weights}
        c, own, model = {name: c[name] + change[name] for name in weights}, seen, mean(each)
        one.round(round)
        close(one.algorithm.full_model().state, model)
        close(one.algorithm.state, {f"control.{name}": tensor for name, tensor in c.items()})
        for client in range(2):
            close(one.memories[client][0], own[client])


def test_scaffold_moves_its_control_by_the_share_that_took_part():
    """One of two clients: c is half of what that client saw."""
    one = started("scaffold", active=1)
    start = copied(one)
    [client] = one.cohort(0)
    x, y = samples(one, client.number)
    weights = {name: tensor for name, tensor in start.items() if not name.startswith("control.")}
    slopes = gradients(weights, lambda now: F.cross_entropy(logits_of(now, x), y))
    one.round(0)
    close(one.algorithm.state, {f"control.{name}": slope / 2 for name, slope in slopes.items()})


def test_scaffolds_control_under_momentum_is_a_mean_of_gradients():
    """Steps of a constant gradient move further with momentum: 1, then 1.9 times the rate; 2.9 in all."""
    one = started("scaffold", momentum=0.9, epochs=2)
    assert one.trainer.way(2, LR) == pytest.approx(2.9 * LR)
    assert one.trainer.way(0, LR) == 0


def test_scaffold_costs_twice_the_bytes():
    scaffold, plain = federation("scaffold", model=CNN).costs(), federation("fedavg", model=CNN).costs()
    assert scaffold["transfer_bytes"] == 2 * plain["transfer_bytes"]
    assert scaffold["macs"] == plain["macs"]


def test_heterofl_leaves_out_labels_that_a_client_lacks():
    """Their logits are 0 in the loss, and so their rows of the classifier don't move."""
    one = started("heterofl", {"scaling": False, "static": False})
    start, each = copied(one), []
    for client in range(2):
        x, y = samples(one, client)
        there = torch.zeros(4).index_fill(0, y, 1.0)
        assert not there.all(), "each client lacks a label, or nothing is tested"
        slopes = gradients(start, lambda now, x=x, y=y, there=there: F.cross_entropy(logits_of(now, x) * there, y))
        assert not slopes["classifier.bias"][there == 0].any()
        each.append(moved(start, slopes))
    one.round(0)
    close(one.algorithm.state, mean(each))


def test_labels_that_a_client_has_are_those_of_all_its_samples():
    """Not only of those in this round's steps."""
    one = started("heterofl", {"scaling": False, "static": False}, batch=1, steps=1)
    start, each = copied(one), []
    for client in range(2):
        _, y = samples(one, client)
        there = torch.zeros(4).index_fill(0, y, 1.0)
        [chosen] = one.trainer.schedule(0, client).batches
        x, y = one.data.prepare(one.data.train.inputs[chosen]), one.data.train.labels[chosen]
        each.append(
            moved(start, gradients(start, lambda now, x=x, y=y, t=there: F.cross_entropy(logits_of(now, x) * t, y)))
        )
    one.round(0)
    close(one.algorithm.state, mean(each))


def test_fjord_draws_a_width_and_learns_from_the_widest():
    """Clients of three features out of four; widths of one, two and three: two passes unless three is drawn."""
    one = started("fjord", {"widths": (0.25, 0.5, 0.75, 1.0)}, keep=0.75, epochs=3)
    start, each, drawn = copied(one), [], set()
    for client in range(2):
        x, y = samples(one, client)
        params = first(start, 3)
        for step in range(3):
            width = (3, 1, 2)[stream(0, "view", 0, client, step).integers(3)]
            drawn.add(width)

            def loss(now, x=x, y=y, width=width):
                widest = logits_of(now, x)
                total = F.cross_entropy(widest, y)
                if width < 3:
                    taught, narrower = widest.detach().softmax(1), logits_of(first(now, width), x).log_softmax(1)
                    total = total + (taught * (taught.log() - narrower)).sum(1).mean()
                return total

            params = moved(params, gradients(params, loss))
        each.append(params)
    assert len(drawn) > 1
    one.round(0)
    close(first(one.algorithm.state, 3), mean(each))
    assert torch.equal(one.algorithm.state["hidden.weight"][3], start["hidden.weight"][3])


def test_fjords_costs_are_the_mean_over_the_widths_and_distillations_second_pass():
    """64 pixels, h hidden features, 4 classes: 68 MACs per feature."""
    about = (tiny_data().signature, 4)
    for distil, macs in ((False, 68 * (3 + 1 + 2) / 3), (True, 68 * (3 + (3 + 1) + (3 + 2)) / 3)):
        method = started("fjord", {"widths": (0.25, 0.5, 0.75, 1.0), "distil": distil}, keep=0.75).algorithm
        paid, whole = (
            costs.of_client(method, 0.75, *about),
            costs.of_client(started("origdrop").algorithm, 0.75, *about),
        )
        assert paid.macs == pytest.approx(macs)
        assert (paid.parameters, paid.transfer_bytes) == (whole.parameters, whole.transfer_bytes), "all of it is held"
        if distil:
            assert paid.activation_bytes > whole.activation_bytes, "both passes are kept for the backward pass"
        else:
            assert paid.activation_bytes == whole.activation_bytes, "the widest must fit"


def test_fjord_clients_share_the_widths_below_their_own():
    method = federation("fjord", model=CNN, keep=(0.2, 0.4, 1.0)).algorithm
    sizes = {}
    for keep in (0.2, 0.4, 1.0):
        [[selection]] = method.select(0, [Client(0, keep)])
        held = gather(method.state, method.layout, selection)
        layout = method.layout.of({name: tensor.shape for name, tensor in held.items()})
        sizes[keep] = [len(part["conv0"]) for view in method.views(layout) for part in view if part]
    assert sizes == {0.2: [], 0.4: [2], 1.0: [2, 4, 6, 8]}


def test_fiarse_gives_the_mask_its_own_gradient():
    """Two features held of four, of norms 5 and 2: the mask's slope is 2τ/(s+τ)², τ = 2."""
    one = started("fiarse", keep=0.5)
    weight = one.algorithm.state["hidden.weight"]
    weight.zero_()
    for row, norm in enumerate((5.0, 2.0, 1.0, 0.5)):
        weight[row, :2] = norm * torch.tensor([0.6, 0.8])
    start, each = copied(one), []
    [[selection]] = one.algorithm.select(0, [Client(0, 0.5)])
    assert selection["hidden"].tolist() == [0, 1]
    held = first(start, 2)
    for client in range(2):
        x, y = samples(one, client)
        slopes = gradients(held, lambda now, x=x, y=y: F.cross_entropy(logits_of(now, x), y))
        for feature, norm in enumerate((5.0, 2.0)):
            rows, w, b = slopes["hidden.weight"][feature], held["hidden.weight"][feature], held["hidden.bias"][feature]
            # By the mask: what it would change of all that it multiplies, the weights and the bias.
            by_mask = (rows * w).sum() + slopes["hidden.bias"][feature] * b
            slopes["hidden.weight"][feature] = rows + by_mask * 2 * 2.0 / (norm + 2.0) ** 2 * w / norm
        each.append(moved(held, slopes))
    one.round(0)
    close(first(one.algorithm.state, 2), mean(each))


def part(params, kept):
    """The sub-model of some hidden features."""
    return {
        "hidden.weight": params["hidden.weight"][kept],
        "hidden.bias": params["hidden.bias"][kept],
        "classifier.weight": params["classifier.weight"][:, kept],
        "classifier.bias": params["classifier.bias"],
    }


def trained_and_merged(one, round, kept):
    """What a round's two clients make of the server's tensors, who hold these hidden features in that order."""
    server, held = copied(one), torch.zeros(4)
    sums = {name: torch.zeros_like(tensor) for name, tensor in server.items()}
    for client, features in zip(one.cohort(round), kept, strict=True):
        x, y = samples(one, client.number)
        params = part(server, features)
        after = moved(params, gradients(params, lambda now, x=x, y=y: F.cross_entropy(logits_of(now, x), y)))
        held[features] += 1
        sums["hidden.weight"][features] += after["hidden.weight"]
        sums["hidden.bias"][features] += after["hidden.bias"]
        sums["classifier.weight"][:, features] += after["classifier.weight"]
        sums["classifier.bias"] += after["classifier.bias"] / 2
    somebody, counts = held > 0, held.clamp(min=1)
    return {
        "hidden.weight": torch.where(
            somebody[:, None], sums["hidden.weight"] / counts[:, None], server["hidden.weight"]
        ),
        "hidden.bias": torch.where(somebody, sums["hidden.bias"] / counts, server["hidden.bias"]),
        "classifier.weight": torch.where(somebody, sums["classifier.weight"] / counts, server["classifier.weight"]),
        "classifier.bias": sums["classifier.bias"],
    }


MIX = {"keep": (0.25, 0.75)}
"""Of two clients, one with a feature and one with three out of four."""


def test_fedrolex_trains_each_feature_in_its_turn():
    """Round 3: windows that begin at the last of four features, and go on at the first."""
    one = started("fedrolex", **MIX)
    window = {0.25: [3], 0.75: [0, 1, 3]}
    kept = [window[client.keep] for client in one.cohort(3)]
    expected = trained_and_merged(one, 3, kept)
    before = copied(one)
    one.round(3)
    close(one.algorithm.state, expected)
    assert torch.equal(one.algorithm.state["hidden.weight"][2], before["hidden.weight"][2]), "nobody held it"


def test_feddropout_means_each_feature_over_those_that_drew_it():
    one = started("feddropout", **MIX)
    plan = one.algorithm.select(0, one.cohort(0))
    kept = [selection["hidden"].tolist() for [selection] in plan]
    assert sorted(map(len, kept)) == [1, 3]
    expected = trained_and_merged(one, 0, kept)
    one.round(0)
    close(one.algorithm.state, expected)


def test_anycost_trains_the_largest_features_as_they_are_by_then():
    """Norms 1, 3, 2 and 4, then 1, 3, 5 and 4."""
    one = started("anycost", **MIX)
    for norms, largest in (((1, 3, 2, 4), {0.25: [3], 0.75: [1, 2, 3]}), ((1, 3, 5, 4), {0.25: [2], 0.75: [1, 2, 3]})):
        weight = one.algorithm.state["hidden.weight"]
        weight.mul_((torch.tensor(norms) / weight.norm(dim=1))[:, None])
        kept = [largest[client.keep] for client in one.cohort(0)]
        expected = trained_and_merged(one, 0, kept)
        one.round(0)
        close(one.algorithm.state, expected)


def test_anycost_orders_an_embeddings_features_too():
    """Ten features of words: the four largest, of whichever layer writes them."""
    one = federation("anycost", model={"name": "lstm", "embedding": 10, "hidden": 10}, keep=0.4).algorithm
    one.state["embedding.weight"].fill_(0.1)[[1, 4, 6, 9]] = 0.2
    [[selection]] = one.select(0, [Client(0, 0.4)])
    assert selection["embedding"].tolist() == [1, 4, 6, 9]


# Where one is another -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [CNN, BATCH], ids=["cnn", "smallcnn"])
@pytest.mark.parametrize("keep", [0.4, (0.2, 0.4)])
@pytest.mark.parametrize(
    ("method", "params", "other"),
    [
        ("heterofl", {"scaling": False, "static": False, "masked": False}, "origdrop"),
        ("fjord", {"widths": (1.0,), "distil": False}, "origdrop"),
        ("fjord", {"widths": (1.0,)}, "origdrop"),
        ("fiarse", {"learn": False}, "anycost"),
        ("fedprox", {"mu": 0.0}, "fedavg"),
    ],
)
def test_without_what_it_adds_a_method_is_the_other(method, params, other, keep, model):
    same(federation(method, params, model, keep), federation(other, None, model, keep))


def test_scaffold_from_zero_controls_is_fedavg():
    same(federation("scaffold", model=CNN), federation("fedavg", model=CNN), rounds=1)
    one_step = {"steps": 1, "rounds": 1}
    same(federation("scaffold", model=CNN, **one_step), federation("fedavg", model=CNN, **one_step), rounds=1)


@pytest.mark.parametrize("method", ["origdrop", "feddropout", "fedrolex", "anycost", "fiarse", "exclusive", "small"])
def test_of_whole_models_it_is_fedavg(method):
    same(federation(method, model=CNN, keep=1.0), federation("fedavg", model=CNN))


@pytest.mark.parametrize("addition", ["scaling", "static", "masked"])
def test_each_of_heterofls_additions_changes_something(addition):
    off = {"scaling": False, "static": False, "masked": False}
    model = CNN if addition == "scaling" else BATCH
    # Three samples per client: of some of the four labels they have none.
    one, other = (federation("heterofl", off | {addition: on}, model, sizes=(3,) * 4) for on in (True, False))
    records = [each.round(0)["test_loss"] for each in (one, other)]
    assert records[0] != records[1]
    trained = [each.algorithm.state for each in (one, other)]
    equal = all(torch.equal(tensor, trained[1][name]) for name, tensor in trained[0].items())
    assert equal == (addition == "static"), "fitted statistics are for evaluation"


def test_drops_are_from_fedavg_and_no_other_full_model_training(tmp_path):
    tree = {
        "name": "references", "data": {"name": "noise", "train": 40, "test": 40},
        "partition": {"name": "iid", "clients": 4}, "model": {"name": "smallcnn", "width": 4},
        "training": {"rounds": 2, "active": 2, "epochs": 1}, "grid": {"algorithm": ["fedavg", "fedprox", "scaffold"]},
    }  # fmt: skip
    prism_bench.run(tree, out=tmp_path)
    rows = summarise(pd.read_csv(tmp_path / "rounds.csv")).set_index("algorithm")
    shown = table(rows.reset_index()).set_index("algorithm")
    assert rows["cuts"].to_dict() == {"fedavg": False, "fedprox": True, "scaffold": True}
    for name in ("fedprox", "scaffold"):
        assert shown["drop"][name] == pytest.approx(rows["accuracy"][name] - rows["accuracy"]["fedavg"])
    assert pd.isna(shown["drop"]["fedavg"])


# Norms ----------------------------------------------------------------------------------------------------------------

NETWORKS = (
    {"name": "cnn", "width": 20},
    {"name": "smallcnn", "width": 10},
    {"name": "resnet18", "width": 10, "blocks": (1, 1)},
    {"name": "vgg11", "width": 3},
)
"""Narrow: among more channels than a group has their order matters, and no permutation leaves the function alone."""


@pytest.mark.parametrize("norm", ["batch", "static", "group", "none"])
@pytest.mark.parametrize("model", NETWORKS, ids=lambda model: model["name"])
def test_every_network_has_every_norm(model, norm):
    for check in MODEL_CHECKS:
        check(model["name"], {**{key: value for key, value in model.items() if key != "name"}, "norm": norm})


@pytest.mark.parametrize("algorithm", ["fedavg", "origdrop", "splitmix", "prism"])
def test_static_statistics_let_single_images_be_evaluated(algorithm):
    """Of a full model, of a part and of an ensemble; under `batch` the batch decides."""
    one = federation(algorithm, None, BATCH | {"norm": "static"}, (0.2, 0.4))
    one.round(0)
    models = [one.algorithm.full_model(), one.algorithm.trained_part(), one.algorithm.client_model(0.2)]
    for model in filter(None, models):
        statistics = fit(model, one.data, 10)
        single, together = (evaluate(model, one.data, batch, statistics=statistics) for batch in (1, 48))
        assert single.loss == pytest.approx(together.loss, abs=1e-5)
        assert (single.correct == together.correct).all()
        assert evaluate(model, one.data, 8).loss != pytest.approx(together.loss, abs=1e-3), "by each batch's own"
        for moments, again in zip(statistics, fit(model, one.data, 10, workers=2), strict=True):
            assert torch.equal(moments.mean, again.mean)
            assert torch.equal(moments.variance, again.variance)


def test_static_statistics_are_the_means_over_batches_of_training_samples():
    """A network that is one normalisation: by hand."""
    norm = BatchNorm2d(Axis("features", 1))
    norm.static = True

    class Only(Network):
        def __init__(self):
            super().__init__()
            self.norm = norm

        def forward(self, x):
            return self.norm(x).mean((2, 3))

    network, data = Only(), tiny_data(samples=6)
    state = {"norm.weight": torch.ones(1), "norm.bias": torch.zeros(1)}
    model = ServerModel(lambda params, x: dense_forward(network, params, x), state)
    [moments] = fit(model, data, 3)
    order = stream(0, "evaluation").permutation(6)
    x = data.prepare(data.train.inputs)
    batches = [x[order[::2][:3]], x[order[1::2]]]
    torch.testing.assert_close(moments.mean, torch.stack([one.mean() for one in batches]).mean()[None])
    torch.testing.assert_close(moments.variance, torch.stack([one.var() for one in batches]).mean()[None])
    with fitted([moments]):
        trained = dense_forward(network, state, x)
    torch.testing.assert_close(trained, ((x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()).mean((2, 3)))


def test_static_trains_as_batch_does():
    one, other = (federation("origdrop", None, BATCH | {"norm": norm}) for norm in ("static", "batch"))
    one.round(0)
    other.round(0)
    assert all(torch.equal(tensor, other.algorithm.state[name]) for name, tensor in one.algorithm.state.items())


@pytest.mark.parametrize(("count", "groups"), [(5, [5]), (16, [16]), (31, [31]), (32, [16, 16]), (50, [16, 16, 18])])
def test_groups_follow_the_width(count, groups):
    """By hand: each group by its own mean and variance; what is left over goes to the last."""
    network = Network()
    network.norm = GroupNorm(Axis("features", 64))
    network.forward = lambda x: network.norm(x)
    x = torch.randn(3, count, 2, 2, generator=torch.Generator().manual_seed(0))
    weight, bias = torch.linspace(1, 2, count), torch.linspace(-1, 1, count)
    out = dense_forward(network, {"norm.weight": weight, "norm.bias": bias}, x)
    expected = [
        (part - part.mean((1, 2, 3), keepdim=True)) / (part.var((1, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
        for part in x.split(groups, 1)
    ]
    expected = torch.cat(expected, 1) * weight.view(-1, 1, 1) + bias.view(-1, 1, 1)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "norm"), [("cnn", "none"), ("resnet18", "batch"), ("vgg11", "batch")])
def test_a_norm_that_is_the_default_is_no_part_of_a_runs_identity(name, norm):
    """Runs that were made before there was the setting keep their identity."""
    plain, given, other = (
        Plugin.choose("model", {"name": name, **more}) for more in ({}, {"norm": norm}, {"norm": "group"})
    )
    assert plain.as_dict() == given.as_dict()
    assert "norm" not in plain.as_dict()
    assert other.as_dict()["norm"] == "group"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("resnet18", True),
        ("resnet18 width=32 norm=static", False),
        ("smallcnn", False),
        ("smallcnn width=16 norm=batch", True),
        ("lstm", False),
        ("no model of ours", False),
    ],
)
def test_a_table_says_where_a_samples_result_depends_on_its_batch(model, said):
    frame = summarise(rounds_of(("fedavg", "1", 0, [50, 91]))).assign(model=model)
    caption = accuracy.VIEW.table.sheet(table(frame), Form()).caption
    assert ("a sample's result depends on its batch" in caption) == said


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "given", "message"),
    [
        ("algorithm", {"name": "fjord", "widths": []}, r"algorithm\.widths: must be rising shares"),
        ("algorithm", {"name": "fjord", "widths": [0.4, 0.2]}, r"algorithm\.widths: must be rising shares"),
        ("algorithm", {"name": "fjord", "widths": [0.0, 1.0]}, r"algorithm\.widths: must be rising shares"),
        ("algorithm", {"name": "fedprox", "mu": -1}, r"algorithm\.mu: .*greater than or equal to 0"),
        ("algorithm", {"name": "heterofl", "mask": True}, r"algorithm\.mask: there is no such setting"),
        ("model", {"name": "cnn", "norm": "layer"}, r"model\.norm: .*'batch', 'static', 'group' or 'none'"),
    ],
)
def test_wrong_settings_are_named(section, given, message):
    tree = {"data": "digits", "partition": "iid", "model": "smallcnn", "algorithm": "fedavg", section: given}
    with pytest.raises(BadInput, match=message):
        Run.resolve(tree)
