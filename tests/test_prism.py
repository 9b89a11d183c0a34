"""PriSM: what is sampled, and which channels go with it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from prism_bench.base.errors import BadInput
from prism_bench.baselines.prism_variants import PriSMVariants, inclusion
from prism_bench.core.algorithm import Client
from prism_bench.core.submodel import gather
from prism_bench.plugin import sample
from prism_bench.testing import double, federation


def sequential(p, count):
    """Exact probability of each set under drawing one after another without replacement."""
    sets = dict.fromkeys(itertools.combinations(range(len(p)), count), 0.0)
    for order in itertools.permutations(range(len(p)), count):
        chance, left = 1.0, 1.0
        for index in order:
            chance *= p[index] / left
            left -= p[index]
        sets[tuple(sorted(order))] += chance
    return sets


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(
    ("params", "probability"),
    [
        ({"sampling": "power", "kappa": 2.5}, lambda s: s**2.5),
        ({"sampling": "power", "kappa": 0}, lambda s: s**0),
        ({"sampling": "softmax"}, np.exp),
        ({"sampling": "uniform"}, np.ones_like),
    ],
    ids=["power", "power0", "softmax", "uniform"],
)
def test_frequencies_are_those_of_the_sequential_draw(params, probability, count):
    sigma = np.array([2.0, 1.0, 0.5, 1.5, 0.1])
    algorithm = federation("prism", params).algorithm
    rng = np.random.default_rng(0)
    weights = probability(sigma)
    expected = sequential(weights / weights.sum(), count)
    draws = 20_000
    seen = dict.fromkeys(expected, 0)
    for _ in range(draws):
        seen[tuple(algorithm.kernels(sigma, count / 5, rng).tolist())] += 1
    # Sets that are too rare for the test's approximation are put together.
    common = [key for key, chance in expected.items() if chance * draws >= 5]
    rare = draws - sum(seen[key] for key in common)
    chance = [expected[key] for key in common]
    observed, wanted = [seen[key] for key in common], [draws * c for c in chance]
    if 1 - sum(chance) > 1e-9:
        observed, wanted = [*observed, rare], [*wanted, draws * (1 - sum(chance))]
    assert chisquare(observed, wanted).pvalue > 1e-3


def test_sampling_when_almost_all_probability_sits_on_a_few():
    """σ over 200 decades: the probabilities underflow, the draw still has the right size and the right favourites."""
    sigma = np.logspace(0, -200, 100)
    drawn = federation("prism", {"kappa": 4}).algorithm.kernels(sigma, 0.2, np.random.default_rng(0))
    assert drawn.tolist() == list(range(20))
    dead = np.array([1.0, *[0.0] * 9])
    drawn = federation("prism", {"kappa": 4}).algorithm.kernels(
        np.maximum(dead, np.finfo(float).tiny), 0.5, np.random.default_rng(0)
    )
    assert 0 in drawn
    assert len(set(drawn.tolist())) == 5


def test_sampling_is_deterministic_under_a_seed_and_differs_between_clients():
    algorithm = federation("prism", keep=0.4).algorithm
    same, again = (algorithm.select(3, [Client(7, 0.4)])[0][0] for _ in range(2))
    other = algorithm.select(3, [Client(8, 0.4)])[0][0]
    axis = "convs.1.rank"
    assert same[axis].tolist() == again[axis].tolist()
    assert any(same[name].tolist() != other[name].tolist() for name in ("convs.1.rank", "convs.2.rank"))


def test_the_papers_kappa_depends_on_the_keep_ratio():
    """κ = 4 at 0.2×, 2.5 above; a set κ is used as it is."""
    sigma = np.array([4.0, 2.0, 1.0, 1.0, 1.0])

    def first_share(keep, **params):
        algorithm = federation("prism", params).algorithm
        rng = np.random.default_rng(0)
        return np.mean([0 in algorithm.kernels(sigma, keep, rng) for _ in range(4000)])

    for kappa, keep in ((4, 0.2), (2.5, 0.21)):
        assert first_share(keep) == first_share(keep, kappa=kappa)
    assert first_share(0.2) == pytest.approx(4**4 / (4**4 + 2**4 + 3), abs=0.02)


def channels(rule, round=0, client=0, keep=0.4, **params):
    model = {"name": "resnet18", "width": 10, "blocks": (1, 1)}
    algorithm = federation("prism", {"channels": rule, **params}, model, keep).algorithm
    [[selection]] = algorithm.select(round, [Client(client, keep)])
    return algorithm, selection


def test_prefix_is_the_papers_rule():
    _, selection = channels("prefix")
    assert selection["stage1"].tolist() == [0, 1, 2, 3]
    assert selection["stage2"].tolist() == list(range(8))
    assert "classes" not in selection
    assert "input" not in selection


def test_rolling_covers_every_channel_in_turn():
    assert channels("rolling", round=8)[1]["stage1"].tolist() == [0, 1, 8, 9]
    seen = {index for round in range(10) for index in channels("rolling", round=round)[1]["stage1"].tolist()}
    assert seen == set(range(10))


def test_kernels_follow_the_layer_that_writes_the_axis():
    _, selection = channels("kernels")
    assert selection["stage1.0"].tolist() == selection["blocks.0.conv1.rank"].tolist()
    # The stem writes stage 1 too, but the block's second convolution is the first that is factorised.
    assert selection["stage1"].tolist() == selection["blocks.0.conv2.rank"].tolist()


def test_random_differs_between_clients_and_all_keeps_all():
    draws = {tuple(channels("random", client=client)[1]["stage2"].tolist()) for client in range(5)}
    assert len(draws) > 1
    assert set(channels("all")[1]) == {f"blocks.{n}.conv{c}.rank" for n in range(2) for c in (1, 2)}


def test_trained_part_is_the_prefix_of_the_rebuilt_model():
    algorithm, _ = channels("prefix")
    part, full = algorithm.trained_part(), algorithm.full_model()
    assert torch.equal(part.state["stem.weight"], full.state["stem.weight"][:4])
    assert torch.equal(part.state["blocks.1.conv1.weight"], full.state["blocks.1.conv1.weight"][:8, :4])
    assert channels("rolling")[0].trained_part() is None


def test_sample_returns_everything_when_asked():
    assert sample(np.array([0.0, -1e9, 5.0]), 3, np.random.default_rng(0)).tolist() == [0, 1, 2]


def test_inclusion_is_how_often_sample_draws_each():
    rng = np.random.default_rng(0)
    for scores in (np.zeros(12), 4 * np.log(np.linspace(3, 0.1, 12)), np.array([5.0, 4.0, *[-700.0] * 10])):
        seen = np.zeros(12)
        for _ in range(5000):
            seen[sample(scores, 4, rng)] += 1 / 5000
        assert np.abs(inclusion(scores, 4) - seen).max() < 0.04
    assert inclusion(np.arange(3.0), 3).tolist() == [1, 1, 1]


@pytest.mark.parametrize("channels", ["prefix", "random", "all"])
def test_one_draw_a_round_gives_all_clients_the_same_sub_model(channels):
    algorithm = federation("prism", {"channels": channels, "draw": "round"}).algorithm
    [one], [other], [later] = (algorithm.select(r, [Client(c, 0.4)])[0] for r, c in ((3, 7), (3, 8), (4, 7)))
    assert {name: indices.tolist() for name, indices in one.items()} == {n: i.tolist() for n, i in other.items()}
    assert any(one[name].tolist() != later[name].tolist() for name in one)


def test_importance_within_the_part_prefers_kernels_that_live_there():
    """A kernel that is the largest of all, but only in channels that nobody keeps, is not worth a place."""
    for importance, wanted in (("whole", True), ("part", False)):
        algorithm = federation("prism", {"kappa": 40, "importance": importance}).algorithm
        u = algorithm.state["convs.1.u"]
        u[:, 9] = 0
        u[-1, 9] = 100
        assert (9 in algorithm.select(0, [Client(0, 0.4)])[0][0]["convs.1.rank"]) is wanted
    params = PriSMVariants.Params(channels="kernels", importance="part")
    with pytest.raises(BadInput, match="importance"):
        PriSMVariants.check(params, algorithm.network, (0.4,))


def test_what_is_deployed():
    """The full model by default; with all kernels drawn for sure, the expected sub-model is the trained part."""
    for deploy, deployed in (("full", "accuracy_full"), ("trained", "accuracy_trained"), ("expected", None)):
        run = federation("prism", {"deploy": deploy})
        found = run.accuracies()
        assert deployed is None or found["accuracy"] == found[deployed]
    sure = [federation("prism", {"deploy": deploy, "rank_keep": 1}).algorithm for deploy in ("trained", "expected")]
    one, other = (algorithm.trained_part() for algorithm in sure)
    assert all(torch.equal(one.state[name], other.state[name]) for name in one.state)
    cut = federation("prism", {"deploy": "expected", "channels": "all", "sampling": "uniform"}, keep=0.5).algorithm
    halved, whole = cut.trained_part().state, cut.full_model().state
    torch.testing.assert_close(halved["convs.1.weight"], 0.5 * whole["convs.1.weight"])


RESNET = {"name": "resnet18", "width": 10, "blocks": [1, 1]}


def masked(one, selection):
    """The server's tensors with zeros wherever the authors' published layers have them: unselected kernels, and rows of
    U beyond the first ones. Also where the kept entries of each factor are."""
    state, kept = {name: tensor.clone() for name, tensor in one.state.items()}, {}
    for path in one.space.paths:
        # In an LSTM, the first rows of each gate.
        rows = one.layout.dims[f"{path}.u"][0].entries(selection[f"{path}.rows"])
        rank = selection[f"{path}.rank"]
        u, v = torch.zeros_like(state[f"{path}.u"]), torch.zeros_like(state[f"{path}.v"])
        u[rows[:, None], rank] = state[f"{path}.u"][rows[:, None], rank]
        v[rank] = state[f"{path}.v"][rank]
        state[f"{path}.u"], state[f"{path}.v"] = u, v
        kept[f"{path}.u"], kept[f"{path}.v"] = (rows[:, None], rank), (rank,)
    return state, kept


LSTM, DEIT = {"name": "lstm", "embedding": 10, "hidden": 10}, {"name": "deit", "width": 30, "depth": 1}


@pytest.mark.parametrize("model", [RESNET, LSTM, DEIT], ids=lambda model: model["name"])
def test_rows_train_what_the_published_layers_train(model):
    """Logits and gradients are those of full-size layers with zeros, computed with small tensors."""
    run = double(federation("prism", {"channels": "rows"}, model, keep=0.4))
    one = run.algorithm
    [[selection]] = one.select(0, [Client(0, 0.4)])
    assert all(name.endswith((".rows", ".rank")) for name in selection), "everything else is whole"
    small = {name: tensor.requires_grad_() for name, tensor in gather(one.state, one.layout, selection).items()}
    whole, kept = masked(one, selection)
    whole = {name: tensor.requires_grad_() for name, tensor in whole.items()}
    x = run.data.prepare(run.data.train.inputs[:6])
    for forward in (one.forward, *one.equivalents()):
        logits, wanted = forward(small, x), one.forward(whole, x)
        torch.testing.assert_close(logits, wanted)
        mine = torch.autograd.grad(logits.square().sum(), list(small.values()))
        theirs = torch.autograd.grad(wanted.square().sum(), list(whole.values()))
        for name, gradient, other in zip(small, mine, theirs, strict=True):
            torch.testing.assert_close(gradient, other[kept.get(name, ())])


def test_rows_are_small_where_they_are_and_charged_as_they_run():
    one = federation("prism", {"channels": "rows"}, RESNET, keep=0.4)
    [[selection]] = one.algorithm.select(0, [Client(0, 0.4)])
    part = gather(one.algorithm.state, one.algorithm.layout, selection)
    assert part["blocks.0.conv1.u"].shape == (4, 4), "the first ceil(0.4·10) rows of the 4 kernels that were drawn"
    assert part["blocks.0.conv1.v"].shape == (4, 10, 3, 3), "over all input channels"
    assert part["blocks.0.norm1.weight"].shape == (10,)
    assert part["stem.weight"].shape == (10, 1, 3, 3)
    macs = {rule: federation("prism", {"channels": rule}, RESNET, keep=0.4).client_costs.macs for rule in CHANNELS}
    assert macs["prefix"] < macs["inner"] < macs["all"]
    assert macs["prefix"] < macs["rows"] < macs["all"]
    before = one.algorithm.state["blocks.0.conv1.u"].clone()
    merged = {}
    one.algorithm.finish_round = lambda round, state: merged.update(state)
    one.round(0)
    assert torch.equal(merged["blocks.0.conv1.u"][4:], before[4:]), "rows beyond the first are nobody's"
    assert not torch.equal(merged["blocks.0.conv1.u"][:4], before[:4])


CHANNELS = ("prefix", "inner", "rows", "all")


def test_inner_channels_leave_the_residual_stream_whole():
    one = federation("prism", {"channels": "inner"}, RESNET, keep=0.4).algorithm
    [[selection]] = one.select(0, [Client(0, 0.4)])
    features = [name for name in selection if not name.endswith(".rank")]
    assert features == ["stage1.0", "stage2.0"]
    assert selection["stage2.0"].tolist() == list(range(8))
    attention = federation(
        "prism", {"channels": "inner"}, {"name": "deit", "width": 30, "depth": 1}, keep=0.4
    ).algorithm
    [[selection]] = attention.select(0, [Client(0, 0.4)])
    assert [name for name in selection if not name.endswith(".rank")] == ["block0.head", "block0.mlp"]
