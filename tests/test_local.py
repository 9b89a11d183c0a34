"""Schedule training and evaluation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from prism_bench.base.errors import BadInput, Diverged
from prism_bench.core.algorithm import ServerModel
from prism_bench.core.submodel import gather_stacked
from prism_bench.data.dataset import CROP_PADDING, Dataset, Split, flip_and_crop
from prism_bench.engine.evaluate import evaluate
from prism_bench.engine.local import Schedule, train
from prism_bench.engine.sections import Training
from prism_bench.testing import double, federation, tiny_data


def test_each_epoch_goes_through_every_sample_once():
    samples = np.arange(100, 111)
    local = Schedule.plan(samples, Training(batch=4, epochs=3), seed=0, round=2, client=5)
    assert [len(batch) for batch in local.batches] == [4, 4, 3] * 3
    for epoch in range(3):
        assert sorted(np.concatenate(local.batches[3 * epoch : 3 * epoch + 3])) == samples.tolist()
    assert local.batches[0].tolist() != local.batches[3].tolist()


def test_steps_can_be_few():
    """One step a round: ten rounds are two epochs, each through every sample once."""
    training = Training(batch=4, epochs=1, steps=1)
    batches = [Schedule.plan(np.arange(18), training, seed=0, round=round, client=0).batches for round in range(10)]
    assert [len(local) for local in batches] == [1] * 10
    first, second = ([index for (batch,) in half for index in batch] for half in (batches[:5], batches[5:]))
    assert sorted(first) == sorted(second) == list(range(18))
    assert first != second
    two = Schedule.plan(np.arange(100), Training(batch=4, epochs=3, steps=2), seed=0, round=0, client=0)
    assert [len(batch) for batch in two.batches] == [4, 4]


def test_each_round_has_an_order_of_its_own():
    plan = lambda round, client: Schedule.plan(np.arange(16), Training(batch=16, epochs=1), 0, round, client)  # noqa: E731
    orders = [plan(*place).batches[0].tolist() for place in ((0, 0), (1, 0), (0, 1))]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def stacked(one, count):
    return gather_stacked(one.algorithm.state, one.algorithm.layout, [{}] * count)


def test_a_client_without_batches_does_not_move():
    one = federation("fedavg", sizes=(12, 12))
    training = one.run.training
    state = stacked(one, 2)
    work = [Schedule.plan(np.arange(0), training, 0, 0, 0), Schedule.plan(one.population[1], training, 0, 0, 1)]
    train(one.algorithm, state, work, one.data, training, 0.1)
    for name, tensor in one.algorithm.state.items():
        assert torch.equal(state[name][0], tensor)
    assert any(not torch.equal(state[name][1], tensor) for name, tensor in one.algorithm.state.items())


def test_a_client_that_has_run_out_stays_where_it_was():
    """Momentum must not carry it on: beside a longer one it ends exactly where it does alone."""
    one = federation("fedavg", sizes=(6, 24))
    training = one.run.training
    work = lambda: [Schedule.plan(one.population[n], training, 0, 0, n) for n in range(2)]  # noqa: E731
    both, alone = stacked(one, 2), stacked(one, 1)
    train(one.algorithm, both, work(), one.data, training, 0.1)
    train(one.algorithm, alone, work()[:1], one.data, training, 0.1)
    for name in both:
        torch.testing.assert_close(both[name][0], alone[name][0], rtol=1e-5, atol=1e-6)


def test_clipping_is_each_clients_own():
    """One step without momentum moves a client by at most lr × clip, and a small gradient is not touched."""
    one = federation("fedavg", sizes=(4, 4), decay=0.0, momentum=0.0)
    for clip, moved in ((1e-3, pytest.approx(0.1 * 1e-3, rel=1e-2)), (1e3, None)):
        training = Training(batch=4, epochs=1, clip=clip, decay=0, momentum=0)
        state = stacked(one, 2)
        work = [Schedule.plan(one.population[n], training, 0, 0, n) for n in range(2)]
        train(one.algorithm, state, work, one.data, training, 0.1)
        for row in range(2):
            step = torch.cat([(state[n][row] - t).flatten() for n, t in one.algorithm.state.items()]).norm()
            if moved is None:
                assert step > 1e-3
            else:
                assert step.item() == moved


@pytest.mark.parametrize("norm", ["none", "group"])
@pytest.mark.parametrize(
    ("algorithm", "params"),
    [
        ("fedavg", {}),
        ("prism", {}),
        ("splitmix", {}),
        ("fjord", {"widths": (0.2, 0.4)}),
        ("fedprox", {}),
        ("flanc", {}),
    ],
)
def test_a_step_in_several_passes_is_the_same_step(algorithm, params, norm):
    """Batches of 8 and 5 in passes of 3, alone and stacked: gradients of 3, 3 and 2 samples add up to those of 8."""
    ends = []
    for micro, at_once in ((None, 1), (3, 1), (3, 8)):
        model = {"name": "smallcnn", "width": 4, "norm": norm}
        one = federation(algorithm, params, model, sizes=(13, 13), batch=8, micro=micro, clip=0.5, at_once=at_once)
        records = list(double(one).rounds())
        ends.append((one.algorithm.state, [record["train_loss"] for record in records]))
    for state, losses in ends[1:]:
        torch.testing.assert_close(state, ends[0][0], rtol=1e-9, atol=1e-11)
        assert losses == pytest.approx(ends[0][1], rel=1e-6)


def test_passes_are_of_samples_that_do_not_depend_on_each_other():
    with pytest.raises(BadInput, match=r"training\.micro: 2 of 4 samples in a pass change what BatchNorm does"):
        federation("fedavg", model={"name": "smallcnn", "width": 4, "norm": "batch"}, batch=4, micro=2)
    federation("fedavg", model={"name": "smallcnn", "width": 4, "norm": "batch"}, batch=4, micro=4)


def test_decay_pulls_the_weights():
    """One step of SGD: beside a step without decay, each weight is lr × λ of itself nearer to zero."""
    one = federation("fedavg", sizes=(4,))
    ends = []
    for decay in (0.0, 0.5):
        state = stacked(one, 1)
        work = [Schedule.plan(one.population[0], Training(batch=4, epochs=1), 0, 0, 0)]
        train(one.algorithm, state, work, one.data, Training(batch=4, epochs=1, decay=decay, momentum=0), lr=0.1)
        ends.append(state)
    for name, start in one.algorithm.state.items():
        torch.testing.assert_close(ends[0][name][0] - ends[1][name][0], 0.1 * 0.5 * start, rtol=1e-4, atol=1e-6)


def test_reported_loss_is_the_mean_over_steps():
    one = federation("fedavg", sizes=(8,))
    training = Training(batch=4, epochs=1)
    work = [Schedule.plan(one.population[0], training, 0, 0, 0)]
    loss = train(one.algorithm, stacked(one, 1), work, one.data, training, lr=0.0)
    expected = [
        F.cross_entropy(
            one.algorithm.forward(one.algorithm.state, one.data.prepare(one.data.train.inputs[batch])),
            one.data.train.labels[batch],
        )
        for batch in work[0].batches
    ]
    torch.testing.assert_close(loss[0], torch.stack(expected).mean().detach(), rtol=1e-5, atol=1e-6)


def test_a_loss_that_is_not_a_number_ends_the_run():
    one = federation("fedavg", lr=1e30)
    with pytest.raises(Diverged, match=r"smaller training\.lr"):
        list(one.rounds())


def test_weights_that_are_not_finite_end_the_run():
    """The last step's damage shows in no loss; finite factors may have a product that is not."""
    with pytest.raises(Diverged, match=r"can't be decomposed; a smaller training\.lr"):
        federation("prism", lr=1e30, steps=1).round(0)
    one = federation("fedavg", epochs=0)
    one.algorithm.state["classifier.bias"][0] = torch.inf
    with pytest.raises(Diverged, match=r"not finite after round 1; a smaller training\.lr"):
        one.round(0)


def test_a_batch_of_one_where_the_map_is_one_pixel():
    """BatchNorm of a single value is its shift, in both paths; no crash."""
    model = {"name": "resnet18", "width": 10}
    for at_once in (1, 2):
        one = federation("prism", model=model, sizes=(5, 5), at_once=at_once)
        assert np.isfinite(one.round(0)["train_loss"])


def test_flip_and_crop_by_hand():
    image = torch.arange(3 * 5 * 5, dtype=torch.uint8).view(1, 3, 5, 5) + 1
    still = torch.tensor([[CROP_PADDING, CROP_PADDING]])
    no, yes = torch.tensor([False]), torch.tensor([True])
    assert torch.equal(flip_and_crop(image, still, no), image)
    assert torch.equal(flip_and_crop(image, still, yes), image.flip(3))
    shifted = flip_and_crop(image, still + torch.tensor([[1, -2]]), no)
    assert torch.equal(shifted[:, :, :4, 2:], image[:, :, 1:, :3])
    assert not shifted[:, :, 4].any()
    assert not shifted[:, :, :, :2].any()


def test_augmentation_is_the_same_however_clients_are_grouped():
    plain = tiny_data(samples=24)
    data = Dataset(plain.train, plain.test, plain.classes, plain.mean, plain.std, augment=True)
    states = []
    for at_once in (1, 3):
        one = federation("fedavg", data=data, sizes=(8, 8, 8), at_once=at_once)
        one.round(0)
        states.append(one.algorithm.state)
    off = federation("fedavg", data=data, sizes=(8, 8, 8), augment=False)
    off.round(0)
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], rtol=1e-4, atol=1e-5)
    assert any(not torch.allclose(tensor, off.algorithm.state[name]) for name, tensor in states[0].items())


def test_evaluate_counts_every_sample_once():
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    inputs = labels.to(torch.uint8).view(-1, 1, 1, 1)
    # Training samples of other labels, all of them wrong: they must not be looked at.
    data = Dataset(Split(inputs, (labels + 1) % 3), Split(inputs, labels), 3, mean=0.0, std=1.0)

    def forward(state, x):
        guess = torch.where(x.flatten() < 2, x.flatten(), 0).long()
        return 10.0 * F.one_hot(guess, 3)

    for batch in (1, 2, 3, 100):
        accuracy, loss, correct = evaluate(ServerModel(forward, {}), data, batch)
        assert correct.tolist() == [label < 2 for label in labels.tolist()]
        assert accuracy == pytest.approx(100 * 5 / 7)
        assert loss == pytest.approx(F.cross_entropy(forward({}, inputs.float()), labels).item())
