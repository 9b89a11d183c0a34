"""What is said of an experiment's regime, `engine.regime`, and of what its runs tell of it. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from prism_bench.harness.results import CELL, Results, with_text

Entry = Mapping[str, Any]
"""A regime in plain values, as a manifest has it."""

NUMBERS = {
    "steps": "local steps per client and round",
    "holders": "clients that hold a kernel",
    "kernels": "kernels that a layer keeps",
    "channels": "channels that a layer keeps",
    "decay": "total decay, Σ lr·λ/(1-momentum)",
    "passes": "passes over the data",
}
"""What each number of a regime is, for a table."""

BY_SAMPLES = ("steps", "decay", "passes")
"""Those that follow from how many samples each client has."""


def of_results(results: Results) -> str:
    """Say in one line which regime the results are from, and the paper's beside it; nothing where nothing is known."""
    about = results.about.get("regime") or {}
    own = _trains(about.get("own") or [])
    said = [sentence(own), gained(_rounds_of_full_models(results)), fell(results.probe("rank"))]
    if not any(said):
        return ""
    line = f"Regime: {'; '.join(part for part in said if part)}."
    keeps = {entry["keep"] for entry in own}
    theirs = about.get("paper") or []
    paper = sentence([entry for entry in theirs if entry["keep"] in keeps] or theirs)
    return f"{line} Paper: {paper}." if paper else line


def sentence(entries: Sequence[Entry]) -> str:
    """Say what is known of these regimes, several as ranges."""
    words = {
        "steps": "{} local steps per round",
        "holders": "{} clients hold a kernel",
        "kernels": "layers keep {}",
        "decay": "total decay {}",
        "passes": "{} passes over the data",
    }
    told = {name: value_of(name, entries) for name in words}
    told["kernels"] = _kept(entries)
    return ", ".join(form.format(told[name]) for name, form in words.items() if told[name])


def _kept(entries: Sequence[Entry]) -> str:
    """Kernels, or channels where no method has kernels."""
    for name in ("kernels", "channels"):
        value = value_of(name, entries)
        if value:
            whole, _, median = value.partition(" ")
            return f"{whole} {name} {median}".rstrip()
    return ""


def value_of(name: str, entries: Iterable[Entry]) -> str:
    """Show one number of these regimes: itself, or the least and the largest; nothing where none is known.

    >>> value_of("holders", [{"holders": 8.0}, {"holders": 4.0}, {"holders": None}])
    '4-8'
    >>> value_of("kernels", [{"kernels": (13, 39.0, 103)}])
    '13-103 (median 39)'
    """
    known = [entry[name] for entry in entries if entry.get(name) is not None]
    if not known:
        return ""
    if not isinstance(known[0], Sequence):
        return between(known)
    whole = between([size for least, _, largest in known for size in (least, largest)])
    return f"{whole} (median {between([median for _, median, _ in known])})" if "-" in whole else whole


def between(values: Iterable[float], show: Callable[[float], str] | None = None, to: str = "-") -> str:
    """Show the least and the largest; one number where both look the same."""
    ordered = sorted(values)
    show = show or number
    return to.join(dict.fromkeys([show(ordered[0]), show(ordered[-1])]))


def number(value: float) -> str:
    """Show a number with three digits.

    >>> number(32.0), number(3.2032), number(58650), number(0.0427)
    ('32', '3.2', '58650', '0.0427')
    """
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _trains(entries: Sequence[Entry]) -> list[Entry]:
    """Leave out what trains nothing, such as a table of costs."""
    return [entry for entry in entries if entry.get("steps") != 0]


# What the runs tell ----------------------------------------------------------------------------------------------


def gained(rounds: pd.DataFrame) -> str:
    """Say how much full-model training still gained at its end; nothing where the rounds don't tell."""
    found = gains(rounds)
    if found.empty:
        return ""
    points = between(found["points"], lambda value: f"{round(value, 1) + 0:.1f}", to=" to ")  # + 0: no -0.0
    share = between(found["share"], lambda value: f"{100 * value:.0f}")
    return f"full-model training gained {points} points in the last {share}% of its rounds"


def gains(rounds: pd.DataFrame) -> pd.DataFrame:
    """Compute the gain in accuracy over the last quarter of the rounds, in points: a mean over the seeds per row.

    From the last evaluation in the first three quarters: ``share`` says what share of the rounds came after it.
    """
    if rounds.empty or not {"accuracy", "cuts"} <= set(rounds):
        return pd.DataFrame(columns=["points", "share"])
    full = rounds[~rounds["cuts"].fillna(True).astype(bool)].dropna(subset="accuracy")
    rows = [_gain(run) | {label: run[label].iloc[0] for label in CELL} for _, run in full.groupby("run")]
    known = pd.DataFrame([row for row in rows if "points" in row], columns=[*CELL, "points", "share"])
    return known.groupby(CELL, sort=False)[["points", "share"]].mean().reset_index()


def _gain(run: pd.DataFrame) -> dict[Any, Any]:
    accuracy = run.set_index("round")["accuracy"].sort_index()
    last = accuracy.index[-1]
    before = accuracy[accuracy.index <= 0.75 * last]
    if before.empty:
        return {}
    return {"points": accuracy.iloc[-1] - before.iloc[-1], "share": (last - before.index[-1]) / last}


def fell(probe: pd.DataFrame) -> str:
    """Say how far the effective rank fell from the first evaluation to the last; nothing where it was not recorded."""
    left = ranks_left(probe)
    if left.empty:
        return ""
    share = between(left, lambda value: f"{100 * value:.0f}")
    return f"the effective rank {'fell' if left.max() < 1 else 'went'} to {share}% of its first value"


def ranks_left(probe: pd.DataFrame) -> pd.Series[float]:
    """Compute the effective rank at the last evaluation over that at the first: each run's median over its layers, and
    then a mean over the seeds."""
    if probe.empty or probe["round"].nunique() < 2:
        return pd.Series(dtype=float)
    layers = with_text(probe).sort_values("round", kind="stable").groupby([*CELL, "seed", "layer"], sort=False)["value"]
    runs = (layers.last() / layers.first()).groupby([*CELL, "seed"], sort=False).median()
    return runs.groupby(CELL, sort=False).mean()


def _rounds_of_full_models(results: Results) -> pd.DataFrame:
    """Read the rounds of full-model training alone: those of all runs may be many."""
    runs = results.about["runs"]
    full = [run for run in runs if not run["labels"].get("cuts", True)]
    if runs and not full:
        return pd.DataFrame()
    return replace(results, about=results.about | {"runs": full}).rounds()
