"""Trackers: callbacks that show runs in a tool of the user's. They write into the results' folder; nothing is sent."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_bench.base import registry
from prism_bench.base.errors import BadInput
from prism_bench.base.settings import flat
from prism_bench.harness.callbacks import Callback

if TYPE_CHECKING:
    from prism_bench.data.dataset import Dataset
    from prism_bench.data.population import Population
    from prism_bench.engine.spec import Run
    from prism_bench.harness.experiment import Experiment


def trackers(names: Iterable[str], folder: Path) -> list[Callback]:
    """The trackers of these names for the results in a folder."""
    return [registry.load("trackers", name, "--track")(folder) for name in dict.fromkeys(names)]


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in record.items() if key != "round" and isinstance(value, (int, float))}


class TensorBoard(Callback):
    """TensorBoard event files in FOLDER/tensorboard, one folder per run: `tensorboard --logdir FOLDER/tensorboard`."""

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
        self.open[number] = self.writer(str(self.folder / name), purge_step=done + 1)

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

    Where MLFLOW_TRACKING_URI names a server of one's own, they go there instead.
    """

    TAG = "prism_bench.run"

    def __init__(self, folder: Path) -> None:
        # MLflow counts its users unless told not to.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise BadInput("--track mlflow: is not installed; pip install 'prism-bench[mlflow]'.") from None
        self.folder, self.connect = folder.absolute(), MlflowClient
        self.open: dict[int, str] = {}

    def begin(self, experiment: Experiment, data: Dataset, population: Population, device: str) -> None:
        address = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{self.folder / 'mlflow.db'}")
        self.client = self.connect(tracking_uri=address)
        known = self.client.get_experiment_by_name(experiment.name)
        self.experiment = known.experiment_id if known else self.client.create_experiment(experiment.name)

    def run_started(self, number: int, run: Run, label: str, done: int) -> None:
        query = f"tags.`{self.TAG}` = '{run.identity}'"
        earlier = self.client.search_runs([self.experiment], query, max_results=1) if done else []
        if earlier:
            self.open[number] = earlier[0].info.run_id
            return
        created = self.client.create_run(self.experiment, run_name=label, tags={self.TAG: run.identity})
        self.open[number] = created.info.run_id
        for key, value in flat(run.as_dict()):
            self.client.log_param(self.open[number], key, value)

    def round_done(self, number: int, record: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(key, value, now, record["round"]) for key, value in _numbers(record).items()]
        self.client.log_batch(self.open[number], metrics=metrics)

    def run_done(self, number: int, label: str, summary: Mapping[str, Any] | None, reused: bool, error: str) -> None:
        if number in self.open:
            self.client.set_terminated(self.open.pop(number), "FAILED" if error else "FINISHED")

    def end(self) -> None:
        for run in self.open.values():
            self.client.set_terminated(run, "KILLED")
