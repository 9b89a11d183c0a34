"""Finished runs whose folders are gone come back from what was exported of them.

Run folders stay on the machine that made them; ``rounds.csv`` goes with the repository. Where only that is there, a
start takes its runs as done, and makes what is missing: another seed, another method.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from prism_bench.engine.spec import Run
from prism_bench.harness.results import COSTS, LABELS, MANIFEST, Results, summarise
from prism_bench.harness.run_folder import RunFolder


def bring_back(out: Path, runs: Sequence[Run], recording: Sequence[str]) -> None:
    """Write the folders of those runs that are whole in ``out``'s tables and have none.

    ``recording`` names what may have been recorded beside the rounds.
    """
    if not (out / MANIFEST).exists():
        return  # nothing was exported yet
    about = Results.open(out).about
    wanted = {run.identity: run for run in runs}
    folders = [RunFolder(out / "runs" / entry["folder"]) for entry in about["runs"]]
    lost = {f.parts[0]: f for f in folders if f.parts[0] in wanted and not f.path.exists()}
    if not lost or not (out / "rounds.csv").exists():
        return
    exported = Results(out, about)
    rounds = exported.exported("rounds")
    beside = {name: exported.exported(name) for name in recording if (out / f"{name}.csv").exists()}
    environments = about.get("environments") or [{}]
    for identity, rows in rounds.groupby("run", sort=False):
        run, folder = wanted.get(str(identity)), lost.get(str(identity))
        if run is None or folder is None or len(rows) != run.training.rounds:
            continue
        constant = [name for name in map(str, rows) if name == "keep_ratio" or name.removeprefix("full_") in COSTS]
        recorded = {name: frame[frame["run"] == identity] for name, frame in beside.items()}
        records = _records(rows.drop(columns=[*constant, *_labels(rows)]), recorded)
        folder.path.mkdir(parents=True)
        folder.start(run.as_dict(), environments[0])
        for record in records:
            folder.append(record)
        plain = pd.DataFrame(records).drop(columns="probes", errors="ignore").assign(run=run.identity)
        [summary] = summarise(plain).drop(columns="run").to_dict("records")
        folder.finish({**summary, **_present(rows.iloc[-1][constant].to_dict())}, keep_model=False)


def _records(rounds: pd.DataFrame, recorded: dict[str, pd.DataFrame]) -> list[dict[str, Any]]:
    """One record per round, as the run had written it."""
    probes: dict[int, dict[str, Any]] = {}
    for name, frame in recorded.items():
        for number, rows in frame.groupby("round"):
            plain = rows.drop(columns=["round", *_labels(rows)]).to_dict("records")
            probes.setdefault(int(str(number)), {})[name] = [_present(row) for row in plain]
    records = [_present(row) for row in rounds.sort_values("round").to_dict("records")]
    return [record | ({"probes": probes[n]} if (n := int(record["round"])) in probes else {}) for record in records]


def _labels(frame: pd.DataFrame) -> list[str]:
    return [column for column in LABELS if column in frame]


def _present(row: dict[Any, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in row.items() if not pd.isna(value)}
