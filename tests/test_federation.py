"""A run: what is shared between algorithms, and what a round records."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from shared import ALGORITHMS

from prism_bench.core.capacity import Capacity
from prism_bench.engine import hardware, local
from prism_bench.engine.federation import Federation, split
from prism_bench.engine.sections import Execution
from prism_bench.engine.spec import Run
from prism_bench.testing import federation

TREE = {
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 20, "alpha": 0.5},
    "model": {"name": "smallcnn", "width": 5},
    "capacity": {"keep": [0.4, 0.2], "share": [0.4, 0.6]},
    "training": {"rounds": 2, "active": 5, "epochs": 1, "batch": 16},
}


def recorded(algorithm, monkeypatch, seed=0):
    """Run two rounds and note which client trained on which batches, in which order."""
    run = Run.resolve(TREE | {"algorithm": algorithm, "seed": seed})
    data = run.data.settings.load()
    partition = split(run, data)
    seen = []
    plan = local.Schedule.plan

    def spy(samples, training, seed, round, client):
        schedule = plan(samples, training, seed, round, client)
        seen.append((round, client, tuple(tuple(batch.tolist()) for batch in schedule.batches)))
        return schedule

    monkeypatch.setattr(local.Schedule, "plan", spy)
    weights = {}
    initial = type(run.model.settings.build(data.signature)).initial

    def note(self, rng):
        weights.update(initial(self, rng))
        return {name: tensor.clone() for name, tensor in weights.items()}

    monkeypatch.setattr("prism_bench.core.network.Network.initial", note)
    one = Federation(run, data, partition, Execution(device="cpu"))
    cohorts = [one.cohort(round) for round in range(2)]
    list(one.rounds())
    monkeypatch.undo()
    return partition, cohorts, weights, sorted(set(seen))


@pytest.mark.parametrize("algorithm", ALGORITHMS[1:])
def test_equal_seeds_give_equal_draws_across_algorithms(algorithm, monkeypatch):
    """Population, cohort, capacity, initial weights and batch order."""
    reference = recorded("fedavg", monkeypatch)
    partition, cohorts, weights, batches = recorded(algorithm, monkeypatch)
    assert np.array_equal(partition.order, reference[0].order)
    assert [[c.number for c in cohort] for cohort in cohorts] == [[c.number for c in x] for x in reference[1]]
    assert all(torch.equal(weights[name], tensor) for name, tensor in reference[2].items())
    assert batches == reference[3]
    other = recorded("origdrop", monkeypatch)
    assert cohorts == other[1], "the same keep ratio for the same client"


def test_other_seeds_give_other_draws(monkeypatch):
    first, second = (recorded("fedavg", monkeypatch, seed) for seed in (0, 1))
    assert not np.array_equal(first[0].order, second[0].order)
    assert first[1] != second[1]
    assert not torch.equal(first[2]["convs.0.weight"], second[2]["convs.0.weight"])


@pytest.mark.parametrize(
    ("keep", "share", "clients", "counts"),
    [((0.4, 0.2), (0.4, 0.6), 100, [40, 60]), ((0.4, 0.2), (0.4, 0.6), 7, [3, 4]), ((0.5,), (1.0,), 3, [3])],
)
def test_capacities_have_exact_counts(keep, share, clients, counts):
    dealt = Capacity(keep=keep, share=share).deal(clients, np.random.default_rng(0))
    assert np.bincount(dealt, minlength=len(keep)).tolist() == counts


def test_a_client_keeps_its_capacity_unless_redrawn():
    def ratios(redraw):
        tree = TREE | {"algorithm": "prism", "capacity": {"keep": [0.4, 0.2], "share": [0.4, 0.6], "redraw": redraw}}
        tree["training"] = {"active": 20, "rounds": 3}
        run = Run.resolve(tree)
        data = run.data.settings.load()
        one = Federation(run, data, split(run, data), Execution(device="cpu"))
        return [{client.number: client.keep for client in one.cohort(round)} for round in range(3)]

    fixed, redrawn = ratios(False), ratios(True)
    assert fixed[0] == fixed[1] == fixed[2]
    assert len({tuple(sorted(each.items())) for each in redrawn}) == 3
    assert all(sorted(each.values()) == sorted(fixed[0].values()) for each in redrawn)
    mix = Capacity(keep=(0.4, 0.2), share=(0.401, 0.599), redraw=True)
    assert mix.label == "0.4 (40.1%) + 0.2 (59.9%), redrawn", "two capacities never share a cell of the table"


def test_rounds_have_cohorts_of_their_own():
    run = Run.resolve(TREE | {"algorithm": "fedavg"})
    data = run.data.settings.load()
    one = Federation(run, data, split(run, data), Execution(device="cpu"))
    cohorts = [frozenset(client.number for client in one.cohort(round)) for round in range(4)]
    assert len(set(cohorts)) == 4
    assert len(frozenset.union(*cohorts)) > 5


def test_a_checkpoint_holds_what_clients_have_paid():
    before, after = federation("prism"), federation("prism")
    before.round(0)
    after.restore(before.checkpoint())
    assert sum(sizes.total() for sizes in before.charged.values()) > 0
    assert after.charged == before.charged


def test_a_round_records_all_three_accuracies_and_its_stages():
    record = federation("prism").round(0)
    assert {"round", "lr", "train_loss", "accuracy", "accuracy_full", "accuracy_trained", "test_loss"} <= set(record)
    assert {f"seconds_{s}" for s in ("create", "train", "merge", "refresh", "evaluate")} <= set(record)
    assert record["accuracy"] == record["accuracy_full"]


def test_evaluation_can_be_seldom_but_never_misses_the_last_round():
    run = Run.resolve(
        TREE | {"algorithm": "fedavg", "training": {"rounds": 5, "active": 2}, "evaluation": {"every": 2}}
    )
    data = run.data.settings.load()
    records = list(Federation(run, data, split(run, data), Execution(device="cpu")).rounds())
    assert [record["round"] for record in records if "accuracy" in record] == [2, 4, 5]


def test_learning_rate_schedules():
    cosine = federation("fedavg", lr=1.0, rounds=4)
    assert [cosine.trainer.learning_rate(r) for r in range(4)] == pytest.approx([1, 0.853553, 0.5, 0.146447], abs=1e-5)
    assert federation("fedavg", lr=1.0, rounds=4, schedule="constant").trainer.learning_rate(3) == 1.0


def test_threads_are_few_where_operations_are_small():
    before = torch.get_num_threads()
    for wanted, macs, expected in (("auto", 1e6, 1), ("auto", 1e9, before), (3, 1e6, 3)):
        with hardware.threads(Execution(threads=wanted), macs):
            assert torch.get_num_threads() == expected
        assert torch.get_num_threads() == before


def test_identity_is_the_settings():
    base = Run.resolve(TREE | {"algorithm": "prism"})
    spelt_out = Run.resolve(TREE | {"algorithm": {"name": "prism", "channels": "prefix"}})
    assert base.identity == spelt_out.identity, "a default that is spelt out is the same run"
    assert base.identity != Run.resolve(TREE | {"algorithm": {"name": "prism", "kappa": 4}}).identity
    assert base.identity != Run.resolve(TREE | {"algorithm": "prism", "seed": 1}).identity
    full = [Run.resolve(TREE | {"algorithm": "fedavg", "capacity": {"keep": keep}}).identity for keep in (0.2, 0.4)]
    assert full[0] == full[1], "a capacity that the method does not use makes no other run"


def test_it_learns_real_digits():
    """Not only mechanics: FedAvg and each method at 0.5 get well above chance in a few rounds."""
    tree = TREE | {
        "capacity": {"keep": 0.5},
        "model": {"name": "smallcnn", "width": 16, "norm": "batch"},
        "training": {"rounds": 12, "active": 10, "epochs": 2, "batch": 16, "lr": 0.1},
        "evaluation": {"every": 12},
    }
    for algorithm, at_least in {"fedavg": 90, "prism": 60, "orthdrop": 80, "origdrop": 80, "splitmix": 60}.items():
        run = Run.resolve(tree | {"algorithm": algorithm})
        data = run.data.settings.load()
        record = list(Federation(run, data, split(run, data), Execution(device="cpu")).rounds())[-1]
        assert record["accuracy"] > at_least, (algorithm, record)
