"""Gather and merge, entry by entry."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from shared import ALGORITHMS, MODELS, model_id

from prism_bench.core.algorithm import Client
from prism_bench.core.axes import Axis, Dim, Layout
from prism_bench.core.capacity import kept
from prism_bench.core.submodel import Merge, gather
from prism_bench.models.layers import BatchNorm2d, LayerNorm
from prism_bench.testing import data_for, federation


def random_like(state, seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(tensor.shape, generator=generator) for name, tensor in state.items()}


def test_merge_by_hand():
    layout = Layout({"w": (Dim(Axis("rows", 3)), Dim(Axis("columns", 2)))})
    server = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])}
    merge = Merge(server, layout)
    merge.add({"rows": torch.tensor([0, 2])}, {"w": torch.tensor([[10.0, 20.0], [30.0, 40.0]])})
    merge.add({"rows": torch.tensor([2]), "columns": torch.tensor([1])}, {"w": torch.tensor([[50.0]])})
    # Row 0: one client. Entry (2, 1): two clients. Row 1: nobody.
    assert merge.result()["w"].tolist() == [[10.0, 20.0], [3.0, 4.0], [30.0, 45.0]]


@pytest.mark.parametrize("model", MODELS, ids=model_id)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_merge_equals_a_loop_over_entries(algorithm, model):
    one = federation(algorithm, model=model, keep=(0.2, 0.4, 0.8)).algorithm
    merge = Merge(one.state, one.layout)
    cohort = [Client(number, (0.2, 0.4, 0.8)[number % 3]) for number in range(5)]
    total = {name: torch.zeros(tensor.numel(), dtype=torch.float64) for name, tensor in one.state.items()}
    count = {name: torch.zeros(tensor.numel()) for name, tensor in one.state.items()}
    selections = [selection for client in one.select(0, cohort) for selection in client]
    for number, selection in enumerate(selections):
        updated = random_like(gather(one.state, one.layout, selection), number)
        merge.add(selection, updated)
        for name, tensor in one.state.items():
            # What the gather of the entries' own numbers gives says where each entry of the update belongs.
            numbers = torch.arange(tensor.numel()).view(tensor.shape)
            places = gather({name: numbers}, Layout({name: one.layout.dims[name]}), selection)[name]
            for place, value in zip(places.flatten().tolist(), updated[name].flatten().tolist(), strict=True):
                total[name][place] += value
                count[name][place] += 1
    for name, merged in merge.result().items():
        held = count[name] > 0
        expected = torch.where(held, total[name] / count[name].clamp(min=1), one.state[name].flatten().double())
        torch.testing.assert_close(merged.flatten().double(), expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(merged.flatten()[~held], one.state[name].flatten()[~held])


@pytest.mark.parametrize("model", MODELS, ids=model_id)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_merge_is_the_server_plus_the_mean_change_bit_for_bit(algorithm, model):
    """And holds the sums and counts only: the result is in the sums' memory, a kernel's entries are counted once."""
    one = federation(algorithm, model=model, keep=(0.2, 0.8)).algorithm
    merge = Merge(one.state, one.layout)
    change = {name: torch.zeros_like(tensor) for name, tensor in one.state.items()}
    count = {name: torch.zeros_like(tensor) for name, tensor in one.state.items()}
    plan = one.select(0, [Client(number, (0.2, 0.8)[number % 2]) for number in range(5)])
    for number, selection in enumerate(selection for client in plan for selection in client):
        updated = random_like(gather(one.state, one.layout, selection), number)
        merge.add(selection, updated)
        for name in one.state:
            where = one.layout.index(name, selection)
            change[name][where] += updated[name] - one.state[name][where]
            count[name][where] += 1
    assert all(merge.holders[n].numel() * t.shape[2:].numel() == t.numel() for n, t in one.state.items() if t.ndim == 4)
    memory = {name: tensor.data_ptr() for name, tensor in merge.change.items()}
    merged = merge.result()
    assert merged.keys() == one.state.keys()
    for name, tensor in one.state.items():
        assert torch.equal(merged[name], tensor + change[name] / count[name].clamp(min=1))
        assert merged[name].data_ptr() == memory[name]


def test_repeated_and_expanded_axes():
    """Four stacked gates, and a flattened map: the entries a person would pick."""
    hidden, channels = Axis("hidden", 3), Axis("channels", 2)
    layout = Layout({"w": (Dim(hidden, repeat=4), Dim(channels, expand=5))})
    w = torch.arange(12 * 10).view(12, 10)
    cut = gather({"w": w}, layout, {"hidden": torch.tensor([0, 2]), "channels": torch.tensor([1])})["w"]
    assert torch.equal(cut, w[[0, 2, 3, 5, 6, 8, 9, 11]][:, 5:])
    assert layout.shape("w", w.shape, {"hidden": 2}) == (8, 10)


@pytest.fixture
def no_norm(monkeypatch):
    """Normalisation off: only its scale and shift, so that a feature of zeros stays out of the others."""
    image = lambda self, x: x * self.weight[:, None, None] + self.bias[:, None, None]  # noqa: E731
    monkeypatch.setattr(BatchNorm2d, "forward", image)
    monkeypatch.setattr(LayerNorm, "forward", lambda self, x: x * self.weight + self.bias)


@pytest.mark.usefixtures("no_norm")
@pytest.mark.parametrize("factorise", ["paper", "all"])
@pytest.mark.parametrize("channels", ["prefix", "kernels", "random", "all"])
@pytest.mark.parametrize("model", MODELS, ids=model_id)
def test_sub_model_is_the_full_one_with_the_rest_zeroed(model, channels, factorise):
    """Convolution and linear, factorised, with residual connections, gates and heads."""
    data = data_for(model, samples=48)
    params = {"channels": channels, "factorise": factorise}
    one = federation("prism", params, model, keep=0.4, data=data).algorithm
    # Fresh values everywhere, biases and BatchNorm included: zeros would hide a wrong index.
    one.state = random_like(one.state, 0)
    [[selection]] = one.select(0, [Client(0, 0.4)])
    small = gather(one.state, one.layout, selection)
    zeroed = {}
    for name, tensor in one.state.items():
        zeroed[name] = torch.zeros_like(tensor)
        where = one.layout.index(name, selection)
        zeroed[name][where] = tensor[where]
    x = data.prepare(data.test.inputs)
    expected = one.forward(zeroed, x)
    torch.testing.assert_close(one.forward(small, x), expected, rtol=1e-3, atol=1e-5 * expected.abs().max().item())
    assert sum(t.numel() for t in small.values()) < 0.75 * sum(t.numel() for t in one.state.values())


def test_axes_of_a_residual_stage_are_one():
    layout = federation("fedavg", model=MODELS[-1]).algorithm.layout
    stem, second = layout.dims["stem.weight"][0], layout.dims["blocks.0.conv2.weight"][0]
    assert stem == second
    shortcut, addition = layout.dims["blocks.1.shortcut.0.weight"], layout.dims["blocks.1.conv2.weight"]
    assert shortcut[0] == addition[0]
    assert shortcut[1] == stem
    kinds = {axis.kind for axis in layout.axes.values()}
    assert kinds == {"feature", "fixed"}


def test_two_axes_of_one_name_are_refused():
    layout = Layout({"a": (Dim(Axis("x", 2)),), "b": (Dim(Axis("x", 3)),)})
    with pytest.raises(ValueError, match="called 'x'"):
        layout.axes  # noqa: B018


@pytest.mark.parametrize(("size", "keep"), [*itertools.product((1, 3, 10, 64), (0.2, 0.6, 1.0)), (30, 0.1)])
def test_a_prefix_shape_is_the_ceiling(size, keep):
    assert kept(keep, size) == math.ceil(round(keep * size, 6))
