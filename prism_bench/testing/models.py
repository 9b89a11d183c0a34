"""What every model must hold. Each check takes the model and, optionally, its settings.

A network is judged by what it computes in double precision, on the smallest data that it takes, with every tensor at
random: fresh weights have ones and zeros that would hide a mistake.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from prism_bench.core.axes import Layout, State
from prism_bench.core.network import Network, dense_forward, evaluating, noise_from
from prism_bench.core.orthogonal import OrthogonalSpace
from prism_bench.core.selections import along, drawn
from prism_bench.core.submodel import gather
from prism_bench.data.dataset import Signature
from prism_bench.testing.tiny import Check, Given, Named, chosen, data_for, described


class Subject:
    """A network of the model, a batch for it, and weights."""

    def __init__(self, model: Named, settings: Given) -> None:
        plugin = chosen("model", model, settings)
        self.settings = plugin.settings
        data = data_for({"name": model, **(settings or {})}, samples=8)
        self.signature = data.signature
        self.network: Network = self.settings.build(self.signature)
        batch = data.prepare(data.test.inputs[:6])
        self.x = batch.double() if batch.is_floating_point() else batch

    def initial(self, seed: int = 0) -> State:
        state: State = self.settings.initial(self.network, np.random.default_rng(seed))
        return state

    def random(self) -> State:
        """Weights as they might be after some training."""
        rng = torch.Generator().manual_seed(0)
        return {
            name: (tensor + 0.2 * torch.randn(tensor.shape, generator=rng)).double()
            for name, tensor in self.initial().items()
        }

    def logits(self, state: State, network: Network | None = None) -> Tensor:
        with evaluating():
            return dense_forward(network or self.network, state, self.x)

    def trained(self, state: State, seed: int) -> Tensor:
        """In training mode, with noise from a seed."""
        with noise_from(torch.Generator().manual_seed(seed)):
            return dense_forward(self.network, state, self.x)

    def spaces(self) -> Iterator[tuple[str, Network, Layout, State]]:
        """The network with plain weights and, where it has such layers, with all of them factorised."""
        state = self.random()
        yield "plain", self.network, self.network.layout(), state
        if self.network.groups()["all"]:
            space = OrthogonalSpace(self.network, "all")
            yield "factorised", space.module, space.layout, space.enter(state)


def check_described(model: Named, settings: Given = None) -> None:
    """It says in a line what it does, its settings are frozen, and it names the data that it is known for."""
    plugin = chosen("model", model, settings)
    described(model, plugin.kind, plugin.settings)
    assert isinstance(getattr(plugin.kind, "usual", None), Signature), f"{model} needs `usual`, a Signature"


def check_build(model: Named, settings: Given = None) -> None:
    """It builds a Network on the meta device, for its usual data too, and keeps no values of its own."""
    subject = Subject(model, settings)
    for network in (subject.network, subject.settings.build(subject.settings.usual)):
        assert isinstance(network, Network), f"`build` must give a Network, not {type(network).__name__}"
        for name, tensor in network.named_parameters():
            assert tensor.is_meta, f"'{name}' has memory: `Layer.declare` registers a shape alone"
        buffers = [name for name, _ in network.named_buffers()]
        assert not buffers, f"values that are no parameters are never sent, merged or kept: {buffers}"


def check_layout(model: Named, settings: Given = None) -> None:
    """The layout names every parameter, with axes as long as its dimensions."""
    network = Subject(model, settings).network
    layout, params = network.layout(), dict(network.named_parameters())
    without, unknown = params.keys() - layout.dims.keys(), layout.dims.keys() - params.keys()
    assert not without, f"no axes are known of {sorted(without)}: parameters belong to a Layer, which has `dims`"
    assert not unknown, f"`dims` names what is no parameter: {sorted(unknown)}"
    for name, tensor in params.items():
        dims = layout.dims[name]
        sizes = tuple(size if dim is None else dim.size for size, dim in zip(tensor.shape, dims, strict=False))
        assert len(dims) == tensor.ndim, f"'{name}' has {tensor.ndim} dimensions, and `dims` has {len(dims)}"
        assert sizes == tuple(tensor.shape), f"'{name}' is {tuple(tensor.shape)}, and its axes say {sizes}"
        cut = [number for number, dim in enumerate(dims) if dim is not None]
        assert cut == list(range(len(cut))), f"'{name}': an axis follows a dimension without one; the axes come first"
    assert layout.of_kind("feature"), "no axis can be cut: sub-model methods have nothing to select"
    missing = set(network.paper_layers) - network.weighted_layers().keys()
    assert not missing, f"`paper_layers` names what is no weighted layer: {sorted(missing)}"


def check_symmetry(model: Named, settings: Given = None) -> None:
    """Permuting one axis in all tensors along it does not change the function, whole or factorised.

    So an axis is one thing: two layers whose outputs are added, say, must not have one each.
    """
    subject = Subject(model, settings)
    rng = np.random.default_rng(0)
    expected = subject.logits(subject.random())
    for form, network, layout, state in subject.spaces():
        same = torch.allclose(subject.logits(state, network), expected, rtol=1e-6, atol=1e-8)
        assert same, f"the {form} network computes something else: a layer's product must go through `forward`"
        for axis in [*layout.of_kind("feature"), *layout.of_kind("rank")]:
            order = torch.from_numpy(np.roll(np.arange(axis.size), 1) if axis.size < 4 else rng.permutation(axis.size))
            permuted = gather(state, layout, {axis.name: order})
            assert torch.allclose(subject.logits(permuted, network), expected, rtol=1e-6, atol=1e-8), (
                f"the order of the features along '{axis.name}' changes what the network computes: a tensor that goes "
                "along it does not say so, or two axes that an addition ties together are declared as two"
            )


def check_sub_models(model: Named, settings: Given = None) -> None:
    """With every axis cut the network runs, and computes what the whole does with the rest at zero.

    The latter unless something normalises over the features that are there.
    """
    subject = Subject(model, settings)
    for form, network, layout, state in subject.spaces():
        axes = [*layout.of_kind("feature"), *layout.of_kind("rank")]
        selection = along(axes, 0.5, drawn(np.random.default_rng(0)))
        try:
            with Operations() as seen:  # type: ignore[no-untyped-call]
                logits = subject.logits(gather(state, layout, selection), network)
        except Exception as error:
            raise AssertionError(
                f"a {form} sub-model does not run: {error}. Shapes must come from the tensors, not from the settings"
            ) from error
        expected = (len(subject.x), subject.signature.classes)
        assert logits.shape == expected, f"a sub-model's logits are {tuple(logits.shape)}, not {expected}"
        if seen.normalise:
            continue
        rest = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        for name, tensor in state.items():
            where = layout.index(name, selection)
            rest[name][where] = tensor[where]
        assert torch.allclose(logits, subject.logits(rest, network), rtol=1e-6, atol=1e-8), (
            f"a {form} sub-model computes something else than the whole does with the dropped features at zero"
        )


def check_modes(model: Named, settings: Given = None) -> None:
    """Evaluation is deterministic, and noise in training comes from the run's seed."""
    subject = Subject(model, settings)
    state, before = subject.random(), torch.get_rng_state()
    evaluated = subject.logits(state)
    assert torch.equal(evaluated, subject.logits(state)), "evaluation mode is not deterministic"
    first, second = (subject.trained(state, seed=0) for _ in range(2))
    own = torch.equal(first, second) and torch.equal(before, torch.get_rng_state())
    assert own, (
        "training draws from torch's own generator, so that the run's seed doesn't decide its numbers: take "
        "prism_bench.plugin.Dropout, or derive a module from prism_bench.plugin.Noisy"
    )
    if subject.network.draws:
        message = "it has a module that draws in training, and its logits are those of evaluation"
        assert not torch.equal(first, evaluated), f"{message}: leave the module out where it does nothing"
        assert not torch.equal(first, subject.trained(state, seed=1)), "another seed gives the same noise"


def check_initial(model: Named, settings: Given = None) -> None:
    """First weights are finite float32 for every parameter, and a function of the generator."""
    subject = Subject(model, settings)
    first, second, other = subject.initial(0), subject.initial(0), subject.initial(1)
    shapes = {name: tuple(tensor.shape) for name, tensor in subject.network.named_parameters()}
    assert {name: tuple(tensor.shape) for name, tensor in first.items()} == shapes, (
        "`initial` must give every parameter a value of its shape"
    )
    for name, tensor in first.items():
        assert tensor.dtype == torch.float32, f"'{name}' starts as {tensor.dtype}, not as float32"
        assert tensor.isfinite().all(), f"'{name}' starts with values that are not finite"
        assert torch.equal(tensor, second[name]), f"'{name}' starts elsewhere under one seed: draw from the generator"
    scratch = subject.settings.start == "scratch"
    same = all(torch.equal(tensor, other[name]) for name, tensor in first.items())
    assert not scratch or not same, "another seed starts from the same weights: draw them from the generator"


def check_copies(model: Named, settings: Given = None) -> None:
    """A deep copy and a pickled one compute the same: threads and processes have one each."""
    subject = Subject(model, settings)
    state = subject.random()
    expected = subject.logits(state)

    def pickled(network: Any) -> Any:
        return pickle.loads(pickle.dumps(network))

    for way, duplicate in (("a deep copy", copy.deepcopy), ("a pickled copy", pickled)):
        try:
            logits = subject.logits(state, duplicate(subject.network))
        except Exception as error:
            raise AssertionError(f"{way} of the network does not work: {error!r}") from error
        assert torch.equal(logits, expected), f"{way} of the network computes something else"


MODEL_CHECKS: tuple[Check, ...] = (
    check_described,
    check_build,
    check_layout,
    check_symmetry,
    check_sub_models,
    check_modes,
    check_initial,
    check_copies,
)


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether anything meanwhile normalises over features; BatchNorm takes each by itself, and does not."""

    normalise = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        self.normalise |= "norm" in name and "batch_norm" not in name
        return func(*args, **(kwargs or {}))
