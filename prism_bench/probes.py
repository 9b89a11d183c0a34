"""More to record of a run than its accuracy: rank of layers, who held which kernel, what kernels see, sub-models.

Each probe gives rows, one a layer (or a layer and picture), whose lists run along the kernels in falling order of σ; or
one a sub-model.
They are kept with the round's record and read back in long format (`results.Results.probe`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from prism_bench.algorithm import dense_forward
from prism_bench.axes import State
from prism_bench.evaluate import evaluate
from prism_bench.models.layers import Weighted
from prism_bench.orthogonal import svd

if TYPE_CHECKING:
    from prism_bench.rounds import Federation, Round

Rows = list[dict[str, Any]]

PICTURES, KERNELS, PARTS = 3, 5, 3


def rank(federation: Federation, opened: Round) -> Rows:
    """Of each layer that the paper factorises: how many principal kernels it takes to approximate it."""
    dense = _dense(federation)
    if dense is None:
        return []
    rows = []
    for path in federation.algorithm.network.paper_layers:
        sigma = svd(dense[f"{path}.weight"].flatten(1))[1].double()
        rows.append({"layer": path, "kernels": len(sigma), "value": required_kernels(sigma)})
    return rows


def required_kernels(sigma: Tensor) -> float:
    """The effective rank: 2 to the entropy of p = σ/Σσ.

    The paper's formula is malformed; this is the one that its source has, and equals n for n equal values.

    >>> round(required_kernels(torch.ones(4)), 6), round(required_kernels(torch.tensor([1.0, 0.0])), 6)
    (4.0, 1.0)
    """
    p = sigma / sigma.sum()
    return float(2 ** -(torch.special.xlogy(p, p).sum() / torch.log(torch.tensor(2.0, dtype=p.dtype))).item())


def sampling(federation: Federation, opened: Round) -> Rows:
    """Of each rank axis: how many of the round's clients held each kernel."""
    rows = []
    for axis in federation.algorithm.layout.of_kind("rank"):
        held = torch.zeros(axis.size, dtype=torch.int64)
        for task in opened.tasks:
            held[task.selection[axis.name].cpu() if axis.name in task.selection else slice(None)] += 1
        rows.append(
            {"layer": axis.name.removesuffix(".rank"), "kernel": list(range(axis.size)), "clients": held.tolist()}
        )
    return rows


def features(federation: Federation, opened: Round) -> Rows:
    """What the first principal kernels of the first factorised layer make of a few test images, from 0 to 255.

    Kernel -1 is the image itself, in grey.
    """
    dense, data = _dense(federation), federation.data
    if dense is None or data.vocabulary is not None:
        return []
    network = federation.algorithm.network
    path = network.paper_layers[0]
    layer = network.get_submodule(path)
    assert isinstance(layer, Weighted)
    if not layer.kernel:
        return []
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    try:
        # Batch statistics are those of a whole batch, not of three images.
        raw = data.test.inputs[: federation.run.evaluation.batch]
        with torch.inference_mode():
            dense_forward(network, dense, data.prepare(raw))
    finally:
        hook.remove()
    weight = dense[f"{path}.weight"]
    kernels = svd(weight.flatten(1))[2][:KERNELS].view(-1, *weight.shape[1:])
    maps = layer.product(seen[0][:PICTURES], kernels)
    rows = []
    for number in range(min(PICTURES, len(raw))):
        pictures = [raw[number].float().mean(0), *maps[number]]
        for kernel, picture in enumerate(pictures, start=-1):
            rows.append({"layer": path, "image": number, "kernel": kernel, "pixels": _bytes(picture)})
    return rows


def parts(federation: Federation, opened: Round) -> Rows:
    """How good the sub-models are that the first clients of the next round would be sent, before they train them.

    Where they are no better than the full model, it is training that is slow; where they are much better, the full
    model has parts that disturb it.
    """
    algorithm, run = federation.algorithm, federation.run
    cohort = federation.cohort(opened.number + 1)[:PARTS]
    how = (federation.data, run.evaluation.batch, federation.workers, run.training.precision)
    return [
        {"client": client.number, "accuracy": evaluate(algorithm.part(selection), *how)[0]}
        for client, selections in zip(cohort, algorithm.select(opened.number + 1, cohort), strict=True)
        for selection in selections
    ]


def _bytes(picture: Tensor) -> list[list[int]]:
    low, high = picture.min(), picture.max()
    scaled = (picture - low) / (high - low).clamp(min=1e-12) * 255
    rows: list[list[int]] = scaled.round().int().tolist()
    return rows


def _dense(federation: Federation) -> State | None:
    """The full model's weights; None where the server's model is no single network (an ensemble)."""
    state = federation.algorithm.full_model().state
    shapes = {name: tensor.shape for name, tensor in federation.algorithm.network.named_parameters()}
    return state if all(name in state and state[name].shape == shape for name, shape in shapes.items()) else None


PROBES = {"rank": rank, "sampling": sampling, "features": features, "parts": parts}
