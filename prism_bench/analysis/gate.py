"""The regression gate: numbers of today against recorded ones, each within its own stated tolerance.

A baseline is a CSV, one row per number: which cell of which experiment, the metric, its value, the tolerance (in the
metric's unit, or in %) and which way is better. Seconds differ between machines, so time is recorded as ratios within
one run: a method's training time over full-model training's, the share of a round that is not training, a
benchmark's time over that of a calibration loop.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from prism_bench.analysis.report.tables import CONTEXT
from prism_bench.base.errors import BadInput
from prism_bench.base.settings import identity
from prism_bench.harness.results import CELL, COSTS, Results

KEY = ["experiment", *CELL, "metric"]
COLUMNS = [*KEY, "value", "tolerance", "better", "identity"]
TOLERANCES: Mapping[str, str] = {"accuracy": "2", "costs": "0.1%", "time": "100%", "share": "0.1"}
"""By kind of number: points of accuracy, costs as counted, ratios of times, shares of a round's time."""

BENCHMARKS = "pytest-benchmark"
CALIBRATION = "test_calibration"


def numbers_of(source: Path, tolerances: Mapping[str, str] = TOLERANCES) -> pd.DataFrame:
    """The numbers of a results folder, or of a file that ``pytest --benchmark-json`` wrote, as baseline rows."""
    rows = _benchmarks(source) if source.suffix == ".json" else _experiment(source)
    for row in rows:
        kind = row.pop("kind")
        row |= {"tolerance": tolerances[kind], "better": "higher" if kind == "accuracy" else "lower"}
    return pd.DataFrame(rows, columns=COLUMNS)


def _experiment(folder: Path) -> list[dict[str, Any]]:
    results = Results.open(folder)
    if results.missing:
        done = results.expected - len(results.missing)
        raise BadInput(f"{folder}: only {done} of {results.expected} runs are done; prism-bench run goes on with them.")
    runs = results.runs().assign(**_times(results.rounds()))
    rows = []
    for labels, cell in runs.groupby(CELL, sort=False):
        where = {"experiment": results.about["name"], **dict(zip(CELL, labels, strict=True))}
        where["identity"] = identity({"runs": sorted(cell["run"])})
        numbers = {"accuracy": "accuracy", **{cost: "costs" for cost in COSTS if cost in cell}}
        numbers |= {"train_time": "time"} if cell["train_time"].notna().all() else {}
        numbers["overhead"] = "share"
        for metric, kind in numbers.items():
            rows.append({**where, "metric": metric, "kind": kind, "value": float(cell[metric].mean())})
    return rows


def _times(rounds: pd.DataFrame) -> dict[str, Any]:
    """Of each run, in order: training time over the reference's of the same data, and the share of the rest.

    By the fastest round: what else the machine does only ever adds to the others.
    """
    columns = [f"seconds_{stage}" for stage in ("create", "train", "merge", "refresh")]
    stages = rounds.groupby("run", sort=False)[columns].min()
    runs = rounds.drop_duplicates("run").set_index("run")
    on = list(CONTEXT)
    full = stages["seconds_train"][~runs["cuts"].astype(bool)].groupby([runs[column] for column in on]).min()
    theirs = runs[on].join(full.rename("full"), on=on)["full"]
    whole = stages.sum(axis=1)
    times = pd.DataFrame(
        {
            "train_time": (stages["seconds_train"] / theirs).where(runs["cuts"].astype(bool)),
            "overhead": (whole - stages["seconds_train"]) / whole,
        }
    )
    return {column: times[column].to_numpy() for column in times}


def _benchmarks(file: Path) -> list[dict[str, Any]]:
    try:
        found = {one["name"]: one["stats"]["median"] for one in json.loads(file.read_text("utf-8"))["benchmarks"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{file}: can't be read as what pytest --benchmark-json writes: {error!r}") from None
    if CALIBRATION not in found:
        raise BadInput(f"{file}: has no benchmark called '{CALIBRATION}', which the others are measured by.")
    unit = found.pop(CALIBRATION)
    empty = dict.fromkeys(CELL, "")
    return [
        {"experiment": BENCHMARKS, **empty, "metric": name, "kind": "time", "value": median / unit, "identity": ""}
        for name, median in found.items()
    ]


def read(file: Path) -> pd.DataFrame:
    """A recorded baseline."""
    try:
        frame: pd.DataFrame = pd.read_csv(file, dtype={name: str if name != "value" else float for name in COLUMNS})
    except (OSError, ValueError) as error:
        raise BadInput(f"{file}: can't be read as a baseline: {error}") from None
    absent = [column for column in COLUMNS if column not in frame]
    if absent:
        raise BadInput(
            f"{file}: is no baseline: column '{absent[0]}' is missing. prism-bench check --update writes one."
        )
    frame[[*KEY, "identity"]] = frame[[*KEY, "identity"]].fillna("")
    if frame.empty or frame["experiment"].nunique() != 1 or frame.duplicated(KEY).any():
        raise BadInput(f"{file}: needs one row per number, all of one experiment.")
    for number, row in enumerate(frame.to_dict("records"), start=2):
        allowed(1.0, row["tolerance"], f"{file}: line {number}: tolerance")
        if row["better"] not in ("higher", "lower") or pd.isna(row["value"]):
            raise BadInput(f"{file}: line {number}: needs a value, and 'higher' or 'lower' under 'better'.")
    return frame


def allowed(value: float, tolerance: str, where: str = "tolerance") -> float:
    """How much a value may change: a tolerance of '2' is in the value's unit, one of '50%' is of the value."""
    try:
        share = tolerance.endswith("%")
        amount = float(tolerance.removesuffix("%"))
    except (ValueError, AttributeError):
        amount = -1.0
    if not 0 <= amount < math.inf:
        raise BadInput(f"{where}: needs a number such as 2, or a percentage such as 50% (got {tolerance!r}).")
    return abs(value) * amount / 100 if share else amount


def compare(baseline: pd.DataFrame, now: pd.DataFrame) -> pd.DataFrame:
    """Every number of the baseline with today's, its change, what is allowed, and a verdict.

    ``slipped`` is worse by more than the tolerance and ``better`` better by more; ``missing`` has no number today, and
    ``other`` is from other settings than the recorded one: neither can be compared.
    """
    today = now.set_index(KEY)[["value", "identity"]].rename(columns={"value": "now", "identity": "identity_now"})
    both = baseline.join(today, on=KEY)
    both["change"] = both["now"] - both["value"]
    both["allowed"] = [allowed(*pair) for pair in zip(both["value"], both["tolerance"], strict=True)]
    gain = both["change"].where(both["better"] == "higher", -both["change"])
    both["verdict"] = "within"
    both.loc[gain < -both["allowed"], "verdict"] = "slipped"
    both.loc[gain > both["allowed"], "verdict"] = "better"
    both.loc[both["identity"] != both["identity_now"], "verdict"] = "other"
    both.loc[both["now"].isna(), "verdict"] = "missing"
    return both.drop(columns="identity_now")


def renew(now: pd.DataFrame, old: pd.DataFrame | None) -> pd.DataFrame:
    """A baseline of today's numbers; tolerances that somebody set in the old one stay."""
    if old is None:
        return now
    kept = now[KEY].join(old.set_index(KEY)["tolerance"], on=KEY)["tolerance"]
    return now.assign(tolerance=kept.fillna(now["tolerance"]))
