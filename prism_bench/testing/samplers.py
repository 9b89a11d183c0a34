"""What every sampler must hold. Each check takes the sampler and, optionally, its settings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from prism_bench.engine.sampler import Known
from prism_bench.testing.tiny import Check, Given, Named, chosen, described

SAMPLES = np.array([3, 12, 1, 9, 7, 30, 2, 5, 5, 1, 8, 4])
CAPACITY = np.arange(len(SAMPLES)) % 2


def check_described(sampler: Named, settings: Given = None) -> None:
    """It says in a line what it does, and its settings can't be changed under way."""
    plugin = chosen("sampler", sampler, settings)
    described(sampler, plugin.kind, plugin.settings)


def check_draws(sampler: Named, settings: Given = None) -> None:
    """As many distinct clients as asked for, also where that is all of them, and with capacities known or not."""
    for known, count in _cases():
        numbers = draw(sampler, settings, count, known)
        assert isinstance(numbers, np.ndarray), f"`draw` must give an array, not {type(numbers).__name__}"
        assert numbers.dtype.kind in "iu", f"`draw` must give whole numbers, not {numbers.dtype}"
        assert numbers.shape == (count,), f"{count} of {len(known)} clients were asked for, and {numbers.shape} came"
        assert len(set(numbers.tolist())) == count, f"a client was drawn twice: {numbers.tolist()}"
        assert 0 <= numbers.min() <= numbers.max() < len(known), f"there is no such client: {numbers.tolist()}"


def check_repeatable(sampler: Named, settings: Given = None) -> None:
    """The same generator draws the same clients, and what is known of them is as it was."""
    for known, count in _cases():
        samples = known.samples.copy()
        first, second = (draw(sampler, settings, count, known).tolist() for _ in range(2))
        assert first == second, "the same generator drew other clients: draw from the generator that is given only"
        assert np.array_equal(known.samples, samples), "`draw` changes what is known of the clients"


SAMPLER_CHECKS: tuple[Check, ...] = (check_described, check_draws, check_repeatable)


def _cases() -> Iterator[tuple[Known, int]]:
    for capacity in (CAPACITY, None):
        for count in (1, 5, len(SAMPLES)):
            yield Known(SAMPLES.copy(), capacity, (0.4, 0.2)), count


def draw(sampler: Named, settings: Given, count: int, known: Known) -> np.ndarray:
    drawn: np.ndarray = chosen("sampler", sampler, settings).settings.draw(count, known, np.random.default_rng(0))
    return drawn
