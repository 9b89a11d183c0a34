"""Costs: counted on what runs, and equal to what a person works out by hand."""

from __future__ import annotations

import pytest
import torch
from shared import ALGORITHMS, MODELS, model_id
from torch.utils.flop_counter import FlopCounterMode

from prism_bench import costs
from prism_bench.algorithm import Client
from prism_bench.capacity import Capacity
from prism_bench.data.dataset import Signature
from prism_bench.models.cnn import FemnistCNN
from prism_bench.models.resnet import ResNet18
from prism_bench.rounds import Run
from prism_bench.submodel import gather
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
    return run.algorithm.kind(run.algorithm.settings, network, dense, (0.2,), 0)


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
