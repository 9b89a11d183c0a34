"""FedAvg, OrthDrop, OrigDrop and SplitMix: each one's own rule, by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from shared import ALGORITHMS
from torch import nn

from prism_bench.base.errors import BadInput
from prism_bench.core.algorithm import Client
from prism_bench.core.submodel import Merge, gather
from prism_bench.engine.local import Schedule
from prism_bench.testing import federation, tiny_data

CNN = {"name": "cnn", "width": 10}


class HandWritten(nn.Module):
    """The same network in plain torch."""

    def __init__(self, classes):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(1, 10, 5, padding=2), nn.Conv2d(10, 10, 3, padding=1)])
        self.classifier = nn.Linear(10 * 2 * 2, classes)

    def forward(self, x):
        for conv in self.convs:
            x = F.max_pool2d(F.relu(conv(x)), 2)
        return self.classifier(x.flatten(1))


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_fedavg_equals_a_hand_written_loop(at_once):
    """Plain modules, torch's own SGD, a mean of state dicts: three rounds, step by step."""
    one = federation("fedavg", model=CNN, sizes=(12, 12, 9, 14), at_once=at_once, epochs=2)
    training, partition, data = one.run.training, one.population, one.data
    server = HandWritten(data.classes)
    server.load_state_dict(one.algorithm.state)
    for round in range(training.rounds):
        lr = training.lr * (1 + torch.cos(torch.tensor(torch.pi * round / training.rounds)).item()) / 2
        uploads = []
        for client in one.cohort(round):
            local = HandWritten(data.classes)
            local.load_state_dict(server.state_dict())
            optimiser = torch.optim.SGD(local.parameters(), lr, training.momentum, weight_decay=training.decay)
            for batch in Schedule.plan(partition[client.number], training, one.run.seed, round, client.number).batches:
                optimiser.zero_grad()
                x = data.prepare(data.train.inputs[batch])
                F.cross_entropy(local(x), data.train.labels[batch]).backward()
                optimiser.step()
            uploads.append(local.state_dict())
        server.load_state_dict({n: sum(u[n] for u in uploads) / len(uploads) for n in uploads[0]})
        record = one.round(round)
        assert record["lr"] == pytest.approx(lr)
        for name, tensor in server.state_dict().items():
            torch.testing.assert_close(one.algorithm.state[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_client_with_everything_and_no_steps_changes_nothing(algorithm):
    one = federation(algorithm, keep=1.0, sizes=(12,), epochs=0)
    before = one.algorithm.full_model().state
    one.round(0)
    after = one.algorithm.full_model().state
    for name, tensor in before.items():
        exact = not hasattr(one.algorithm, "space")
        # The refresh decomposes again: the same matrix, to rounding.
        torch.testing.assert_close(after[name], tensor, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)


def test_orthdrop_takes_the_strongest_kernels_and_all_channels():
    algorithm = federation("orthdrop", keep=0.4).algorithm
    [[selection]] = algorithm.select(0, [Client(0, 0.4)])
    assert set(selection) == {"convs.1.rank", "convs.2.rank"}
    assert selection["convs.1.rank"].tolist() == list(range(8))
    sigma = algorithm.space.sigma(algorithm.state, "convs.1")
    assert torch.all(sigma[:-1] >= sigma[1:])


def test_orthdrop_keeps_what_was_not_selected():
    algorithm = federation("orthdrop", keep=0.4).algorithm
    [[selection]] = algorithm.select(0, [Client(0, 0.4)])
    merge = Merge(algorithm.state, algorithm.layout)
    merge.add(selection, {n: 0 * t for n, t in gather(algorithm.state, algorithm.layout, selection).items()})
    merged = merge.result()
    assert torch.equal(merged["convs.1.u"][:, 8:], algorithm.state["convs.1.u"][:, 8:])
    assert not merged["convs.1.u"][:, :8].any()


def test_origdrop_cuts_filters_with_their_inputs():
    algorithm = federation("origdrop", model=CNN, keep=0.4).algorithm
    [[selection]] = algorithm.select(0, [Client(0, 0.4)])
    cut = gather(algorithm.state, algorithm.layout, selection)
    assert torch.equal(cut["convs.1.weight"], algorithm.state["convs.1.weight"][:4, :4])
    # The flattened 2×2 map: four entries a channel.
    assert torch.equal(cut["classifier.weight"], algorithm.state["classifier.weight"][:, :16])


def test_origdrop_deploys_what_the_largest_capacity_trains():
    one = federation("origdrop", keep=(0.2, 0.4))
    part = one.algorithm.trained_part()
    assert part.state["convs.1.weight"].shape[:2] == (8, 4)
    record = one.round(0)
    assert record["accuracy"] == record["accuracy_trained"]


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_activation_scaling(norm):
    """Each cut layer's output times 1/ρ; nothing on the full model; nothing where BatchNorm follows."""
    model = {"name": "smallcnn", "width": 10, "norm": norm}
    plain, scaled = (federation("origdrop", {"scaling": on}, model, keep=0.5).algorithm for on in (False, True))
    x = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(plain.forward(plain.state, x), scaled.forward(scaled.state, x), rtol=0, atol=0)
    [[selection]] = plain.select(0, [Client(0, 0.5)])
    small = gather(plain.state, plain.layout, selection)
    small = {name: 0 * t if name.endswith("bias") else t for name, t in small.items()}
    expected = plain.forward(small, x) * (1 if norm == "batch" else 2**3)
    torch.testing.assert_close(scaled.forward(small, x), expected, rtol=1e-3, atol=1e-4)


def chosen(algorithm, round=0, keep=0.4, number=0):
    [[selection]] = algorithm.select(round, [Client(number, keep)])
    return {axis: indices.tolist() for axis, indices in selection.items()}


def test_fedrolex_rolls_its_window_over_the_end():
    """Ten filters in each of two layers, four kept: the window of round 8 goes on at the beginning."""
    algorithm = federation("fedrolex", model=CNN, keep=0.4).algorithm
    assert chosen(algorithm, round=0) == {"conv0": [0, 1, 2, 3], "conv1": [0, 1, 2, 3]}
    assert chosen(algorithm, round=1) == {"conv0": [1, 2, 3, 4], "conv1": [1, 2, 3, 4]}
    assert chosen(algorithm, round=8) == {"conv0": [0, 1, 8, 9], "conv1": [0, 1, 8, 9]}
    assert algorithm.trained_part() is None, "the full model is deployed"


@pytest.mark.parametrize("keep", [0.4, (0.2, 0.4)])
def test_fedrolex_that_stands_still_is_origdrop(keep):
    still, ordered = federation("fedrolex", {"step": 0}, CNN, keep=keep), federation("origdrop", model=CNN, keep=keep)
    for round in range(2):
        still.round(round)
        ordered.round(round)
    for name, tensor in ordered.algorithm.state.items():
        torch.testing.assert_close(still.algorithm.state[name], tensor, rtol=0, atol=0)


def test_feddropout_draws_for_each_client_and_round_and_reaches_every_filter():
    algorithm = federation("feddropout", model=CNN, keep=0.4).algorithm
    draws = [chosen(algorithm, round, number=number) for round in range(5) for number in range(4)]
    assert len({str(draw) for draw in draws}) == len(draws)
    assert all(len(set(kept)) == 4 for draw in draws for kept in draw.values())
    for axis in ("conv0", "conv1"):
        assert {index for draw in draws for index in draw[axis]} == set(range(10))
    assert chosen(algorithm, 3, number=2) == draws[14], "the same draw again, whenever it is asked for"


def test_feddropout_merges_only_what_was_held():
    """Two clients, worked by hand: an entry is the mean over those that held it, and stays where none did."""
    one = federation("feddropout", model=CNN, keep=0.4).algorithm
    plan = [selections[0] for selections in one.select(0, [Client(0, 0.4), Client(1, 0.4)])]
    merge = Merge(one.state, one.layout)
    for value, selection in zip((2.0, 4.0), plan, strict=True):
        part = gather(one.state, one.layout, selection)
        merge.add(selection, {name: torch.full_like(tensor, value) for name, tensor in part.items()})
    bias, (first, second) = merge.result()["convs.0.bias"], [set(s["conv0"].tolist()) for s in plan]
    for index in range(10):
        held = [value for value, kept in ((2.0, first), (4.0, second)) if index in kept]
        expected = sum(held) / len(held) if held else one.state["convs.0.bias"][index].item()
        assert bias[index].item() == pytest.approx(expected, rel=1e-6)


def test_anycost_takes_the_largest_filters_of_each_layer():
    algorithm = federation("anycost", model=CNN, keep=0.4).algorithm
    for name, large in (("convs.0.weight", [1, 4, 6, 9]), ("convs.1.weight", [0, 2, 3, 8])):
        algorithm.state[name].fill_(0.1)
        algorithm.state[name][large] = 0.2
    assert chosen(algorithm) == {"conv0": [1, 4, 6, 9], "conv1": [0, 2, 3, 8]}
    algorithm.state["convs.0.weight"][5, 0, 0, 0] = 100.0
    assert chosen(algorithm, keep=0.1)["conv0"] == [5], "the norm of the whole filter, as it is now"
    part = algorithm.trained_part()
    assert part.state["convs.1.weight"].shape[:2] == (4, 4)


def test_anycost_is_origdrop_where_the_filters_are_sorted():
    one, ordered = (federation(name, model=CNN, keep=0.4) for name in ("anycost", "origdrop"))
    for name in ("convs.0.weight", "convs.1.weight"):
        falling = torch.linspace(2, 1, 10).view(-1, 1, 1, 1)
        for federated in (one, ordered):
            weight = federated.algorithm.state[name]
            weight.copy_(weight / weight.flatten(1).norm(dim=1).view(-1, 1, 1, 1) * falling)
    for federated in (one, ordered):
        federated.round(0)
    for name, tensor in ordered.algorithm.state.items():
        torch.testing.assert_close(one.algorithm.state[name], tensor, rtol=0, atol=0)


def test_splitmix_trains_every_atom_in_turn():
    algorithm = federation("splitmix", keep=0.2, sizes=(4,) * 5).algorithm
    assert algorithm.atoms == 5
    for round in range(3):
        plan = algorithm.select(round, [Client(number, 0.2) for number in (3, 1, 4, 0, 2)])
        leads = [selections[0]["atom"].item() for selections in plan]
        assert sorted(leads) == [0, 1, 2, 3, 4], "a shuffled cycle covers all"
    short = [algorithm.select(round, [Client(0, 0.2), Client(1, 0.2)]) for round in range(5)]
    leads = [selections[0]["atom"].item() for plan in short for selections in plan]
    assert sorted(leads) == sorted(2 * [0, 1, 2, 3, 4])


@pytest.mark.parametrize(("keep", "atoms"), [(0.2, 1), (0.4, 2), (0.6, 3), (0.8, 4), (1.0, 5)])
def test_splitmix_budget(keep, atoms):
    """0.6/0.2 is 3 atoms, though int(0.6/0.2) is 2."""
    algorithm = federation("splitmix", keep=keep).algorithm
    [selections] = algorithm.select(0, [Client(0, keep)])
    chosen = [selection["atom"].item() for selection in selections]
    assert len(chosen) == len(set(chosen)) == atoms


def test_splitmix_atoms_are_blocks_of_the_initial_model():
    algorithm = federation("splitmix", model=CNN).algorithm
    dense = federation("fedavg", model=CNN).algorithm.state
    for atom, start in enumerate(range(0, 10, 2)):
        rows = slice(start, start + 2)
        assert torch.equal(algorithm.state["convs.1.weight"][atom], dense["convs.1.weight"][rows, rows])


def test_splitmix_ensemble_is_the_mean_of_logits():
    one = federation("splitmix")
    one.round(0)
    algorithm, data = one.algorithm, tiny_data()
    x = data.prepare(data.test.inputs)
    logits = []
    for atom in range(5):
        alone = gather(algorithm.state, algorithm.layout, {"atom": torch.tensor([atom])})
        logits.append(algorithm.forward(alone, x))
    full = algorithm.full_model()
    torch.testing.assert_close(full.forward(full.state, x), torch.stack(logits).mean(0), rtol=1e-4, atol=1e-5)


def test_splitmix_atoms_share_nothing():
    one = federation("splitmix", keep=0.2, sizes=(12,))
    before = {name: tensor.clone() for name, tensor in one.algorithm.state.items()}
    [[selection]] = one.algorithm.select(0, one.cohort(0))
    trained = selection["atom"].item()
    one.round(0)
    for name, tensor in one.algorithm.state.items():
        for atom in range(5):
            assert torch.equal(tensor[atom], before[name][atom]) == (atom != trained), (name, atom)


def test_a_client_below_one_atom_is_an_error():
    one = federation("splitmix", keep=0.2).algorithm
    with pytest.raises(BadInput, match=r"keep ratio 0\.05 can't train one atom of 0\.2"):
        one.check(one.params, one.network, (0.2, 0.05))
    one.check(one.params, one.network, (0.2, 0.1000001))
