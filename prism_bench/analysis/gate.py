"""The regression gate: numbers of today against recorded ones.

A baseline is a CSV, one row per number: which run, which round, the metric, its value, and what produced it. A run is
deterministic, so where machine, torch, numpy and threads are the recorded ones, every accuracy and loss of every round
and seed must be equal bit for bit. Elsewhere sums are rounded otherwise, and training amplifies that: there each number
has a tolerance, in both directions, that follows from how far another rounding moved it (`rounding_of`). Costs are
counted, and equal everywhere.

Seconds differ from one minute to the next, so time is recorded per cell and as ratios within one run: a method's
training time over full-model training's, the share of a round that is not training, a benchmark's time over that of a
calibration loop. These alone may get better by any amount.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from prism_bench.analysis.report.tables import CONTEXT
from prism_bench.base.errors import BadInput
from prism_bench.base.settings import identity
from prism_bench.harness.results import CELL, COSTS, Results

KEY = ["experiment", *CELL, "seed", "round", "metric"]
COLUMNS = [*KEY, "value", "tolerance", "better", "identity", "made_with"]
TOLERANCES: Mapping[str, str] = {"accuracy": "2", "loss": "5%", "costs": "0", "time": "100%", "share": "0.1"}
"""By kind of number, where no other rounding was measured: points of accuracy, % of a loss; costs are exact; ratios of
times; shares of a round's time."""

TELLING = ("platform", "processor", "device", "torch", "numpy", "threads")
"""What of a run's environment decides how its sums are rounded."""

MARGIN = 4
"""How many times as far as another rounding moved a number it may move: a few roundings don't show the largest change
there is. It was chosen, not measured."""

LEAST = {"accuracy": 1.0, "loss": 1e-5}
"""Of a tolerance: a few of some hundred test samples; a loss as float32 sums keep it, relative."""

BENCHMARKS = "pytest-benchmark"
CALIBRATION = "test_calibration"


def kind_of(metric: str) -> str:
    """Which kind of number a metric is: what its tolerance goes by."""
    if metric in COSTS:
        return "costs"
    if metric.startswith("accuracy"):
        return "accuracy"
    if metric.endswith("_loss"):
        return "loss"
    return "share" if metric == "overhead" else "time"


def numbers_of(source: Path, tolerances: Mapping[str, str] = TOLERANCES, rounding: Sequence[Path] = ()) -> pd.DataFrame:
    """The numbers of a results folder, or of a file that ``pytest --benchmark-json`` wrote, as baseline rows.

    ``rounding`` are folders of the same runs, made where sums are rounded otherwise.
    """
    rows = _benchmarks(source) if source.suffix == ".json" else _experiment(source)
    numbers = pd.DataFrame(rows, columns=COLUMNS)
    kinds = numbers["metric"].map(kind_of)
    numbers["tolerance"] = kinds.map(dict(tolerances))
    numbers["better"] = kinds.map(lambda kind: "higher" if kind == "accuracy" else "lower")
    return rounding_of(numbers, [numbers_of(folder) for folder in rounding]) if rounding else numbers


def rounding_of(numbers: pd.DataFrame, others: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The numbers with tolerances for accuracies and losses from the same runs under other roundings.

    For losses and for accuracies, the largest change over all methods and seeds in that round or an earlier one, times
    `MARGIN`: what rounding does grows from round to round, and where it first flips a comparison is chance, so that a
    method may not have moved at all under the roundings that were tried, and will under the next.
    """
    moved = numbers[["value"]].assign(change=0.0)
    for other in others:
        same = numbers[KEY].join(other.set_index(KEY)[["value", "identity"]], on=KEY)
        if (same["identity"] != numbers["identity"]).any():
            raise BadInput("--rounding: needs results of the same settings and seeds, with all of their numbers.")
        moved["change"] = moved["change"].combine((same["value"] - numbers["value"]).abs(), max)
    kinds = numbers["metric"].map(kind_of)
    # A loss falls by orders of magnitude while it is trained: its changes are relative.
    moved["change"] /= numbers["value"].abs().where(kinds == "loss", 1.0)
    trained = kinds.isin(list(LEAST))
    rounds = pd.to_numeric(numbers["round"]).fillna(0)
    each = pd.DataFrame({"kind": kinds, "round": rounds, "change": moved["change"]})[trained]
    largest = each.groupby(["kind", "round"])["change"].max().groupby(level="kind").cummax()
    places = pd.MultiIndex.from_frame(each[["kind", "round"]])
    wide = (MARGIN * largest.reindex(places)).to_numpy()
    texts = [
        f"{max(change, LEAST[kind]):.2g}" if kind == "accuracy" else f"{100 * max(change, LEAST[kind]):.2g}%"
        for change, kind in zip(wide, kinds[trained], strict=True)
    ]
    result = numbers.copy()
    result.loc[trained, "tolerance"] = texts
    return result


def made_with(environments: Sequence[Mapping[str, Any]]) -> str:
    """What decides the last digits, in words that can be compared."""
    kinds = {", ".join(f"{key} {one.get(key)}" for key in TELLING) for one in environments}
    return "; ".join(sorted(kinds))


def _experiment(folder: Path) -> list[dict[str, Any]]:
    results = Results.open(folder)
    if results.missing:
        done = results.expected - len(results.missing)
        raise BadInput(f"{folder}: only {done} of {results.expected} runs are done; prism-bench run goes on with them.")
    rounds, name = results.rounds(), results.about["name"]
    environment = made_with(results.environments())
    trained = [column for column in rounds if kind_of(str(column)) in LEAST]
    costs = [cost for cost in COSTS if cost in rounds]
    rows: list[dict[str, Any]] = []
    for run, records in rounds.groupby("run", sort=False):
        labels = {cell: records[cell].iloc[0] for cell in CELL}
        where = {"experiment": name, **labels, "seed": str(records["seed"].iloc[0])}
        about = {"identity": run, "made_with": environment}
        for record in records[["round", *trained]].to_dict("records"):
            for metric in trained:
                if pd.notna(record[metric]):
                    number = {"round": str(record["round"]), "metric": metric, "value": float(record[metric])}
                    rows.append(where | number | about)
        for cost in costs:
            value = float(records[cost].iloc[-1])
            rows.append(where | {"round": "", "metric": cost, "value": value} | about)
    runs = results.runs().assign(**_times(rounds))
    for labels, cell in runs.groupby(CELL, sort=False):
        where = {"experiment": name, **dict(zip(CELL, labels, strict=True)), "seed": "", "round": ""}
        about = {"identity": identity({"runs": sorted(cell["run"])}), "made_with": ""}
        for metric in ("train_time", "overhead"):
            if cell[metric].notna().all():
                rows.append(where | {"metric": metric, "value": float(cell[metric].mean())} | about)
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
    empty = dict.fromkeys([*KEY, "identity", "made_with"], "")
    return [
        {**empty, "experiment": BENCHMARKS, "metric": name, "value": median / unit} for name, median in found.items()
    ]


def read(file: Path) -> pd.DataFrame:
    """A recorded baseline."""
    try:
        frame: pd.DataFrame = pd.read_csv(file, dtype=str)
        if "value" in frame:
            frame["value"] = frame["value"].map(float)  # not every pandas reads a float to its last digit
    except (OSError, ValueError) as error:
        raise BadInput(f"{file}: can't be read as a baseline: {error}") from None
    absent = [column for column in COLUMNS if column not in frame]
    if absent:
        older = " (it may be of an older version, which recorded means over the seeds)" if "metric" in frame else ""
        raise BadInput(
            f"{file}: is no baseline{older}: column '{absent[0]}' is missing. Remove it, and prism-bench check {file} "
            "RESULTS --update writes one."
        )
    texts = [*KEY, "identity", "made_with"]
    frame[texts] = frame[texts].fillna("")
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


def compare(baseline: pd.DataFrame, now: pd.DataFrame, exact: bool = True) -> pd.DataFrame:
    """Every number of the baseline and of today, the change, what is allowed, and a verdict.

    ``slipped`` is worse by more than is allowed and ``better`` better by more; ``rounding`` should be equal, and
    differs by no more than it might elsewhere; ``new`` is not in the baseline, ``missing`` has no number today, and
    ``other`` is from other settings than the recorded one. ``exact`` is false for tolerances also where numbers should
    be equal.
    """
    today = now.set_index(KEY)[["value", "identity", "made_with"]]
    today.columns = pd.Index(["now", "identity_now", "made_with_now"])
    both = baseline.join(today, on=KEY)
    both["change"] = both["now"] - both["value"]
    both["allowed"] = [allowed(*pair) for pair in zip(both["value"], both["tolerance"], strict=True)]
    tolerance = both["allowed"].copy()
    both["exact"] = exact & (both["made_with"] != "") & (both["made_with"] == both["made_with_now"])
    both.loc[both["exact"], "allowed"] = 0.0
    gain = both["change"].where(both["better"] == "higher", -both["change"])
    both["verdict"] = "within"
    both.loc[gain < -both["allowed"], "verdict"] = "slipped"
    both.loc[gain > both["allowed"], "verdict"] = "better"
    both.loc[(both["change"].abs() > both["allowed"]) & (both["change"].abs() <= tolerance), "verdict"] = "rounding"
    both.loc[both["identity"] != both["identity_now"], "verdict"] = "other"
    both.loc[both["now"].isna(), "verdict"] = "missing"
    more = now[~pd.MultiIndex.from_frame(now[KEY]).isin(pd.MultiIndex.from_frame(baseline[KEY]))]
    added = more.rename(columns={"value": "now"}).assign(verdict="new", exact=False)
    return pd.concat([both.drop(columns=["identity_now", "made_with_now"]), added], ignore_index=True)


def timed(numbers: pd.DataFrame) -> pd.Series[bool]:
    """Which numbers are times, and differ from one run to the next."""
    return numbers["metric"].map(kind_of).isin(["time", "share"])


def fails(compared: pd.DataFrame) -> pd.Series[bool]:
    """Which numbers are not as recorded. A time may get better unrecorded, or not be recorded at all."""
    return (compared["verdict"] != "within") & ~(timed(compared) & compared["verdict"].isin(["better", "new"]))


def renew(now: pd.DataFrame, old: pd.DataFrame | None) -> pd.DataFrame:
    """A baseline of today's numbers. Tolerances of times that somebody set in the old one stay."""
    if old is None:
        return now
    kept = now[KEY].join(old.set_index(KEY)["tolerance"], on=KEY)["tolerance"]
    return now.assign(tolerance=kept.where(timed(now)).fillna(now["tolerance"]))
