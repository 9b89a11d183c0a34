"""Costs: counted on what runs, and equal to what a person works out by hand."""

from __future__ import annotations

from dataclasses import asdict

import pandas as pd
import pytest
import torch
from shared import ALGORITHMS, MODELS, model_id
from torch.utils.flop_counter import FlopCounterMode

from prism_bench.base.errors import BadInput
from prism_bench.cli.costs import table
from prism_bench.core.algorithm import Client
from prism_bench.core.capacity import Budget, Capacity, kept
from prism_bench.core.submodel import gather
from prism_bench.data.dataset import Signature
from prism_bench.engine import costs
from prism_bench.engine.federation import Federation, split
from prism_bench.engine.sections import Execution
from prism_bench.engine.spec import Run
from prism_bench.models.cnn import FemnistCNN
from prism_bench.models.resnet import ResNet18
from prism_bench.testing import federation

CIFAR, FEMNIST = Signature((3, 32, 32), 10), Signature((1, 28, 28), 62)


def test_the_femnist_cnn_by_hand():
    full = costs.of_full_model(FemnistCNN().build(FEMNIST), FEMNIST, batch=32)
    assert full.parameters == (64 * 25 + 64) + (64 * 64 * 9 + 64) + (64 * 49 * 62 + 62)
    assert full.macs == 784 * 64 * 25 + 196 * 64 * 64 * 9 + 64 * 49 * 62
    assert full.transfer_bytes == 2 * 4 * full.parameters


# Parameters in M and MACs in G at batch 32 of the whole sub-model, worked out by hand: stem and
# shortcuts cut with their stage, BatchNorm, classifier, r = ceil.
RESNET = {1.0: (11.174, 17.77), 0.8: (8.069, 12.92), 0.6: (4.553, 7.28), 0.4: (2.027, 3.26), 0.2: (0.514, 0.828)}


@pytest.fixture(scope="module")
def resnet():
    tree = {"data": "digits", "partition": "iid", "model": "resnet18", "algorithm": "prism"}
    run = Run.resolve(tree)
    network = ResNet18().build(CIFAR)
    dense = {name: torch.zeros(p.shape) for name, p in network.named_parameters()}
    algorithm = run.algorithm.kind(run.algorithm.settings)
    algorithm.build(network, seed=0)
    algorithm.start(dense)
    return algorithm


@pytest.mark.parametrize("keep", [0.8, 0.6, 0.4, 0.2])
def test_prism_on_resnet18_by_hand(resnet, keep):
    one = costs.of_client(resnet, keep, CIFAR, batch=32)
    assert round(one.parameters / 1e6, 3) == RESNET[keep][0]
    assert float(f"{32 * one.macs / 1e9:.3g}") == pytest.approx(RESNET[keep][1], abs=0.05)


def test_full_resnet18_by_hand(resnet):
    one = costs.of_full_model(resnet.network, CIFAR, batch=32)
    assert round(one.parameters / 1e6, 3) == RESNET[1.0][0]
    assert round(32 * one.macs / 1e9, 2) == RESNET[1.0][1]


@pytest.mark.parametrize("model", MODELS, ids=model_id)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_costs_equal_what_actually_ran(algorithm, model):
    """Counted again on real tensors: the sub-model's numbers, its operations, what autograd holds on to."""
    one = federation(algorithm, model=model, keep=0.4)
    counted = costs.of_client(one.algorithm, 0.4, one.data.signature, batch=4)
    [selections] = one.algorithm.select(0, [Client(0, 0.4)])
    parameters, flops, activations = 0, 0, []
    for selection in selections:
        params = gather(one.algorithm.state, one.algorithm.layout, selection)
        params = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
        own = {tensor.untyped_storage().data_ptr() for tensor in params.values()}
        held = {}

        def pack(tensor, own=own, held=held):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                held[storage.data_ptr()] = (storage.nbytes(), tensor)
            return tensor

        x = one.data.prepare(one.data.train.inputs[:4])
        labels = one.data.train.labels[:4].clone()  # a slice would hold on to all of them
        with FlopCounterMode(display=False) as counter, torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            loss = torch.nn.functional.cross_entropy(one.algorithm.forward(params, x), labels)
        assert torch.isfinite(loss)
        parameters += sum(tensor.numel() for tensor in params.values())
        flops += counter.get_total_flops()
        activations.append(sum(size for size, _ in held.values()))
    assert counted.parameters == parameters
    assert counted.macs == flops / 2 / 4
    assert counted.activation_bytes == max(activations)
    assert counted.transfer_bytes == 2 * 4 * parameters


def test_a_mix_costs_its_mean():
    one = federation("origdrop", keep=(0.2, 1.0))
    low, high = (costs.of_client(one.algorithm, keep, one.data.signature, 4) for keep in (0.2, 1.0))
    capacity = Capacity(keep=(0.2, 1.0), share=(0.75, 0.25))
    mixed = costs.average([low, high], capacity.share)
    assert mixed.parameters == 0.75 * low.parameters + 0.25 * high.parameters


@pytest.fixture(scope="module")
def resnet_table():
    return table("resnet18", [1.0, 0.8, 0.6, 0.4, 0.2]).set_index(["algorithm", "keep"])


# Every cell that follows from a convention, to the digit that the paper prints. (37 M at 0.8 is a misprint.)
PRINTED = {
    ("fedavg", 1.0): {"params_M": "11", "macs_G": "35", "mem_M": "31.5"},
    ("prism", 0.8): {"params_M": "7.9", "macs_G": "25.6"},
    ("prism", 0.6): {"params_M": "4.5", "macs_G": "14.7", "mem_M": "28.3"},
    ("prism", 0.4): {"params_M": "2", "macs_G": "6.87", "mem_M": "18.9"},
    ("prism", 0.2): {"params_M": "0.5", "macs_G": "2", "mem_M": "9.4"},
    ("orthdrop", 0.8): {"params_M": "9.9"},
    ("orthdrop", 0.6): {"params_M": "7.4"},
    ("orthdrop", 0.4): {"params_M": "5.0"},
    ("orthdrop", 0.2): {"params_M": "2.5"},
}


@pytest.mark.parametrize("cell", PRINTED, ids=str)
def test_the_papers_view_has_the_papers_digits(resnet_table, cell):
    """To the digit; within one unit where the paper truncates (25.56 → 25.5, 4.95 → 4.9) or rounds up (9.44 → 9.5)."""
    row = resnet_table.loc[cell]
    for key, text in PRINTED[cell].items():
        digits = len(text.partition(".")[2])
        assert f"{row[f'convention_{key}']:.{digits}f}" == text
        assert abs(row[f"convention_{key}"] - row[f"paper_{key}"]) < 1.0 * 10**-digits


def test_what_follows_no_convention_is_shown_and_not_claimed(resnet_table):
    row = resnet_table.loc[("orthdrop", 0.2)]
    assert row["paper_macs_G"] == 7.4
    assert pd.isna(row["convention_macs_G"])


def budget_run(algorithm, budget, model=MODELS[0], params=None):
    tree = {
        "data": "digits",
        "partition": {"name": "iid", "clients": 4},
        "model": dict(model),
        "algorithm": {"name": algorithm, **(params or {})},
        "capacity": {"budget": budget},
        "training": {"rounds": 1, "active": 4, "epochs": 1, "batch": 16},
    }
    run = Run.resolve(tree)
    data = run.data.settings.load()
    return Federation(run, data, split(run, data), Execution(device="cpu"))


@pytest.mark.parametrize(
    "budget",
    [{"macs": "20%"}, {"parameters": 3000}, {"activation_bytes": "60%", "transfer_bytes": "30%"}],
    ids=["macs", "parameters", "both"],
)
@pytest.mark.parametrize("algorithm", ["prism", "origdrop", "splitmix"])
def test_a_budget_gives_the_largest_sub_model_within(algorithm, budget):
    """The one that was chosen fits, and the next larger one does not."""
    one = budget_run(algorithm, budget)
    [keep] = one.keeps
    limits = Budget(**budget)
    ratios = one.algorithm.ratios()
    full, data = asdict(one.full_costs), one.data.signature
    assert limits.allows(asdict(costs.of_client(one.algorithm, keep, data, 16)), full)
    larger = [asdict(costs.of_client(one.algorithm, ratio, data, 16)) for ratio in ratios if ratio > keep]
    assert not any(limits.allows(cost, full) for cost in larger)
    assert one.round(0)["accuracy"] >= 0


def test_a_budget_that_nothing_fits_says_what_the_smallest_costs():
    with pytest.raises(
        BadInput, match=r"nothing fits activation_bytes ≤ 60%; OrthDrop's smallest .* activation_bytes \d"
    ):
        budget_run("orthdrop", {"activation_bytes": "60%"})


def test_a_mix_of_budgets():
    tree = [{"macs": "40%"}, {"macs": "10%"}]
    capacity = Capacity.model_validate({"budget": tree, "share": [0.5, 0.5]})
    assert capacity.label == "macs ≤ 40% (50%) + macs ≤ 10% (50%)"
    with pytest.raises(ValueError, match="not both"):
        Capacity.model_validate({"budget": {"macs": 5}, "keep": 0.2})
    for bad in ({"macs": "lots"}, {"macs": -1}, {"macs": 0}, {"macs": "0%"}, {}, {"mac": 5}):
        with pytest.raises(ValueError, match=r"positive|at least one|Extra"):
            Capacity.model_validate({"budget": bad})


def test_full_training_is_the_reference_whatever_the_budget():
    assert budget_run("fedavg", {"macs": "1%"}).keeps == (1.0,)


def test_prism_can_split_its_budget_between_rank_and_channels():
    one = budget_run("prism", {"macs": "20%"}, params={"channel_keep": 0.8}).algorithm
    [[selection]] = one.select(0, [Client(0, one.keeps[0])])
    assert len(selection["conv1"]) == 16
    assert len(selection["convs.1.rank"]) == kept(one.keeps[0], 20) < 16
    fixed = federation("prism", {"rank_keep": 1.0, "channel_keep": 0.5}, keep=0.2).algorithm
    [[selection]] = fixed.select(0, [Client(0, 0.2)])
    assert (len(selection["conv1"]), len(selection["convs.1.rank"])) == (10, 20)
