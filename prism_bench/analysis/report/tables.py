"""Frames of runs become frames of results: full numbers, one row per cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from prism_bench.base.errors import BadInput, nearest
from prism_bench.engine.stages import STAGES
from prism_bench.harness.results import CELL, COSTS, summarise, with_text

if TYPE_CHECKING:
    from pandas.api.typing import DataFrameGroupBy

CONTEXT = ["data", "model", "partition", "settings"]
"""What must be equal for two methods to be compared, beside the keep ratio and the seed."""

TRAINING = [stage for stage in STAGES if stage != "evaluate"]
"""The stages that make up a round of training; evaluation is the harness's own."""

PAPER_COSTS = ["params_M", "macs_G", "mem_M"]


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """Make one row per cell: accuracy after the last round as mean, std and n over the seeds, and what a client pays.

    ``frame`` has one row per run and round, or one row per run. Accuracies are in %; ``best`` is the best over the
    rounds. Costs are of one client in one round, each also in % of what full-model training costs. ``drop`` is the
    accuracy minus full-model training's under equal seeds: mean, std and n of the pairs.
    """
    runs = runs_of(frame)
    runs = runs.assign(drop=_drops(runs))
    if "paper_accuracy" in runs:
        # The paper prints accuracies, or drops in its text; where it has both accuracies the drop follows.
        worked_out = _drops(runs, "paper_accuracy")
        runs["paper_drop"] = runs["paper_drop"].fillna(worked_out) if "paper_drop" in runs else worked_out
    cells = runs.groupby(CELL, sort=False)
    accuracy = cells["accuracy"].mean()
    columns = {
        "accuracy": accuracy,
        "std": cells["accuracy"].std(ddof=1),
        "n": cells["accuracy"].count(),
        **{name: cells[name].mean() for name in ("best", "accuracy_full", "accuracy_trained", *by_client(runs))},
        **_costs(cells, runs),
        "seconds": cells["seconds"].mean(),
        "drop": cells["drop"].mean(),
        "drop_std": cells["drop"].std(ddof=1),
        "drop_n": cells["drop"].count(),
    }
    if _given(runs, "paper_accuracy"):
        columns["paper_accuracy"] = cells["paper_accuracy"].mean()
        columns["paper_difference"] = accuracy - columns["paper_accuracy"]
    if _given(runs, "paper_accuracy_sizes"):
        columns["accuracy_sizes"] = cells[by_size(runs)].mean().mean(axis=1)
        columns["paper_accuracy_sizes"] = cells["paper_accuracy_sizes"].mean()
        columns["paper_sizes_difference"] = columns["accuracy_sizes"] - columns["paper_accuracy_sizes"]
    if _given(runs, "paper_std"):
        columns["paper_std"] = cells["paper_std"].mean()
    if _given(runs, "paper_drop"):
        columns["paper_drop"] = cells["paper_drop"].mean()
        columns["paper_drop_difference"] = columns["drop"] - columns["paper_drop"]
    if _given(runs, "paper_source"):
        columns["paper_source"] = cells["paper_source"].first()
    columns["cuts"] = cells["cuts"].first()
    if "tuned" in runs and runs["tuned"].any():
        columns["tuned"] = cells["tuned"].first()
    if "code" in runs:
        # Finished runs of older code may have been accepted: a row says what made it.
        columns["code"] = cells["code"].agg(lambda codes: " ".join(dict.fromkeys(codes.dropna().astype(str))))
    return _frame(columns)


def by_client(frame: pd.DataFrame) -> list[str]:
    """Name the columns that say how good the model of a client of each capacity is; older results have none."""
    return [*by_size(frame), *(["accuracy_worst"] if "accuracy_worst" in frame else [])]


def by_size(frame: pd.DataFrame) -> list[str]:
    """Name those of the capacities, in the order of the keep ratios."""
    names = [str(name) for name in frame if str(name).startswith("accuracy_client_")]
    return sorted(names, key=lambda name: (len(name), name))


def differences(frame: pd.DataFrame, against: str | None = None) -> pd.DataFrame:
    """Pair runs by seed: each method's accuracy minus that of ``against``, as mean, std and n of the pairs.

    ``against`` is a method, as in the table: an algorithm and, where there are several, its variant (``prism`` or
    ``prism channels=all``). Compared are cells of equal data, model, partition, settings and keep ratio. Left out, it
    is full-model training, whatever the keep ratio.
    """
    runs = runs_of(frame)
    names = methods(runs)
    if against is None:
        theirs = ~runs["cuts"]
        if not theirs.any():
            raise BadInput("against: no run trains the full model. Name a method: " + ", ".join(names.unique()) + ".")
        against = ", ".join(names[theirs].unique())
    else:
        theirs = names == _method(against, runs)
    full = not runs.loc[theirs, "cuts"].any()
    on = [*CONTEXT, *([] if full else ["keep"]), "seed"]
    others = runs[~theirs & (full | runs["cuts"])]
    cells = others.assign(difference=_minus(others, runs[theirs], on)).groupby(CELL, sort=False)["difference"]
    columns = {"difference": cells.mean(), "std": cells.std(ddof=1), "n": cells.count()}
    result = _frame(columns)
    result.insert(len(CELL), "against", against)
    return result


def every_difference(frame: pd.DataFrame) -> pd.DataFrame:
    """Make the paired differences between all methods that cut, each pair of methods once."""
    runs = runs_of(frame)
    runs = runs[runs["cuts"]]
    names = methods(runs)
    every = list(dict.fromkeys(names))
    frames = [differences(runs[names.isin(every[i:])], name) for i, name in enumerate(every[:-1])]
    pairs = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["n"])
    found: pd.DataFrame = pairs[pairs["n"] > 0].reset_index(drop=True)
    return found


def costs(frame: pd.DataFrame) -> pd.DataFrame:
    """Say what a client pays, as it runs; beside it, where the paper has it, our count in its convention | paper.

    One row per sub-model: who has which data makes no difference to its costs.
    """
    runs = runs_of(frame)
    cells = runs.groupby([label for label in CELL if label != "partition"], sort=False)
    columns = _costs(cells, runs)
    for cost in PAPER_COSTS:
        ours, theirs = f"convention_{cost}", f"paper_{cost}"
        columns |= {name: cells[name].mean() for name in (ours, theirs) if _given(runs, name)}
        if ours in columns and theirs in columns:
            columns[f"difference_{cost}"] = columns[ours] - columns[theirs]
    columns["cuts"] = cells["cuts"].first()
    return _frame(columns)


def times(frame: pd.DataFrame) -> pd.DataFrame:
    """Take mean seconds per round by stage, and each stage's share in % of a training round, ours and the paper's."""
    runs = runs_of(frame)
    cells = runs.groupby(CELL, sort=False)
    columns: dict[str, Any] = {}
    for prefix, shares in (("seconds_", "share_"), ("paper_seconds_", "paper_share_")):
        seconds = {stage: cells[f"{prefix}{stage}"].mean() for stage in STAGES if _given(runs, f"{prefix}{stage}")}
        columns |= {f"{prefix}{stage}": values for stage, values in seconds.items()}
        training = [values for stage, values in seconds.items() if stage in TRAINING]
        if training:
            whole = columns[f"{prefix}round"] = pd.concat(training, axis=1).sum(axis=1, min_count=1)
            columns |= {f"{shares}{stage}": 100 * seconds[stage] / whole for stage in TRAINING if stage in seconds}
    columns["cuts"] = cells["cuts"].first()
    return _frame(columns)


def wide(frame: pd.DataFrame) -> pd.DataFrame:
    """Make one row per method, as papers print it; accuracy, std and n in columns by partition and keep ratio."""
    cells = table(frame)
    labels = ["data", "model", "algorithm", "variant", "settings"]
    pivoted: pd.DataFrame = cells[labels].drop_duplicates(ignore_index=True)
    for partition, keep in places(cells):
        here = cells[(cells["partition"] == partition) & (cells["keep"] == keep)].astype({"n": "Int64"})
        name = f"{partition}, {keep}"
        names = {"accuracy": name, "std": f"{name}, std", "n": f"{name}, n"}
        pivoted = pivoted.merge(here[[*labels, *names]].rename(columns=names), how="left", on=labels)
    return pivoted


def places(cells: pd.DataFrame) -> list[tuple[str, str]]:
    """List the partitions and keep ratios that there are, all of one partition together, in the order of the runs."""
    found = list(dict.fromkeys(zip(cells["partition"], cells["keep"], strict=True)))
    partitions = list(dict.fromkeys(cells["partition"]))
    return sorted(found, key=lambda place: partitions.index(place[0]))


def runs_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Make one row per run, from that or from one row per run and round.

    Without a column ``cuts``, nothing is known to be full-model training.
    """
    if frame.empty:
        raise BadInput("There is no finished run to make a table of.")
    runs = summarise(frame) if "round" in frame else with_text(frame)
    cuts = runs["cuts"].fillna(True).astype(bool) if "cuts" in runs else True
    known: pd.DataFrame = runs.assign(cuts=cuts)
    return known


def methods(frame: pd.DataFrame) -> pd.Series[str]:
    """Name algorithm and variant in one word or two: what is compared."""
    names: pd.Series[str] = (frame["algorithm"] + " " + frame["variant"]).str.strip()
    return names


def _method(name: str, runs: pd.DataFrame) -> str:
    known = list(methods(runs).unique())
    if name in known:
        return name
    variants: list[str] = list(methods(runs[runs["algorithm"] == name]).unique())
    if len(variants) == 1:
        return variants[0]
    if variants:
        raise BadInput(f"against {name}: there are {len(variants)} of it. One of: {', '.join(variants)}.")
    raise BadInput(f"against {name}: the results have no such method. {nearest(name, known)}")


def _drops(runs: pd.DataFrame, column: str = "accuracy") -> pd.Series[float]:
    """Each run's accuracy minus full-model training's of the same seed; missing for the reference itself."""
    minus: pd.Series[float] = _minus(runs, runs[~runs["cuts"]], [*CONTEXT, "seed"], column).where(runs["cuts"])
    return minus


def _minus(runs: pd.DataFrame, others: pd.DataFrame, on: list[str], column: str = "accuracy") -> pd.Series[float]:
    """The runs' accuracies minus the others' where all of ``on`` is equal; missing where there is no such other."""
    theirs = others.groupby(on)[column].mean().rename("theirs")
    minus: pd.Series[float] = runs[column] - runs[on].join(theirs, on=on)["theirs"]
    return minus


def _frame(columns: dict[str, Any]) -> pd.DataFrame:
    """Columns that share an index of labels, as a frame with the labels as columns."""
    frame: pd.DataFrame = pd.DataFrame(columns).reset_index()
    return frame


def _costs(cells: DataFrameGroupBy[Any, Any], runs: pd.DataFrame) -> dict[str, pd.Series[float]]:
    """Compute the mean of each cost that the results have, and its share of the full model's."""
    columns = {}
    for cost in [cost for cost in COSTS if cost in runs]:
        columns[cost] = cells[cost].mean()
        columns[f"{cost}_%"] = 100 * columns[cost] / cells[f"full_{cost}"].mean()
    return columns


def _given(frame: pd.DataFrame, column: str) -> bool:
    return column in frame and bool(frame[column].notna().any())
