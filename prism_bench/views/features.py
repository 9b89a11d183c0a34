"""What principal kernels see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from prism_bench.analysis.view import Rows, View
from prism_bench.core.network import Weighted, dense_forward
from prism_bench.core.orthogonal import svd

if TYPE_CHECKING:
    from prism_bench.engine.federation import Federation
    from prism_bench.engine.round import Round


PICTURES, KERNELS = 3, 5


def record(federation: Federation, opened: Round) -> Rows:
    """What the first principal kernels of the first factorised layer make of a few test images, from 0 to 255.

    Kernel -1 is the image itself, in grey.
    """
    dense, data = federation.dense_weights(), federation.data
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


def _bytes(picture: Tensor) -> list[list[int]]:
    low, high = picture.min(), picture.max()
    scaled = (picture - low) / (high - low).clamp(min=1e-12) * 255
    rows: list[list[int]] = scaled.round().int().tolist()
    return rows


VIEW = View(heading="What principal kernels see", record=record, at_end=True)
