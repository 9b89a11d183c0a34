"""A tracker: one line per round in a text file beside the results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prism_bench.plugin import Callback


class Diary(Callback):
    """One line per round in FOLDER/diary.txt."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "diary.txt"

    def round_done(self, number: int, record: Mapping[str, Any]) -> None:
        with self.file.open("a") as lines:
            lines.write(f"run {number}, round {record['round']}: loss {record['train_loss']:.3f}\n")
