"""How much of the model each client can train."""

from __future__ import annotations

import math

import numpy as np
from pydantic import Field, field_validator, model_validator

from prism_bench.config import Settings


class Capacity(Settings):
    """One keep ratio for all clients, or a mix: ``keep: [0.4, 0.2]`` with ``share: [0.4, 0.6]``.

    A mix has exact counts and each client keeps its ratio, unless ``redraw`` deals them out anew each round.
    """

    keep: tuple[float, ...] = Field((1.0,), description="keep ratio of every client, or the ratios of a mix")
    share: tuple[float, ...] = Field((1.0,), description="share of the clients at each ratio of a mix")
    redraw: bool = Field(False, description="deal the mix out anew each round")

    @field_validator("keep", "share", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, (int, float)) else value

    @field_validator("keep")
    @classmethod
    def _in_range(cls, keep: tuple[float, ...]) -> tuple[float, ...]:
        if not keep or not all(0 < ratio <= 1 for ratio in keep):
            raise ValueError("a keep ratio must be above 0 and at most 1")
        return keep

    @model_validator(mode="after")
    def _shares_fit(self) -> Capacity:
        if len(self.share) != len(self.keep):
            raise ValueError(f"{len(self.keep)} keep ratios need as many shares")
        if any(share <= 0 for share in self.share) or not math.isclose(sum(self.share), 1, abs_tol=1e-6):
            raise ValueError("the shares must be positive and add up to 1")
        return self

    @property
    def label(self) -> str:
        """What a table shows: '0.2', or '0.4 (40%) + 0.2 (60%)'."""
        if len(self.keep) == 1:
            return f"{self.keep[0]:g}"
        pairs = zip(self.keep, self.share, strict=True)
        return " + ".join(f"{keep:g} ({share:.0%})" for keep, share in pairs)

    def deal(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        """One keep ratio a client, with exact counts (largest remainders).

        >>> ratios = Capacity(keep=(0.4, 0.2), share=(0.4, 0.6)).deal(5, np.random.default_rng(0))
        >>> sorted(ratios.tolist())
        [0.2, 0.2, 0.2, 0.4, 0.4]
        """
        exact = np.array(self.share) * clients
        counts = np.floor(exact + 1e-9).astype(int)
        largest = np.argsort(counts - exact, kind="stable")
        counts[largest[: clients - counts.sum()]] += 1
        return rng.permutation(np.repeat(self.keep, counts))


def kept(keep: float, size: int) -> int:
    """ceil(keep · size), at least 1, safe from floating point (0.1 · 30 is 3, not 4)."""
    return max(1, math.ceil(keep * size - 1e-9))
