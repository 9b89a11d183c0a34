"""What every kind of torture shares: a small experiment, what it gives when left alone, and a count of losses."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from prism_bench.base.errors import BadInput
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.results import STAGES, Results
from prism_bench.harness.runner import carry_out

TINY = {
    "name": "tiny",
    "data": {"name": "noise", "shape": [1, 8, 8], "classes": 4, "train": 60, "test": 20},
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "smallcnn", "width": 5},
    "algorithm": "prism",
    "capacity": {"keep": 0.4},
    "training": {"rounds": 3, "active": 2, "epochs": 1, "batch": 4, "lr": 0.05},
    "execution": {"threads": 1},
}


@dataclass
class Tally:
    """How often something was done to a run, and what was lost by it."""

    kind: str
    """What was done, in a few words for the table."""
    tried: int = 0
    lost: list[str] = field(default_factory=list)
    """One line for each time that numbers were lost or wrong: enough to do it again."""

    def count(self, what: str, trouble: str) -> None:
        self.tried += 1
        if trouble:
            self.lost.append(f"{what}: {trouble}")


def numbers(rounds: pd.DataFrame) -> pd.DataFrame:
    """All but the time it took."""
    times = ["seconds", *(f"seconds_{stage}" for stage in STAGES)]
    return rounds.drop(columns=times, errors="ignore").reset_index(drop=True)


def same(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Whether they are equal to the last bit."""
    one, other = numbers(one), numbers(other)
    alike = len(one) == len(other) and set(one) == set(other)
    return alike and bool((one == other[list(one)]).all(axis=None))


def left_alone(experiment: Experiment, out: Path) -> Results:
    carry_out(experiment, out)
    return Results.open(out)


def wrongly_shown(out: Path, good: pd.DataFrame, read: Callable[[Results], pd.DataFrame] = Results.runs) -> str:
    """What is wrong with the numbers that are shown. To leave a run out, or to refuse to show any, is not wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = read(Results.open(out))
        except BadInput:
            return ""
    if found.empty:
        return ""
    expected = good[good["run"].isin(found["run"])].reset_index(drop=True)
    return "" if same(expected, found) else "wrong numbers are shown"


def made_again(experiment: Experiment, out: Path, good: pd.DataFrame) -> str:
    """What is wrong once the experiment was started again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outcome = carry_out(experiment, out)
        except Exception as error:
            return f"starting again: {type(error).__name__}: {error}"
    if outcome.failed:
        return f"starting again: {outcome.failed}"
    return "" if same(outcome.rounds, good) else "other numbers after starting again"
