"""Trackers: callbacks that show runs in a tool of the user's. They write into the results' folder; nothing is sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_bench import registry
from prism_bench.callbacks import Callback
from prism_bench.errors import BadInput

if TYPE_CHECKING:
    from prism_bench.rounds import Run


def trackers(names: Iterable[str], folder: Path) -> list[Callback]:
    """The trackers of these names for the results in a folder."""
    return [registry.load("trackers", name, "--track")(folder) for name in dict.fromkeys(names)]


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in record.items() if key != "round" and isinstance(value, (int, float))}


class TensorBoard(Callback):
    """TensorBoard event files in FOLDER/tensorboard, one folder a run: `tensorboard --logdir FOLDER/tensorboard`."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise BadInput("--track tensorboard: is not installed; pip install 'prism-bench[tensorboard]'.") from None
        self.writer, self.folder = SummaryWriter, folder / "tensorboard"
        self.open: dict[int, Any] = {}

    def run_started(self, number: int, run: Run, label: str, done: int) -> None:
        name = re.sub(r"[^\w.=+-]+", "-", f"{label}-{run.identity}")
        # What an earlier start wrote of rounds that now come again is taken back.
        self.open[number] = self.writer(str(self.folder / name), purge_step=done + 1 if done else None)

    def round_done(self, number: int, record: Mapping[str, Any]) -> None:
        for key, value in _numbers(record).items():
            self.open[number].add_scalar(key, value, record["round"])

    def run_done(self, number: int, label: str, summary: Mapping[str, Any] | None, reused: bool, error: str) -> None:
        if number in self.open:
            self.open.pop(number).close()

    def end(self) -> None:
        for writer in self.open.values():
            writer.close()


class MLflow(Callback):
    """MLflow runs in the database FOLDER/mlflow.db: `mlflow ui --backend-store-uri sqlite:///FOLDER/mlflow.db`.

    A server of one's own is used where MLFLOW_TRACKING_URI names it.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise BadInput("--track mlflow: is not installed; pip install 'prism-bench[mlflow]'.") from None
        self.folder, self.client_type = folder, MlflowClient
        self.runs: dict[int, str] = {}
