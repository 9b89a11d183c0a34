"""Results on disk, read back: an experiment's folder becomes frames, without a run being touched.

A folder holds what `prism-bench run` left there: ``experiment.json`` says which runs belong to the experiment and how
each is labelled; ``runs/`` has one folder per run; ``rounds.csv`` is the finished runs in long format, and stands in
for ``runs/`` where that is not there (run folders are not in git). The manifest carries its own checksum and those of
the CSV files: what is damaged is named and never shown.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from prism_bench.base.errors import BadInput
from prism_bench.base.files import SEAL, Damaged, checksum, parsed, sealed, unsealed, write_csv, write_json
from prism_bench.engine.stages import STAGES
from prism_bench.harness.run_folder import RunFolder

MANIFEST = "experiment.json"
FORMAT = 2
"""Of the manifest. Before, it had no such key, and no checksum."""
LABELS = [
    "experiment",
    "run",
    "data",
    "model",
    "start",
    "partition",
    "algorithm",
    "variant",
    "keep",
    "settings",
    "seed",
    "cuts",
    "tuned",
    "code",
]
"""What says which run a row belongs to. ``cuts`` is false for the reference, plain full-model training; ``tuned`` says
which settings were chosen on validation data; ``code`` is the hash of the code that made the run."""

CELL = ["data", "model", "partition", "algorithm", "variant", "keep", "settings"]
"""What makes a row of a table: everything but the seed."""

COSTS = ["parameters", "macs", "activation_bytes", "training_bytes", "transfer_bytes"]
LATER = ["training_bytes"]
"""Costs that older results don't have."""


def summarise(rounds: pd.DataFrame) -> pd.DataFrame:
    """One row per run: what it ended with, its best accuracy, its seconds in all and by stage and round, its costs."""
    rounds = with_text(rounds).sort_values("round", kind="stable", ignore_index=True)
    runs = rounds.groupby("run", sort=False)
    last = runs.last().assign(rounds=runs["round"].max(), best=runs["accuracy"].max(), seconds=runs["seconds"].sum())
    stages = [f"seconds_{stage}" for stage in STAGES if f"seconds_{stage}" in rounds]
    # The first round warms up: where there are others, it doesn't count.
    warm = rounds[(rounds["round"] > 1) | (runs["round"].transform("max") == 1)]
    last[stages] = warm.groupby("run", sort=False)[stages].mean()
    last = last.drop(columns=["round", "lr"], errors="ignore").reset_index()
    labels = [column for column in LABELS if column in last]
    return last[[*labels, *(column for column in last if column not in labels)]]


def with_text(frame: pd.DataFrame) -> pd.DataFrame:
    """Empty text comes back from a CSV as missing, and groupby would drop such rows."""
    columns = [column for column in (*CELL, "tuned") if column in frame]
    texts = {column: frame[column].astype(object).fillna("").astype(str) for column in columns}
    return frame.assign(**texts)


@dataclass(frozen=True)
class Results:
    """What an experiment's folder holds."""

    folder: Path
    about: dict[str, Any]
    """The manifest: name, description, size and what was scaled, what it shows, its runs, its environment."""

    @classmethod
    def open(cls, folder: str | Path) -> Results:
        """The results in a folder that `prism-bench run` wrote."""
        folder = Path(folder)
        file = folder / MANIFEST
        if not folder.is_dir() or not (file.exists() or (folder / "rounds.csv").exists()):
            raise BadInput(f"{folder}: holds no results (there is no {MANIFEST} and no rounds.csv).")
        if not file.exists():
            return cls(folder, {"name": folder.name, "description": "", "runs": []})
        try:
            about = parsed(file.read_bytes())
            if isinstance(about, dict) and not {"format", SEAL} & about.keys():
                warnings.warn(
                    f"{file}: has no checksum (an earlier version wrote it), so damage is not seen.", stacklevel=2
                )
            else:
                about = unsealed(about)
            if not isinstance(about["runs"], list):
                raise ValueError("'runs' is not a list")
            for run in about["runs"]:
                if not {"folder", "label"} <= run.keys() or "run" not in run["labels"]:
                    raise ValueError("a run has no 'folder', 'label' or 'labels'")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            again = " The command that made the results writes it again, and trains nothing again."
            hint = again if (folder / "runs").is_dir() else ""
            raise BadInput(f"{file}: can't be read as an experiment's manifest: {error}.{hint}") from None
        return cls(folder, about)

    def write(self, frames: Mapping[str, pd.DataFrame] | None = None) -> None:
        """Write the manifest, and with ``frames`` the CSV files that it has checksums of."""
        tables = dict(self.about.get("tables", {}))
        for name, frame in (frames or {}).items():
            file = self.folder / f"{name}.csv"
            if frame.empty:
                file.unlink(missing_ok=True)
                tables.pop(name, None)
            else:
                write_csv(frame, file)
                tables[name] = _text_checksum(file.read_bytes())
        rest = {key: value for key, value in self.about.items() if key not in ("format", "tables")}
        write_json(sealed({"format": FORMAT, **rest, "tables": tables}), self.folder / MANIFEST)

    @property
    def expected(self) -> int:
        """How many runs the experiment has."""
        return len(self.about["runs"]) or self.runs()["run"].nunique()

    @cached_property
    def missing(self) -> list[str]:
        """The runs that are not finished."""
        done = set(self.runs()["run"])
        return [run["label"] for run in self.about["runs"] if run["labels"]["run"] not in done]

    def runs(self) -> pd.DataFrame:
        """One row per finished run, with the paper's values beside it where the experiment has any."""
        if not self._has_folders:
            frame = summarise(self.exported("rounds"))
            paper = {run["labels"]["run"]: run.get("paper", {}) for run in self.about["runs"]}
            beside = pd.DataFrame([paper.get(run, {}) for run in frame["run"]], index=frame.index)
            return pd.concat([frame, beside], axis=1)
        rows = []
        for run in self.about["runs"]:
            summary = self._folder(run).summary()
            if summary is not None:
                rows.append(run["labels"] | summary | run.get("paper", {}))
        return pd.DataFrame(rows, columns=None if rows else LABELS)

    def rounds(self) -> pd.DataFrame:
        """One row per round of each finished run."""
        if not self._has_folders:
            return with_text(self.exported("rounds"))
        frames = []
        for run, summary, records in self._finished():
            frame = pd.DataFrame([{k: v for k, v in record.items() if k != "probes"} for record in records])
            costs = [key for key in summary if key == "keep_ratio" or key.removeprefix("full_") in COSTS]
            constant = pd.DataFrame({key: summary[key] for key in costs}, index=frame.index)
            frames.append(pd.concat([pd.DataFrame(run["labels"], index=frame.index), frame, constant], axis=1))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=LABELS)

    def probe(self, name: str) -> pd.DataFrame:
        """What a probe recorded, in long format; empty where it was not asked for."""
        if not self._has_folders:
            return with_text(self.exported(name)) if (self.folder / f"{name}.csv").exists() else pd.DataFrame()
        # Known where no run was asked for it: all rounds would be read to find nothing.
        if name not in self.about.get("settings", {}).get("evaluation", {}).get("probes", [name]):
            return pd.DataFrame()
        rows = []
        for run, _, records in self._finished():
            for record in records:
                for row in record.get("probes", {}).get(name, []):
                    rows += [run["labels"] | {"round": record["round"]} | one for one in _long(row)]
        return pd.DataFrame(rows)

    def environments(self) -> list[dict[str, Any]]:
        """What the runs ran on, each kind once."""
        if not self._has_folders:
            return list(self.about.get("environments", []))
        found = {}
        for run in self.about["runs"]:
            for environment in self._folder(run).environments():
                kind = {key: value for key, value in environment.items() if key != "from_round"}
                found[json.dumps(kind)] = kind
        return list(found.values())

    @property
    def _has_folders(self) -> bool:
        return bool(self.about["runs"]) and (self.folder / "runs").is_dir()

    def _folder(self, run: Mapping[str, Any]) -> RunFolder:
        return RunFolder(self.folder / "runs" / run["folder"])

    def _finished(self) -> Iterator[tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]]:
        """Each finished run of the manifest with its summary and its records."""
        for run in self.about["runs"]:
            summary = self._folder(run).summary()
            if summary is not None:
                yield run, summary, self._folder(run).rounds()

    def exported(self, name: str) -> pd.DataFrame:
        """What `export` wrote of the runs, one row per round, or what a probe recorded."""
        file = self.folder / f"{name}.csv"
        try:
            content = file.read_bytes()
            if "format" in self.about and _text_checksum(content) != self.about["tables"].get(name):
                raise Damaged(f"is not what was written there, by its checksum in {MANIFEST}")
            frame = pd.read_csv(io.BytesIO(content), dtype=dict.fromkeys(CELL, str))
        except (OSError, ValueError) as error:
            raise BadInput(f"{file}: can't be read: {error}") from None
        costs = [cost for cost in COSTS if cost not in LATER]
        needed = ["run", "seed", "round", *CELL] + (["accuracy", "seconds", *costs] if name == "rounds" else [])
        absent = [column for column in needed if column not in frame]
        if absent:
            raise BadInput(f"{file}: has no column '{absent[0]}'; prism-bench run writes such a file.")
        for column in ("seed", "round", "accuracy", "seconds"):
            if column in frame and len(frame) and not pd.api.types.is_numeric_dtype(frame[column]):
                raise BadInput(f"{file}: column '{column}' holds a text where numbers belong.")
        mine = {run["labels"]["run"] for run in self.about["runs"]}
        return frame[frame["run"].isin(mine)] if mine else frame


def _text_checksum(content: bytes) -> str:
    """That of a text whatever its line ends, which git may change."""
    return checksum(content.replace(b"\r\n", b"\n"))


def _long(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A probe's row with its lists laid out: along the kernels, or over a picture's pixels."""
    lists = {key: value for key, value in row.items() if isinstance(value, list)}
    rest = {key: value for key, value in row.items() if key not in lists}
    if "pixels" in lists:
        for y, line in enumerate(lists["pixels"]):
            yield from (rest | {"y": y, "x": x, "value": value} for x, value in enumerate(line))
    elif lists:
        yield from (rest | dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True))
    else:
        yield rest
