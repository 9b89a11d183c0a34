"""Networks against plain torch, with the same weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from prism_bench.base.errors import BadInput
from prism_bench.core.algorithm import Client
from prism_bench.core.submodel import gather
from prism_bench.data.dataset import Signature
from prism_bench.engine.spec import Plugin
from prism_bench.models.cnn import VGG11
from prism_bench.models.deit import DeiTTiny
from prism_bench.models.lstm import LSTM
from prism_bench.testing import federation, tiny_data


def rebuilt(state, path):
    """The dense weight of a layer, whole or factorised."""
    weight = state.get(f"{path}.weight")
    return state[f"{path}.u"] @ state[f"{path}.v"].flatten(1) if weight is None else weight


@pytest.mark.parametrize(("algorithm", "keep"), [("fedavg", 1.0), ("orthdrop", 0.4), ("prism", 0.4), ("origdrop", 0.7)])
def test_lstm_is_torchs_own_with_the_rebuilt_weights(algorithm, keep):
    """A sub-model, factorised for real, computes what nn.LSTM of its size does."""
    one = federation(algorithm, model={"name": "lstm", "embedding": 10, "hidden": 10}, keep=keep)
    [[selection]] = one.algorithm.select(0, [Client(0, keep)])
    state = gather(one.algorithm.state, one.algorithm.layout, selection)
    words, hidden = state["embedding.weight"].shape[0], state["classifier.weight"].shape[1]
    plain = nn.LSTM(words, hidden, num_layers=2, batch_first=True)
    with torch.no_grad():
        for layer in range(2):
            getattr(plain, f"weight_ih_l{layer}").copy_(rebuilt(state, f"stack.{layer}.input"))
            getattr(plain, f"weight_hh_l{layer}").copy_(rebuilt(state, f"stack.{layer}.recurrent"))
            getattr(plain, f"bias_ih_l{layer}").copy_(state[f"stack.{layer}.input.bias"])
            getattr(plain, f"bias_hh_l{layer}").zero_()
    tokens = one.data.prepare(one.data.test.inputs)
    states, _ = plain(nn.functional.embedding(tokens, state["embedding.weight"].T))
    expected = nn.functional.linear(states[:, -1], state["classifier.weight"], state["classifier.bias"])
    torch.testing.assert_close(one.algorithm.forward(state, tokens), expected, rtol=1e-4, atol=1e-5)
    if algorithm == "prism":
        assert hidden == words == 4
        assert state["stack.1.recurrent.u"].shape == (16, 4)


def test_the_papers_lstm_has_its_sizes():
    network = LSTM().build(LSTM.usual)
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
    assert shapes["embedding.weight"] == (64, 1001)
    assert shapes["stack.0.input.weight"] == (1024, 64)
    assert shapes["stack.1.recurrent.weight"] == (1024, 256)
    hidden = {dim.axis for dims in network.layout().dims.values() for dim in dims if dim and dim.axis.name == "hidden"}
    assert len(hidden) == 1, "tied across gates, layers and the classifier"


@pytest.mark.parametrize("model", ["cnn", "resnet18", "deit", "vgg11"])
def test_image_models_say_that_they_read_images(model):
    settings = Plugin.choose("model", model).settings
    with pytest.raises(BadInput, match="reads images, and the data set is none"):
        settings.build(LSTM.usual)


def test_deit_needs_whole_patches():
    with pytest.raises(BadInput, match=r"at least 4×4, in multiples of 4 \(samples are 3×30×30\)"):
        DeiTTiny().build(Signature((3, 30, 30), 10))


def test_the_lstm_says_that_it_reads_words():
    with pytest.raises(BadInput, match="'lstm' reads words"):
        LSTM().build(Signature((3, 32, 32), 10))


class PlainTransformer(nn.Module):
    """Torch's own encoder layers."""

    def __init__(self, width, heads, depth, tokens, classes):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token, self.positions = (nn.Parameter(torch.zeros(1, n, width)) for n in (1, tokens))
        layer = nn.TransformerEncoderLayer(
            width,
            heads,
            4 * width,
            dropout=0,
            activation="gelu",
            layer_norm_eps=1e-6,
            batch_first=True,
            norm_first=True,
        )
        self.blocks = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width, eps=1e-6), enable_nested_tensor=False)
        self.classifier = nn.Linear(width, classes)

    def forward(self, x):
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.positions
        return self.classifier(self.blocks(tokens)[:, 0])


@pytest.mark.parametrize(("algorithm", "factorise"), [("fedavg", None), ("prism", "mlp"), ("prism", "all")])
def test_deit_is_a_plain_transformer_with_the_rebuilt_weights(algorithm, factorise):
    params = {"factorise": factorise} if factorise else {}
    model = {"name": "deit", "width": 24, "depth": 2}
    one = federation(algorithm, params, model, keep=1.0, data=tiny_data((3, 32, 32), 5)).algorithm
    generator = torch.Generator().manual_seed(0)
    state = {n: t + 0.1 * torch.randn(t.shape, generator=generator) for n, t in one.state.items()}
    plain = PlainTransformer(24, 3, 2, tokens=65, classes=5)
    target = plain.state_dict()
    target["patches.weight"], target["patches.bias"] = state["patches.weight"], state["patches.bias"]
    target["token"], target["positions"] = state["token.weight"].T[None], state["positions.weight"].T[None]
    for n in range(2):
        ours, theirs = f"blocks.{n}.", f"blocks.layers.{n}."
        target[f"{theirs}self_attn.in_proj_weight"] = rebuilt(state, f"{ours}attention.qkv")
        target[f"{theirs}self_attn.in_proj_bias"] = state[f"{ours}attention.qkv.bias"]
        for mine, other in {
            "attention.out": "self_attn.out_proj",
            "mlp.0": "linear1",
            "mlp.1": "linear2",
            "norm1": "norm1",
            "norm2": "norm2",
        }.items():
            target[f"{theirs}{other}.weight"] = rebuilt(state, ours + mine)
            target[f"{theirs}{other}.bias"] = state[f"{ours}{mine}.bias"]
    for part, name in (("norm", "blocks.norm"), ("classifier", "classifier")):
        target[f"{name}.weight"], target[f"{name}.bias"] = state[f"{part}.weight"], state[f"{part}.bias"]
    plain.load_state_dict(target)
    x = torch.randn(4, 3, 32, 32, generator=generator)
    torch.testing.assert_close(one.forward(state, x), plain.eval()(x), rtol=1e-3, atol=1e-4)


def test_deit_tiny_has_its_sizes():
    network = DeiTTiny().build(DeiTTiny.usual)
    groups = network.groups()
    assert len(groups["mlp"]) == 24
    assert len(groups["all"]) == 48
    assert groups["paper"] == groups["mlp"]
    # 12 blocks of 12·192² + 13·192 parameters, patches, token, positions, last norm, classifier.
    expected = 12 * (12 * 192**2 + 13 * 192) + (48 * 192 + 192) + 192 + 65 * 192 + 2 * 192 + 1930
    assert sum(p.numel() for p in network.parameters()) == expected


def published(depth, width=24, patch=16, grid=14, classes=1000):
    """A checkpoint in the published layout, with random values."""
    generator = torch.Generator().manual_seed(1)
    shapes = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, grid * grid + 1, width),
        "patch_embed.proj.weight": (width, 3, patch, patch),
        "patch_embed.proj.bias": (width,),
        "head.weight": (classes, width),
        "head.bias": (classes,),
        "norm.weight": (width,),
        "norm.bias": (width,),
    }
    for n in range(depth):
        for part, rows, columns in (
            ("attn.qkv", 3 * width, width),
            ("attn.proj", width, width),
            ("mlp.fc1", 4 * width, width),
            ("mlp.fc2", width, 4 * width),
        ):
            shapes[f"blocks.{n}.{part}.weight"], shapes[f"blocks.{n}.{part}.bias"] = (rows, columns), (rows,)
        for norm in ("norm1", "norm2"):
            shapes[f"blocks.{n}.{norm}.weight"] = shapes[f"blocks.{n}.{norm}.bias"] = (width,)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def test_deit_starts_from_imagenet_weights_in_a_file(tmp_path):
    file = tmp_path / "deit.pth"
    weights = published(depth=2)
    torch.save({"model": weights}, file)
    settings = DeiTTiny(width=24, depth=2, weights=file)
    network = settings.build(DeiTTiny.usual)
    state = settings.initial(network, np.random.default_rng(0))
    assert {name: t.shape for name, t in state.items()} == {n: p.shape for n, p in network.named_parameters()}
    assert torch.equal(state["blocks.1.attention.qkv.weight"], weights["blocks.1.attn.qkv.weight"])
    assert torch.equal(state["blocks.0.mlp.1.bias"], weights["blocks.0.mlp.fc2.bias"])
    assert torch.equal(state["token.weight"][:, 0], weights["cls_token"][0, 0])
    assert (settings.start, DeiTTiny().start) == (str(file), "scratch"), "what a run's record says"
    assert torch.equal(state["positions.weight"][:, 0], weights["pos_embed"][0, 0]), "the token's own position"
    fresh = DeiTTiny(width=24, depth=2).initial(network, np.random.default_rng(0))
    assert torch.equal(state["classifier.weight"], fresh["classifier.weight"]), "other classes: a fresh classifier"
    # A resize keeps what is constant, and the mean.
    weights["pos_embed"][:, 1:] = 3.0
    torch.save(weights, file)
    again = settings.initial(network, np.random.default_rng(0))
    torch.testing.assert_close(again["positions.weight"][:, 1:], torch.full((24, 64), 3.0))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda w, f: None, "there is no file"),
        (lambda w, f: f.write_bytes(b"nonsense"), "can't be read as torch weights"),
        (
            lambda w, f: torch.save({k: v for k, v in w.items() if k != "blocks.1.norm2.bias"}, f),
            "has no 'blocks.1.norm2",
        ),
        (lambda w, f: torch.save(w | {"pos_embed": torch.zeros(1, 198, 24)}, f), "is for 198 tokens"),
        (lambda w, f: torch.save(w | {"norm.bias": 3}, f), "'norm.bias' .* is not a tensor"),
        (lambda w, f: torch.save(w | {"blocks.0.attn.qkv.weight": torch.zeros(3, 3)}, f), "has shape \\(3, 3\\)"),
    ],
)
def test_bad_weights_are_named(tmp_path, damage, message):
    file = tmp_path / "deit.pth"
    damage(published(depth=2), file)
    settings = DeiTTiny(width=24, depth=2, weights=file)
    with pytest.raises(BadInput, match=f"model.weights: .*{message}"):
        settings.initial(settings.build(DeiTTiny.usual), np.random.default_rng(0))


@pytest.mark.parametrize("algorithm", ["fedavg", "prism"])
def test_recomputed_blocks_give_the_same_bits_for_less_memory(algorithm):
    """Clients in threads of their own, and stacked ones to rounding."""
    narrow = {"name": "resnet18", "width": 5, "blocks": [1, 1]}
    keeping, again, stacked = (
        federation(algorithm, model={**narrow, "recompute": recompute}, at_once=at_once)
        for recompute, at_once in ((False, 1), (True, 1), (True, 8))
    )
    records = [one.round(0) for one in (keeping, again, stacked)]
    assert records[0]["train_loss"] == records[1]["train_loss"]
    assert records[0]["train_loss"] == pytest.approx(records[2]["train_loss"], rel=1e-4)
    assert all(torch.equal(keeping.algorithm.state[n], again.algorithm.state[n]) for n in keeping.algorithm.state)
    before, after = keeping.client_costs, again.client_costs
    assert after.activation_bytes < 0.8 * before.activation_bytes
    assert (after.macs, after.parameters) == (before.macs, before.parameters)


def test_vgg11_has_its_sizes():
    network = VGG11().build(VGG11.usual)
    convs = [tuple(p.shape[:2]) for name, p in network.named_parameters() if name.startswith("convs")]
    assert convs == [(64, 3), (128, 64), (256, 128), (256, 256), (512, 256), (512, 512), (512, 512), (512, 512)]
    assert len(network.paper_layers) == 7
    with pytest.raises(BadInput, match="at least 32×32"):
        VGG11().build(Signature((3, 16, 16), 10))
