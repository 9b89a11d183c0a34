"""A picture of a population: who has what."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from prism_bench.data.population import Population


def draw(population: Population, labels: np.ndarray, path: Path, title: str = "") -> None:
    """A picture: each client's mix of classes as a heat map, and beside it how many samples it has."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    counts = population.histogram(labels)
    clients, classes = counts.shape
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    figure = Figure(
        figsize=(3.5 + min(9.0, 0.35 * classes), 1.5 + min(8.0, max(2.5, 0.12 * clients))), layout="constrained"
    )
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[max(3.0, 0.35 * classes), 1.5])
    heat = left.imshow(shares, aspect="auto", cmap="viridis", vmin=0, extent=(-0.5, classes - 0.5, clients - 0.5, -0.5))
    left.set(xlabel="class", ylabel="client", title="Mix of classes")
    left.locator_params(integer=True)
    figure.colorbar(heat, ax=left, label="share of the client's samples")
    # One filled step line: ten thousand bars would take minutes.
    right.stairs(population.sizes, np.arange(clients + 1) - 0.5, orientation="horizontal", fill=True)
    right.set(xlabel="samples", title="Samples")
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
