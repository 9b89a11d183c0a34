"""FedHM, DepthFL, ScaleFL, FLANC and LoRA: each one's own rule, by hand, and where it is another method."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from prism_bench.base import registry
from prism_bench.base.errors import BadInput
from prism_bench.core.algorithm import Client
from prism_bench.core.objective import Step
from prism_bench.core.submodel import gather
from prism_bench.data.dataset import Signature
from prism_bench.engine import costs
from prism_bench.testing import double, federation

SEEN = torch.ones(4, dtype=torch.bool)
CNN = {"name": "cnn", "width": 10}
RESNET = {"name": "resnet18", "width": 10, "blocks": (2, 2)}
BATCH = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def part(algorithm, keep):
    """What a client of that capacity is sent."""
    [[selection]] = algorithm.select(0, [Client(0, keep)])
    return gather(algorithm.state, algorithm.layout, selection)


def merged(algorithm, uploads):
    """The server's tensors after clients of these keep ratios sent what ``change`` made of their sub-models."""
    merge = algorithm.merge()
    for keep, change in uploads:
        [[selection]] = algorithm.select(0, [Client(0, keep)])
        merge.add(selection, change(gather(algorithm.state, algorithm.layout, selection)))
    return merge.result()


def filled(value):
    return lambda part: {name: torch.full_like(tensor, value) for name, tensor in part.items()}


def same_rounds(one, other, names=None, rounds=2, **tolerance):
    for round in range(rounds):
        one.round(round)
        other.round(round)
    for name, tensor in other.algorithm.state.items():
        if names is None or name in names:
            torch.testing.assert_close(one.algorithm.state[name], tensor, **tolerance)


# Parts ----------------------------------------------------------------------------------------------------------------


def test_a_part_of_which_nothing_is_selected_is_not_there():
    one = federation("depthfl", model=CNN, keep=0.5).algorithm
    assert sorted(part(one, 0.5)) == ["convs.0.bias", "convs.0.weight", "exits.0.bias", "exits.0.weight"]
    assert sorted(part(one, 1.0)) == sorted(one.state)
    assert {part.name for part in one.layout.parts.values()} == {"block1"}


@pytest.mark.parametrize("name", ["smallcnn", "cnn", "vgg11", "lstm", "deit", "resnet18"])
def test_every_network_is_its_blocks(name):
    """Every tensor but those of the way in and the first block belongs to one later block, the last's with the ends."""
    model = registry.load("models", name, "model.name")()
    network = model.build(model.usual).with_exits()
    parts = network.layout().parts
    assert {part.name for part in parts.values()} == {f"block{number}" for number in range(1, network.depth)}
    assert parts["classifier.weight"].name == f"block{network.depth - 1}"
    always = {name.split(".")[0] for name in network.layout().dims if name not in parts}
    assert "exits" in always
    assert "classifier" not in always


# FedHM ----------------------------------------------------------------------------------------------------------------


def test_fedhm_means_the_recomposed_weights():
    """Two clients, one with the top half of the kernels and one with the whole weight: both count in every entry."""
    one = federation("fedhm", model=CNN, keep=(0.4, 1.0)).algorithm
    before = one.state["convs.1.weight"].clone()
    low, whole = part(one, 0.4), part(one, 1.0)
    assert low["convs.1.u"].shape == (10, 4)
    assert "convs.1.weight" not in low
    assert "convs.1.u" not in whole
    assert torch.equal(whole["convs.1.weight"], before)
    u, s, vh = torch.linalg.svd(before.flatten(1), full_matrices=False)
    top = (u[:, :4] * s[:4] @ vh[:4]).view_as(before)
    torch.testing.assert_close((low["convs.1.u"] @ low["convs.1.v"].flatten(1)).view_as(before), top)
    after = merged(one, [(0.4, lambda part: part), (1.0, lambda part: part)])
    torch.testing.assert_close(after["convs.1.weight"], (top + before) / 2)
    one.finish_round(0, after)
    product = one.state["convs.1.u"] @ one.state["convs.1.v"].flatten(1)
    torch.testing.assert_close(product, one.state["convs.1.weight"].flatten(1))


def test_fedhm_at_full_rank_is_fedavg():
    same_rounds(federation("fedhm", model=CNN, keep=1.0), federation("fedavg", model=CNN), rtol=0, atol=0)


def test_fedhm_sends_factors_only_where_they_are_smaller():
    """Of a 10×90 matrix, rank 9 is 900 numbers: as many as the matrix has."""
    one = federation("fedhm", model=CNN, keep=1.0).algorithm
    assert "convs.1.u" in part(one, 0.8)
    assert "convs.1.weight" in part(one, 0.9)


def test_fedhm_differs_from_orthdrop_in_what_a_weak_client_does_to_the_rest():
    for name, lost in (("fedhm", True), ("orthdrop", False)):
        run = federation(name, model=CNN, keep=0.4, epochs=0)
        before = run.algorithm.full_model().state["convs.1.weight"].clone()
        run.round(0)
        after = run.algorithm.full_model().state["convs.1.weight"]
        assert torch.allclose(after, before, atol=1e-5) is not lost


# DepthFL --------------------------------------------------------------------------------------------------------------


def test_depthfl_means_each_block_over_those_that_had_it():
    """Two convolutions, two clients, one with the first only."""
    one = federation("depthfl", model=CNN, keep=(0.5, 1.0)).algorithm
    after = merged(one, [(0.5, filled(2.0)), (1.0, filled(4.0))])
    for name in ("convs.0.weight", "exits.0.weight"):
        assert torch.allclose(after[name], torch.tensor(3.0)), name
    for name in ("convs.1.weight", "classifier.weight"):
        assert torch.allclose(after[name], torch.tensor(4.0)), name


@pytest.mark.parametrize(("keep", "depth"), [(0.1, 1), (0.25, 1), (0.49, 1), (0.5, 2), (0.75, 3), (0.99, 3), (1.0, 4)])
def test_depthfl_keeps_as_many_blocks_as_the_ratio_pays_for(keep, depth):
    one = federation("depthfl", model=RESNET, keep=keep).algorithm
    assert one.forward(part(one, keep), BATCH).shape == (6, depth, 4)


def test_depthfl_at_full_depth_without_distillation_is_fedavg_with_exits():
    """The same network trained by hand on the sum of its exits' losses, by clients whose mean is the server's."""
    run = federation("depthfl", {"distillation": 0}, CNN, keep=1.0, sizes=(4, 4), rounds=1, momentum=0, decay=0)
    start, data = {name: tensor.clone() for name, tensor in run.algorithm.state.items()}, run.data
    uploads = []
    for client in run.cohort(0):
        state = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
        [batch] = run.trainer.schedule(0, client.number).batches
        x, y = data.prepare(data.train.inputs[batch]), data.train.labels[batch]
        first = F.relu(F.max_pool2d(F.conv2d(x, state["convs.0.weight"], state["convs.0.bias"], padding=2), 2))
        second = F.relu(F.max_pool2d(F.conv2d(first, state["convs.1.weight"], state["convs.1.bias"], padding=1), 2))
        exit = F.linear(F.avg_pool2d(first, 2).flatten(1), state["exits.0.weight"], state["exits.0.bias"])
        last = F.linear(second.flatten(1), state["classifier.weight"], state["classifier.bias"])
        loss = F.cross_entropy(exit, y) + F.cross_entropy(last, y)
        gradients = torch.autograd.grad(loss, list(state.values()))
        uploads.append([t.detach() - 0.05 * g for t, g in zip(state.values(), gradients, strict=True)])
    run.round(0)
    for name, *each in zip(start, *uploads, strict=True):
        torch.testing.assert_close(run.algorithm.state[name], sum(each) / 2, rtol=1e-5, atol=1e-6)


def test_depthfl_distils_between_every_pair():
    """Two exits with p = (3/4, 1/4) and (1/2, 1/2): both divergences, as numbers."""
    logits = torch.log(torch.tensor([[[0.75, 0.25], [0.5, 0.5]]]))
    one = federation("depthfl", model=CNN).algorithm
    found = one.loss(Step(logits, torch.tensor([0]), {}, {}, SEEN)).item()
    to_second = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    to_first = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert found == pytest.approx(-math.log(0.75) - math.log(0.5) + to_second + to_first)


def test_depthfl_deploys_the_mean_of_the_exits_that_are_trained():
    run = federation("depthfl", model=RESNET, keep=(0.25, 0.5))
    model = run.algorithm.trained_part()
    expected = run.algorithm.forward(part(run.algorithm, 0.5), BATCH).mean(1)
    assert torch.equal(model.forward(model.state, BATCH), expected)
    record = run.round(0)
    assert record["accuracy"] == record["accuracy_trained"]


def test_exits_are_paid_for():
    """One block of the network with its exit: its own numbers, down and up, and not those of the rest."""
    run = federation("depthfl", model=CNN, keep=0.5)
    paid, full = run.client_costs, run.full_costs
    exit = 10 * 2 * 2 * 4
    assert paid.parameters == 10 * 25 + 10 + exit + 4
    assert paid.transfer_bytes == 2 * 4 * paid.parameters
    assert paid.macs == 10 * 25 * 64 + exit
    whole = costs.of_client(run.algorithm, 1.0, *run.about)
    assert whole.parameters == full.parameters + exit + 4
    assert whole.macs == full.macs + exit


@pytest.mark.parametrize(("side", "positions"), [(8, 2 * 2), (11, 2 * 2), (28, 7 * 7)])
def test_an_exit_sees_as_many_positions_as_the_networks_own_classifier(side, positions):
    """Of a map of 4×4, of 5×5 and of 14×14: where something is in an image tells as much to either."""
    network = registry.load("models", "cnn", "model.name")(width=10).build(Signature((1, side, side), 4)).with_exits()
    shapes = {name: tuple(tensor.shape) for name, tensor in network.named_parameters()}
    assert shapes["exits.0.weight"] == shapes["classifier.weight"] == (4, 10 * positions)
    x = torch.arange(25.0).view(1, 1, 5, 5) if side == 11 else torch.zeros(1, 1, side // 2, side // 2)
    assert network.pooled(x).shape == (1, positions)
    if side == 11:
        assert network.pooled(x).tolist() == [[3.0, 5.0, 13.0, 15.0]], "what pooling leaves over at the end is left out"


@pytest.mark.parametrize("name", ["depthfl", "scalefl"])
def test_a_network_without_depth_is_refused(name):
    one = federation(name, model=CNN).algorithm
    shallow = registry.load("models", "lstm", "model.name")(layers=1)
    with pytest.raises(BadInput, match=r"model\.name: .* no two blocks"):
        one.check(one.params, shallow.build(shallow.usual), (0.5,))


# ScaleFL --------------------------------------------------------------------------------------------------------------


def test_scalefl_cuts_width_and_depth():
    """A quarter: half of ten filters in half of two blocks."""
    one = federation("scalefl", model=CNN, keep=(0.25, 1.0)).algorithm
    shapes = {name: tuple(tensor.shape) for name, tensor in part(one, 0.25).items()}
    assert shapes == {
        "convs.0.weight": (5, 1, 5, 5),
        "convs.0.bias": (5,),
        "exits.0.weight": (4, 5 * 2 * 2),
        "exits.0.bias": (4,),
    }
    after = merged(one, [(0.25, filled(2.0)), (1.0, filled(4.0))])["convs.0.bias"]
    torch.testing.assert_close(after, torch.tensor([3.0] * 5 + [4.0] * 5))


def test_scalefl_teaches_from_the_last_exit():
    """Weights 1 and 2 of two exits; without distillation, plain cross-entropies."""
    logits, labels = torch.log(torch.tensor([[[0.75, 0.25], [0.5, 0.5]]])), torch.tensor([0])
    found = {}
    for share in (0.0, 0.5):
        one = federation("scalefl", {"distillation": share, "temperature": 1}, CNN).algorithm
        found[share] = one.loss(Step(logits, labels, {}, {}, SEEN)).item()
    first, last = -math.log(0.75), -math.log(0.5)
    taught = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert found[0.0] == pytest.approx((first + 2 * last) / 3)
    assert found[0.5] == pytest.approx((0.5 * first + 0.5 * taught + 2 * last) / 3)
    # At temperature 2, logits of twice the size say the same, 2² times as loud; their labels' p is 9/10 and 1/2.
    warm = federation("scalefl", {"distillation": 0.5, "temperature": 2}, CNN).algorithm
    found_warm = warm.loss(Step(2 * logits, labels, {}, {}, SEEN)).item()
    assert found_warm == pytest.approx((0.5 * -math.log(0.9) + 0.5 * 4 * taught + 2 * last) / 3)


def test_scalefl_at_one_block_is_origdrop_of_that_block():
    """Where depth leaves one exit, its only loss is the labels', and its filters are OrigDrop's half."""
    run = federation("scalefl", model=CNN, keep=0.25)
    alone = part(run.algorithm, 0.25)
    wide = part(federation("origdrop", model=CNN, keep=0.5).algorithm, 0.5)
    assert torch.equal(alone["convs.0.weight"], wide["convs.0.weight"])
    logits, labels = run.algorithm.forward(alone, BATCH), torch.arange(6) % 4
    loss = run.algorithm.loss(Step(logits, labels, alone, alone, SEEN))
    torch.testing.assert_close(loss, F.cross_entropy(logits[:, 0], labels))


# FLANC ----------------------------------------------------------------------------------------------------------------

COMPLETE = {"channels": 0.1, "basis": 1.0}


def test_flanc_composes_each_weight_of_its_size():
    """A basis of 3 pieces over 3 of 10 inputs; at 0.4, four outputs of two groups, of which four inputs are there."""
    one = federation("flanc", model=CNN, keep=0.4).algorithm
    small = part(one, 0.4)
    assert small["convs.1.basis"].shape == (3, 3, 3, 3)
    assert small["size1.convs.1.weight"].shape == (4, 2, 3)
    flat = small["convs.1.basis"].flatten(1)
    torch.testing.assert_close(flat @ flat.T, torch.eye(3), rtol=0, atol=1e-5)
    weight = torch.einsum("ogr,rikl->ogikl", small["size1.convs.1.weight"], small["convs.1.basis"]).flatten(1, 2)[:, :4]
    x = F.relu(F.max_pool2d(F.conv2d(BATCH, small["size1.convs.0.weight"], small["size1.convs.0.bias"], padding=2), 2))
    x = F.relu(F.max_pool2d(F.conv2d(x, weight, small["size1.convs.1.bias"], padding=1), 2)).flatten(1)
    expected = F.linear(x, small["size1.classifier.weight"], small["size1.classifier.bias"])
    torch.testing.assert_close(one.forward(small, BATCH), expected)


def test_flanc_shares_the_basis_and_nothing_else():
    one = federation("flanc", {"sizes": (0.4, 1.0)}, CNN, keep=(0.4, 1.0)).algorithm
    after = merged(one, [(0.4, filled(2.0)), (1.0, filled(4.0)), (1.0, filled(6.0))])
    for name, value in (("convs.1.basis", 4.0), ("size0.convs.1.weight", 2.0), ("size1.convs.0.bias", 5.0)):
        assert torch.allclose(after[name], torch.tensor(value)), name


def test_flanc_with_a_complete_basis_starts_as_origdrop():
    """Nine pieces of one channel span every 3×3 filter; a basis that is orthonormal has no loss of its own."""
    one = federation("flanc", {**COMPLETE, "sizes": (0.4,)}, CNN, keep=0.4).algorithm
    other = federation("origdrop", model=CNN, keep=0.4).algorithm
    logits = one.forward(part(one, 0.4), BATCH)
    torch.testing.assert_close(logits, other.forward(part(other, 0.4), BATCH), rtol=1e-4, atol=1e-5)
    labels = torch.arange(6) % 4
    torch.testing.assert_close(
        one.loss(Step(logits, labels, one.state, one.state, SEEN)), F.cross_entropy(logits, labels)
    )


def test_flanc_holds_the_basis_orthogonal():
    """A basis of twice an orthonormal one is apart from it by 4 - 1 on each of three pieces: λ·3·9."""
    one = federation("flanc", {"orthogonality": 0.1}, CNN).algorithm
    doubled = one.state | {"convs.1.basis": 2 * one.state["convs.1.basis"]}
    logits, labels = torch.zeros(1, 4), torch.tensor([0])
    assert one.loss(Step(logits, labels, doubled, doubled, SEEN)).item() == pytest.approx(math.log(4) + 2.7, rel=1e-5)


def test_flanc_trains_the_largest_size_within_a_ratio():
    one = federation("flanc", model=CNN, keep=0.7).algorithm
    assert {name.split(".")[0] for name in part(one, 0.7)} == {"convs", "size2"}
    assert one.features() == 0.6
    with pytest.raises(BadInput, match=r"algorithm\.sizes: .* at most 0\.1"):
        one.check(one.params, one.network, (0.1, 0.7))
    with pytest.raises((BadInput, ValidationError)):
        federation("flanc", {"sizes": (0.0, 1.0)}, CNN)


# LoRA -----------------------------------------------------------------------------------------------------------------


def test_lora_adds_an_update_to_frozen_weights():
    """Two clients of rank 1 and 2 with U = V = 1 and 3: W + mean over those that had each kernel."""
    one = federation("lora", {"rank": 2}, CNN, keep=(0.5, 1.0)).algorithm
    before = one.state["convs.1.weight"].clone()
    assert torch.equal(one.full_model().state["convs.1.weight"], before), "updates begin as nothing"

    def sent(value):
        return lambda part: {n: torch.full_like(t, value) for n, t in part.items() if n not in one.frozen()}

    one.finish_round(0, merged(one, [(0.5, sent(1.0)), (1.0, sent(3.0))]))
    assert one.state["convs.1.u"][0].tolist() == [2.0, 3.0]
    after = one.full_model().state
    torch.testing.assert_close(after["convs.1.weight"], before + 2 * 2 + 3 * 3)
    assert torch.allclose(after["classifier.bias"], torch.tensor(2.0))


def test_lora_at_rank_0_moves_nothing():
    run = federation("lora", {"rank": 0}, CNN, keep=(0.4, 1.0))
    start = {name: tensor.clone() for name, tensor in run.algorithm.state.items()}
    run.round(0)
    for name, tensor in run.algorithm.full_model().state.items():
        assert torch.equal(tensor, start[name]) is not name.startswith("classifier."), name
    one = run.algorithm
    with pytest.raises(BadInput, match=r"algorithm\.rank: 0"):
        one.check(one.Params(rank=0, whole=()), one.network, (1.0,))
    with pytest.raises(BadInput, match=r"algorithm\.whole: no tensor is called 'head\*'"):
        one.check(one.Params(whole=("head*",)), one.network, (1.0,))


def test_lora_of_full_rank_takes_the_step_of_its_factors():
    """One step of plain gradient descent from U = 0 moves U by the weight's gradient times Vᵀ, and V not at all."""
    run = double(
        federation("lora", {"rank": 10, "whole": ()}, CNN, keep=1.0, sizes=(4,), rounds=1, momentum=0, decay=0)
    )
    start = {name: tensor.clone() for name, tensor in run.algorithm.state.items()}
    [batch] = run.trainer.schedule(0, 0).batches
    x, y = run.data.prepare(run.data.train.inputs[batch]), run.data.train.labels[batch]
    plain = {name: tensor.requires_grad_() for name, tensor in run.algorithm.full_model().state.items()}
    loss = F.cross_entropy(run.algorithm.full_model().forward(plain, x), y)
    [gradient] = torch.autograd.grad(loss, [plain["convs.1.weight"]])
    run.algorithm.state = {name: tensor.detach() for name, tensor in run.algorithm.state.items()}
    run.round(0)
    after = run.algorithm.state
    expected = -0.05 * gradient.flatten(1) @ start["convs.1.v"].flatten(1).T
    torch.testing.assert_close(after["convs.1.u"], expected)
    torch.testing.assert_close(after["convs.1.v"], start["convs.1.v"], rtol=0, atol=0)


def test_lora_sends_down_all_and_up_what_is_trained():
    run = federation("lora", {"rank": 2}, CNN, keep=0.5)
    paid, full = run.client_costs, run.full_costs
    update, classifier = 10 + 90, 10 * 4 * 4 + 4
    assert paid.parameters == full.parameters + update
    assert paid.transfer_bytes == 4 * (paid.parameters + update + classifier)
    assert paid.macs == full.macs + 10 * 90 / 4, "W + UV is made once per batch of four"


def test_lora_draws_its_kernels_or_takes_the_first():
    one, other = (federation("lora", {"kernels": rule}, CNN, keep=0.5).algorithm for rule in ("first", "random"))
    draws = [
        [a.select(round, [Client(1, 0.5)])[0][0]["convs.1.rank"].tolist() for round in range(4)] for a in (one, other)
    ]
    assert draws[0] == [[0, 1, 2, 3]] * 4
    assert len({str(draw) for draw in draws[1]}) > 1
    assert all(len(set(draw)) == 4 for draw in draws[1])


def test_lora_of_drawn_kernels_is_on_average_the_whole_update():
    """One of two kernels counts twice: the updates of both draws have the whole one as their mean."""
    one, first = (
        federation("lora", {"rank": 2, "kernels": rule}, CNN, keep=0.5).algorithm for rule in ("random", "first")
    )
    for algorithm in (one, first):
        algorithm.state["convs.1.u"] = torch.arange(20.0).view(10, 2)
    before, whole = one.state["convs.1.weight"], one.full_model().state["convs.1.weight"]
    assert torch.equal(whole, first.full_model().state["convs.1.weight"]), "who has all of them has W + UV"
    fixed = first.updated(part(first, 0.5))["convs.1.weight"]
    drawn = []
    for kernel in range(2):
        selection = {"convs.1.rank": torch.tensor([kernel])}
        drawn.append(one.updated(gather(one.state, one.layout, selection))["convs.1.weight"])
    torch.testing.assert_close(sum(drawn) / 2, whole)
    torch.testing.assert_close(drawn[0] - before, 2 * (fixed - before), rtol=1e-4, atol=1e-4)
