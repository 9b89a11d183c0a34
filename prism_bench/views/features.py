"""What principal kernels see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from prism_bench.analysis.report.plots import grid, probed
from prism_bench.analysis.view import Picture, Rows, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from prism_bench.engine.federation import Federation
    from prism_bench.engine.round import Round


PICTURES, KERNELS = 3, 5


def record(federation: Federation, opened: Round) -> Rows:
    """Record what the first principal kernels of the first factorised layer make of a few test images, from 0 to 255.

    Kernel -1 is the image itself, in grey.
    """
    # Imported here: pictures and tables of what was recorded are made without torch.
    import torch

    from prism_bench.core.network import Weighted, dense_forward
    from prism_bench.core.orthogonal import svd

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


def draw(probe: pd.DataFrame, layers: int = 3, images: int = 3, kernels: int = 7) -> Figure:
    """Draw what principal kernels see: per image and layer one row, the image and then the kernels by falling σ."""
    probe = probed(probe, "features")
    probe = probe[(probe["run"] == probe["run"].iloc[0]) & (probe["round"] == probe["round"].max())]
    rows = [
        (layer, image)
        for layer in list(dict.fromkeys(probe["layer"]))[:layers]
        for image in sorted(probe["image"].unique())[:images]
    ]
    columns = sorted(probe["kernel"].unique())[: kernels + 1]
    figure, axes = grid(len(rows) * len(columns), columns=len(columns), wide=0.34, high=0.42)
    by_picture = dict(list(probe.groupby(["layer", "image", "kernel"])))
    for place, panel in enumerate(axes):
        (layer, image), kernel = rows[place // len(columns)], columns[place % len(columns)]
        panel.set_xticks([])
        panel.set_yticks([])
        panel.grid(visible=False)
        panel.spines[:].set_visible(False)
        pixels = by_picture.get((layer, image, kernel))
        if pixels is None:
            panel.set_axis_off()
            continue
        panel.imshow(pixels.pivot(index="y", columns="x", values="value"), cmap="gray", interpolation="nearest")
        if place < len(columns):
            panel.set_title("input" if kernel < 0 else f"kernel {kernel + 1}", fontsize=9)
        if place % len(columns) == 0 and image == rows[0][1]:
            panel.set_ylabel(layer, fontsize=8)
    return figure


VIEW = View(
    heading="What principal kernels see",
    record=record,
    at_end=True,
    picture=Picture(
        name="features",
        draw=draw,
        caption="What principal kernels see: the input, then the features of the kernels by falling singular value.",
        read=lambda results: results.probe("features"),
    ),
)
