"""Rules that choose features along an axis: what the methods of this suite differ in.

A rule is given an axis and how many of its features to keep, and gives their indices. `along` applies one to several
axes, which makes a selection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch

from prism_bench.core.axes import Axis, Selection
from prism_bench.core.capacity import kept

Rule = Callable[[Axis, int], np.ndarray]


def along(axes: Iterable[Axis], keep: float, rule: Rule, device: torch.device | str = "cpu") -> Selection:
    """Of each axis ceil(keep·size) features, as the rule chooses them.

    >>> along([Axis("conv0", 10)], 0.3, prefix)["conv0"].tolist()
    [0, 1, 2]
    """
    return {axis.name: indices(rule(axis, kept(keep, axis.size)), device) for axis in axes}


def indices(chosen: np.ndarray, device: torch.device | str = "cpu") -> torch.Tensor:
    """Indices as a selection holds them."""
    return torch.from_numpy(chosen).to(device)


def prefix(axis: Axis, count: int) -> np.ndarray:
    """The first features."""
    return np.arange(count)


def window(start: int) -> Rule:
    """A window of neighbours from ``start`` on, which goes on at the beginning where the axis ends.

    >>> window(3)(Axis("conv0", 5), 3).tolist()
    [0, 3, 4]
    """
    return lambda axis, count: np.sort((start + np.arange(count)) % axis.size)


def drawn(rng: np.random.Generator) -> Rule:
    """Features at random, each equally likely."""
    return lambda axis, count: np.sort(rng.permutation(axis.size)[:count])


def block(number: int, blocks: int) -> Rule:
    """One of so many blocks of neighbours that cover the axis; where its size does not divide, they overlap.

    >>> [block(number, 2)(Axis("conv0", 5), 3).tolist() for number in range(2)]
    [[0, 1, 2], [2, 3, 4]]
    """

    def rule(axis: Axis, count: int) -> np.ndarray:
        start = round(number * (axis.size - count) / max(1, blocks - 1))
        return np.arange(start, start + count)

    return rule


def following(kernels: Mapping[str, np.ndarray], rng: np.random.Generator) -> Rule:
    """Features with the numbers of sampled kernels: ``kernels`` has those of each axis that a factorised layer writes.

    An axis that none writes falls to the prefix, and so does what too few kernels leave open. Where an axis is laid out
    several times (gates, heads), a kernel stands for the feature of its number.
    """

    def rule(axis: Axis, count: int) -> np.ndarray:
        numbers = np.unique(kernels[axis.name] % axis.size) if axis.name in kernels else 0
        chosen = rng.permutation(numbers)[:count]
        rest = np.setdiff1d(np.arange(axis.size), chosen)[: count - len(chosen)]
        return np.sort(np.concatenate([chosen, rest]))

    return rule


def sample(scores: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw ``count`` distinct indices one after another with p ∝ exp(score), sorted.

    The largest of score + Gumbel noise have exactly that distribution, and logarithms don't underflow: it works when
    all but a few probabilities are zero in floating point.
    """
    keys = scores + rng.gumbel(size=len(scores))
    return np.sort(np.argsort(-keys, kind="stable")[:count])
