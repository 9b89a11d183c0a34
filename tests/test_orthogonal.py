"""The orthogonal space: decomposition, rebuilding, the regulariser."""

from __future__ import annotations

import weakref

import pytest
import torch

from prism_bench.base.errors import BadInput
from prism_bench.core.orthogonal import OrthogonalSpace, svd
from prism_bench.data.dataset import Signature
from prism_bench.models.cnn import FemnistCNN
from prism_bench.models.resnet import ResNet18
from prism_bench.testing import federation


def matrices():
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    falling = torch.logspace(0, -6, 48)
    basis = torch.linalg.qr(normal(300, 48)).Q
    yield "wide", normal(64, 576)
    yield "tall", normal(576, 64)
    yield "square", normal(100, 100)
    yield "low rank", normal(64, 5) @ normal(5, 576)
    yield "falling over six decades", torch.linalg.qr(normal(48, 48)).Q * falling @ basis.T
    yield "tiny", 1e-6 * normal(32, 288)
    yield "zero", torch.zeros(8, 72)
    yield "one row", normal(1, 25)
    yield "resnet", normal(512, 4608) / 68


@pytest.mark.parametrize("matrix", [m for _, m in matrices()], ids=[name for name, _ in matrices()])
def test_svd_is_accurate(matrix):
    u, sigma, vt = svd(matrix)
    exact = torch.linalg.svdvals(matrix.double())
    scale = exact[0].clamp(min=1e-30)
    assert u.shape == (matrix.shape[0], len(exact))
    assert vt.shape == (len(exact), matrix.shape[1])
    assert torch.linalg.norm((u * sigma) @ vt - matrix) <= 1e-5 * torch.linalg.norm(matrix)
    assert (sigma.double() - exact).abs().max() <= 1e-4 * scale
    assert torch.all(sigma[:-1] >= sigma[1:])
    strong = exact > 1e-5 * scale
    for basis in (u[:, strong], vt[strong].T):
        torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("factorise", ["paper", "all"])
def test_there_and_back(factorise):
    model = {"name": "resnet18", "width": 10, "blocks": (1, 1)}
    dense = federation("fedavg", model=model).algorithm
    space = OrthogonalSpace(dense.network, factorise)
    state = space.enter(dense.state)
    assert state.keys() == space.layout.dims.keys()
    rebuilt = space.leave(state)
    assert rebuilt.keys() == dense.state.keys()
    for name, tensor in dense.state.items():
        torch.testing.assert_close(rebuilt[name], tensor, rtol=1e-5, atol=1e-6)
    for path in space.paths:
        u, v = state[f"{path}.u"], state[f"{path}.v"].flatten(1)
        exact = torch.linalg.svdvals(dense.state[f"{path}.weight"].flatten(1))
        torch.testing.assert_close(space.sigma(state, path), exact, rtol=1e-4, atol=1e-5)
        # √σ on both sides.
        torch.testing.assert_close(v.square().sum(1), u.square().sum(0), rtol=1e-4, atol=1e-6)


def test_refresh_is_there_and_back_bit_for_bit():
    one = federation("orthdrop", model={"name": "resnet18", "width": 10, "blocks": (1, 1)}).algorithm
    merged = {name: 1.5 * tensor for name, tensor in one.state.items()}
    expected = one.space.enter(one.space.leave(merged))
    one.finish_round(0, merged)
    assert list(one.state) == list(expected)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in one.state.items())


def test_the_refresh_finds_the_tensors_from_before_the_round_gone(monkeypatch):
    """A decomposition takes memory: theirs."""
    one = federation("prism")
    old = [weakref.ref(tensor) for tensor in one.algorithm.state.values()]
    alive = []

    def spy(matrix):
        alive.append(sum(tensor() is not None for tensor in old))
        return svd(matrix)

    monkeypatch.setattr("prism_bench.core.orthogonal.svd", spy)
    one.round(0)
    assert set(alive) == {0}


def test_the_papers_layers():
    resnet = ResNet18().build(Signature((3, 32, 32), 10))
    blocks = OrthogonalSpace(resnet).paths
    assert len(blocks) == 16
    assert all(resnet.get_submodule(path).kernel == (3, 3) for path in blocks)
    assert OrthogonalSpace(FemnistCNN().build(Signature((1, 28, 28), 62))).paths == ("convs.1",)
    assert len(OrthogonalSpace(resnet, "all").paths) == 1 + 16 + 3 + 1
    assert OrthogonalSpace(resnet, ("blocks.7.*", "stem")).paths == ("stem", "blocks.7.conv1", "blocks.7.conv2")


def test_an_unknown_layer_is_an_error():
    with pytest.raises(BadInput, match=r"no layer is called 'convs\.9'"):
        federation("prism", {"factorise": ["convs.9"]})
    with pytest.raises(BadInput, match="needs at least one layer"):
        federation("prism", {"factorise": []})


@pytest.mark.parametrize("algorithm", ["prism", "orthdrop"])
def test_a_refresh_can_be_seldom(algorithm):
    """Between refreshes the factors are what the merge left; the server's model is the same either way."""
    often, seldom = (federation(algorithm, {"refresh": rounds}, keep=0.4) for rounds in (1, 3))
    for round in range(3):
        seldom.round(round)
        u = seldom.algorithm.state["convs.1.u"]
        product = u.T @ u
        orthogonal = (product - product.diag().diag()).abs().max() < 1e-4 * product.diag().max()
        assert orthogonal == (round == 2)
    often.round(0)
    assert often.algorithm.state["convs.1.u"].shape == u.shape


@pytest.mark.parametrize("clients", [None, 3])
def test_the_regularisers_gradient_is_the_closed_form(clients):
    """λ·U(VVᵀ) and λ·(UᵀU)V on the factors, plain decay on the rest; one sub-model or stacked ones."""
    algorithm = federation("prism", {"factorise": "all"}).algorithm
    generator = torch.Generator().manual_seed(0)
    lead = () if clients is None else (clients,)
    params = {n: torch.randn(*lead, *t.shape, generator=generator) for n, t in algorithm.state.items()}
    gradients = {name: torch.ones_like(tensor) for name, tensor in params.items()}
    algorithm.add_decay(params, gradients, 0.01)

    leaves = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    penalty = torch.zeros(())
    factors = set()
    for path in algorithm.space.paths:
        u, v = leaves[f"{path}.u"], leaves[f"{path}.v"]
        penalty = penalty + (u @ v.reshape(*u.shape[:-2], u.shape[-1], -1)).square().sum() * 0.01 / 2
        factors |= {f"{path}.u", f"{path}.v"}
    penalty = penalty + sum(t.square().sum() for n, t in leaves.items() if n not in factors) * 0.01 / 2
    penalty.backward()
    for name, leaf in leaves.items():
        torch.testing.assert_close(gradients[name], 1 + leaf.grad, rtol=1e-4, atol=1e-4)
    u, v = (params[f"convs.1.{part}"] for part in "uv")
    flat = v.flatten(v.ndim - 3)
    torch.testing.assert_close(gradients["convs.1.u"] - 1, 0.01 * u @ (flat @ flat.mT), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        (gradients["convs.1.v"] - 1).flatten(v.ndim - 3), 0.01 * (u.mT @ u) @ flat, rtol=1e-3, atol=1e-4
    )
