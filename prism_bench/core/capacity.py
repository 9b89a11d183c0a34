"""How much of the model each client can train."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

import numpy as np
from pydantic import Field, field_validator, model_validator

from prism_bench.base.settings import Settings

Limit = Annotated[float | str, Field(description="an absolute number, or '20%' of the full model's")]


class Budget(Settings):
    """What a client may pay in a round; each limit absolute, or in % of full-model training."""

    parameters: Limit | None = None
    macs: Limit | None = None
    activation_bytes: Limit | None = None
    training_bytes: Limit | None = None
    transfer_bytes: Limit | None = None

    @field_validator("*")
    @classmethod
    def _positive(cls, limit: float | str | None) -> float | str | None:
        try:
            positive = limit is None or 0 < _absolute(limit, full=1.0) < math.inf
        except ValueError:
            positive = False
        if not positive:
            raise ValueError("a limit is a positive number, or a percentage such as '20%'")
        return limit

    @model_validator(mode="after")
    def _says_something(self) -> Budget:
        if not self.limits():
            raise ValueError(f"a budget limits at least one of {', '.join(Budget.model_fields)}")
        return self

    def limits(self) -> dict[str, float | str]:
        return {name: limit for name, limit in self.model_dump().items() if limit is not None}

    def allows(self, costs: Mapping[str, float], full: Mapping[str, float]) -> bool:
        """Whether all costs are within the limits; ``full`` is what the percentages are of."""
        return all(costs[name] <= _absolute(limit, full[name]) for name, limit in self.limits().items())

    @property
    def label(self) -> str:
        return ", ".join(f"{name} ≤ {limit}" for name, limit in self.limits().items())


def _absolute(limit: float | str, full: float) -> float:
    return float(limit[:-1]) / 100 * full if isinstance(limit, str) and limit.endswith("%") else float(limit)


class Capacity(Settings):
    """How much clients can train: a keep ratio, or a budget within which each method takes its largest sub-model.

    Several of either are a mix, with the ``share`` of the clients that have each: ``keep: [0.4, 0.2]`` with
    ``share: [0.4, 0.6]``. A mix has exact counts and each client keeps its capacity, unless ``redraw`` deals
    them out anew each round.
    """

    keep: tuple[float, ...] = Field((1.0,), description="keep ratio of every client, or the ratios of a mix")
    budget: tuple[Budget, ...] = Field((), description="in place of keep: e.g. {macs: 20%}, or a list of them")
    share: tuple[float, ...] = Field((1.0,), description="share of the clients at each capacity of a mix")
    redraw: bool = Field(False, description="deal the mix out anew each round")

    @field_validator("keep", "share", "budget", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError("a number is needed")
        return (value,) if isinstance(value, (int, float, str, Mapping)) else value

    @field_validator("keep")
    @classmethod
    def _in_range(cls, keep: tuple[float, ...]) -> tuple[float, ...]:
        if not keep or not all(0 < ratio <= 1 for ratio in keep):
            raise ValueError("a keep ratio must be above 0 and at most 1")
        return keep

    @model_validator(mode="after")
    def _shares_fit(self) -> Capacity:
        if self.budget and "keep" in self.model_fields_set:
            raise ValueError("give keep ratios or budgets, not both")
        if len(self.share) != len(self.budget or self.keep):
            raise ValueError(f"{len(self.budget or self.keep)} capacities need as many shares")
        if any(share <= 0 for share in self.share) or not math.isclose(sum(self.share), 1, abs_tol=1e-6):
            raise ValueError("the shares must be positive and add up to 1")
        return self

    @property
    def label(self) -> str:
        """What a table shows: '0.2', '0.4 (40%) + 0.2 (60%)' or 'macs ≤ 20%'."""
        names = [budget.label for budget in self.budget] or [f"{keep:g}" for keep in self.keep]
        if len(names) == 1:
            return names[0]
        mix = " + ".join(f"{name} ({100 * share:g}%)" for name, share in zip(names, self.share, strict=True))
        return f"{mix}, redrawn" if self.redraw else mix

    def counts(self, clients: int) -> np.ndarray:
        """How many of so many clients have each capacity: exact shares (largest remainders).

        >>> Capacity(keep=(0.4, 0.2), share=(0.4, 0.6)).counts(5).tolist()
        [2, 3]
        """
        exact = np.array(self.share) * clients
        counts = np.floor(exact + 1e-9).astype(int)
        largest = np.argsort(counts - exact, kind="stable")
        counts[largest[: clients - counts.sum()]] += 1
        return counts

    def deal(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        """The number of one of the capacities per client."""
        return rng.permutation(_numbers(self.counts(clients)))

    def deal_some(
        self, some: int, clients: int, rng: np.random.Generator, able: np.ndarray | bool = True
    ) -> np.ndarray:
        """What so many of the clients would get of `deal`, drawn without dealing to the others; of those alone whose
        capacity is ``able``, if there are as many."""
        counts = np.where(able, self.counts(clients), 0)
        some = min(some, counts.sum())
        return rng.permutation(_numbers(rng.multivariate_hypergeometric(counts, some)))


def _numbers(counts: np.ndarray) -> np.ndarray:
    """Each number as often as it counts: [2, 3] is [0, 0, 1, 1, 1]. One byte each, as a population may be large."""
    return np.repeat(np.arange(len(counts), dtype=np.min_scalar_type(len(counts))), counts)


def kept(keep: float, size: int) -> int:
    """ceil(keep · size), at least 1, safe from floating point (0.1 · 30 is 3, not 4)."""
    return max(1, math.ceil(keep * size - 1e-9))
