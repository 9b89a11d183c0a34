"""The two controls, what each client would run, and who takes part."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import prism_bench
from prism_bench.base.errors import BadPlugin
from prism_bench.baselines.origdrop import OrigDrop
from prism_bench.core.algorithm import Client
from prism_bench.data.dataset import Dataset, Split
from prism_bench.data.population import Population
from prism_bench.engine.by_client import ByClient, mixed, worst
from prism_bench.engine.federation import Federation, split
from prism_bench.engine.sections import Execution
from prism_bench.engine.spec import Run

TREE = {
    "data": "digits",
    "partition": {"name": "iid", "clients": 20},
    "model": {"name": "smallcnn", "width": 10},
    "capacity": {"keep": [0.4, 0.2], "share": [0.4, 0.6]},
    "training": {"rounds": 2, "active": 5, "epochs": 1, "lr": 0.05},
}


def federation(algorithm, **changes) -> Federation:
    run = Run.resolve(TREE | {"algorithm": algorithm} | changes)
    data = run.data.settings.read(run.evaluation.on)
    return Federation(run, data, split(run, data), Execution(device="cpu"))


def test_exclusive_draws_among_the_strong_alone():
    one = federation("exclusive")
    strong = np.flatnonzero(one.dealt == 0)
    assert len(strong) == 8
    for round in range(20):
        cohort = one.cohort(round)
        assert len(cohort) == 5
        assert {client.keep for client in cohort} == {0.4}
        assert {client.number for client in cohort} <= set(strong.tolist())
    drawn = {client.number for round in range(40) for client in one.cohort(round)}
    assert drawn == set(strong.tolist()), "each of them takes part"


def test_exclusive_with_fewer_strong_clients_than_active_ones():
    one = federation("exclusive", capacity={"keep": [0.4, 0.2], "share": [0.1, 0.9]})
    assert len(one.cohort(0)) == 2


def test_exclusive_where_capacities_are_redrawn():
    one = federation("exclusive", capacity={"keep": [0.4, 0.2], "share": [0.4, 0.6], "redraw": True})
    cohort = one.cohort(3)
    assert {client.keep for client in cohort} == {0.4}
    assert len({client.number for client in cohort}) == 5


def test_exclusive_is_origdrop_where_all_are_equal():
    frames = [
        prism_bench.run(TREE | {"algorithm": name, "capacity": {"keep": 0.4}})["accuracy"].tolist()
        for name in ("exclusive", "origdrop")
    ]
    assert frames[0] == frames[1]


def test_exclusive_costs_what_those_pay_who_take_part():
    one, other = federation("exclusive"), federation("origdrop", capacity={"keep": 0.4})
    assert one.costs()["parameters"] == other.costs()["parameters"]
    assert one.costs()["keep_ratio"] == 0.4


def test_small_gives_everybody_what_the_weakest_can_train():
    one = federation("small")
    for keep in (0.4, 0.2):
        [[selection]] = one.algorithm.select(0, [Client(0, keep)])
        assert {axis: len(chosen) for axis, chosen in selection.items()} == {"conv0": 2, "conv1": 4, "conv2": 4}
    assert {client.keep for round in range(5) for client in one.cohort(round)} == {0.4, 0.2}, "all take part"
    record = one.round(0)
    assert (
        record["accuracy"] == record["accuracy_trained"] == record["accuracy_client_1"] == record["accuracy_client_2"]
    )
    weak = federation("origdrop", capacity={"keep": 0.2})
    assert one.costs()["macs"] == weak.costs()["macs"]


def test_small_beside_a_whole_client_deploys_the_small_network():
    part = federation("small", capacity={"keep": [1.0, 0.2], "share": [0.5, 0.5]}).algorithm.trained_part()
    assert part.state["convs.1.weight"].shape[:2] == (4, 2)


def test_small_is_origdrop_at_the_weakest_capacity():
    """By hand: the same cohort, batches and first weights, and 0.2 for everybody."""
    small = prism_bench.run(TREE | {"algorithm": "small"})
    weak = prism_bench.run(TREE | {"algorithm": "origdrop", "capacity": {"keep": 0.2}})
    assert small["accuracy"].tolist() == weak["accuracy"].tolist()


def test_a_method_that_leaves_everybody_out_is_told_so():
    class Nobody(OrigDrop):
        """Leaves every client out."""

        def takes_part(self, keep):
            return False

    with pytest.raises(BadPlugin, match="`takes_part` leaves every client out"):
        federation(Nobody).cohort(0)


@pytest.mark.parametrize("name", ["prism", "orthdrop", "origdrop", "splitmix"])
def test_what_a_client_runs_is_no_larger_than_what_it_trains(name):
    one = federation(name)
    for keep in (0.4, 0.2):
        model = one.algorithm.client_model(keep)
        trained = one.algorithm.select(0, [Client(0, keep)])[0]
        sizes = [sum(t.numel() for t in one.algorithm.part(selection).state.values()) for selection in trained]
        assert sum(tensor.numel() for tensor in model.state.values()) <= sum(sizes)
        assert model.forward(model.state, torch.zeros(3, 1, 8, 8)).shape == (3, 10)


def test_prism_with_all_channels_runs_the_largest_kernels():
    one = federation({"name": "prism", "channels": "all"})
    model = one.algorithm.client_model(0.2)
    u = one.algorithm.state["convs.1.u"]
    assert torch.equal(model.state["convs.1.u"], u[:, :4]), "kernels are in falling order of σ"


# By hand: four test samples of two writers, who are with clients 1 and 0.


def written(owners=("a", "a", "b"), tested=("b", "a", "a", "c")) -> Dataset:
    images = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    labels = torch.tensor([0, 1, 1, 0])
    return Dataset(Split(images[:3], labels[:3]), Split(images, labels), 2, owners=owners, test_owners=tested)


def test_clients_are_tested_on_their_writers_samples():
    by = ByClient(written(), Population.from_owners(np.array([1, 1, 0]), 3))
    accuracies = by.accuracies(np.array([True, True, False, True]))
    assert accuracies[:2].tolist() == [100.0, 50.0]
    assert np.isnan(accuracies[2]), "the third has no samples"


def test_without_writers_clients_are_tested_by_their_labels():
    data = written(owners=None, tested=None)
    # Client 0 has labels 0 and 1, client 1 has a 1.
    by = ByClient(data, Population.from_owners(np.array([0, 0, 1]), 2))
    # Class 0: one of two right; class 1: both right.
    assert by.accuracies(np.array([True, True, True, False])).tolist() == [75.0, 100.0]


def test_a_writer_with_several_clients_says_nothing_of_either():
    by = ByClient(written(), Population.from_owners(np.array([0, 1, 1]), 2))
    assert by.accuracies(np.array([True, True, True, False])).tolist() == [50.0, 100.0], "by labels"


def test_worst_tenth_and_capacities():
    assert worst(np.arange(20.0)) == 0.5
    assert worst(np.array([np.nan, 30.0])) == 30.0
    each = [np.array([10.0, 20.0]), np.array([1.0, 2.0])]
    assert mixed(each, np.array([1, 0]), (0.5, 0.5)).tolist() == [1.0, 20.0]
    assert mixed(each, None, (0.5, 0.5)).tolist() == [5.5, 11.0]


def test_capacities_kept_and_redrawn_come_from_different_streams():
    from prism_bench.core.seeds import stream

    assert stream(0, "capacity").integers(2**60) != stream(0, "redraw", 0).integers(2**60)


def test_thin_networks_may_start_at_their_own_scale():
    """The first weights as a network of that width would draw them: ±1/√inputs."""
    for name, keep in (("origdrop", 0.2), ("splitmix", 0.2), ("prism", 0.2), ("orthdrop", 1.0), ("fedavg", 1.0)):
        thin = federation(name, capacity={"keep": 0.2}, training=TREE["training"] | {"fan_in": "thin"}).algorithm
        full = federation(name, capacity={"keep": 0.2}).algorithm
        weight = "convs.1.u" if name in ("prism", "orthdrop") else "convs.1.weight"
        grow = thin.state[weight].norm() / full.state[weight].norm()
        if weight.endswith("u"):
            grow = grow**2  # both factors share it
        assert grow.item() == pytest.approx(keep**-0.5, rel=1e-4), name
        assert torch.equal(thin.state["convs.0.weight"], full.state["convs.0.weight"]), "pixels are not cut"
