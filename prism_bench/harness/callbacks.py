"""Told what happens while an experiment runs: progress on a terminal, trackers, a researcher's own.

Everything is called in the process that carries the experiment out, with ``--jobs`` too. A tracker is a callback that
`prism-bench run --track NAME` finds by its entry point in ``prism_bench.trackers``; it is made with the folder
of the experiment's results.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prism_bench.data.dataset import Dataset
    from prism_bench.data.population import Population
    from prism_bench.engine.spec import Run
    from prism_bench.harness.experiment import Experiment


class Callback:
    """Derive and override what you want to hear of. ``number`` is a run's place in the experiment."""

    def loading(self, data: str) -> None:
        """A data set is about to be read."""

    def begin(self, experiment: Experiment, data: Dataset, population: Population, device: str) -> None:
        """All runs are known and valid; data and population are the first run's."""

    def other_code(self, code: str, runs: int) -> None:
        """So many runs that are to be done were finished by other code, which was not accepted."""

    def run_started(self, number: int, run: Run, label: str, done: int) -> None:
        """A run starts, or goes on after so many rounds that are done."""

    def waiting(self, number: int, label: str) -> None:
        """Another process has the run; only such runs are left."""

    def round_done(self, number: int, record: Mapping[str, Any]) -> None:
        """A round is over, and safe."""

    def run_done(self, number: int, label: str, summary: Mapping[str, Any] | None, reused: bool, error: str) -> None:
        """A run is over: its summary (``reused`` where an earlier start had finished it), or what went wrong."""

    def end(self) -> None:
        """Nothing more comes, also where the experiment was interrupted."""


class Callbacks:
    """Several callbacks that are told of events together."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks = list(callbacks)

    def tell(self, event: str, *arguments: Any) -> None:
        """Call each one's method of that name. One that fails is told no more: hours of training go on without it."""
        for callback in list(self.callbacks):
            try:
                getattr(callback, event)(*arguments)
            except Exception as error:
                self.callbacks.remove(callback)
                name = type(callback).__name__
                warnings.warn(f"{name} failed and is told no more: {type(error).__name__}: {error}", stacklevel=2)
