"""Trackers and callbacks: told of every round, once, in a run that is stopped and goes on too."""

from __future__ import annotations

import pytest
import yaml

from prism_bench.harness.callbacks import Callback
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.runner import carry_out
from prism_bench.harness.trackers import trackers

TINY = {
    "name": "tiny",
    "data": "digits",
    "partition": {"name": "iid", "clients": 6},
    "model": {"name": "smallcnn", "width": 5},
    "training": {"rounds": 4, "active": 2, "epochs": 1},
    "capacity": {"keep": 0.4},
    "grid": {"algorithm": ["fedavg", "prism"]},
}


class StopAt(Callback):
    def __init__(self, number, round):
        self.place = (number, round)

    def round_done(self, number, record):
        if (number, record["round"]) == self.place:
            raise KeyboardInterrupt


def stopped_and_resumed(tmp_path, tracker):
    """Two runs, the second one stopped after its second round."""
    experiment = Experiment.load(TINY)
    with pytest.raises(KeyboardInterrupt):
        carry_out(experiment, tmp_path, callbacks=[*trackers([tracker], tmp_path), StopAt(1, 2)])
    return carry_out(experiment, tmp_path, callbacks=trackers([tracker], tmp_path)).rounds


def test_tensorboard(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    rounds = stopped_and_resumed(tmp_path, "tensorboard")
    folders = sorted((tmp_path / "tensorboard").iterdir())
    assert [folder.name.rpartition("-")[0] for folder in folders] == ["fedavg-seed-0", "prism-at-0.4-seed-0"]
    for folder, (_, run) in zip(folders, rounds.groupby("run", sort=False), strict=True):
        events = accumulator.EventAccumulator(str(folder))
        events.Reload()
        told = [(event.step, event.value) for event in events.Scalars("accuracy")]
        assert [step for step, _ in told] == [1, 2, 3, 4]
        assert [value for _, value in told] == pytest.approx(run["accuracy"].tolist())


def test_mlflow(tmp_path, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    rounds = stopped_and_resumed(tmp_path, "mlflow")
    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tiny")
    found = {run.data.tags["prism_bench.run"]: run for run in client.search_runs([experiment.experiment_id])}
    assert set(found) == set(rounds["run"]), "a run that goes on is one run"
    for name, run in rounds.groupby("run", sort=False):
        history = client.get_metric_history(found[name].info.run_id, "accuracy")
        assert [metric.step for metric in history] == [1, 2, 3, 4]
        assert [metric.value for metric in history] == run["accuracy"].tolist()
        assert found[name].info.status == "FINISHED"
        assert found[name].data.params["training.rounds"] == "4"


def test_a_tracker_that_is_not_there(tmp_path, here):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    code, _, printed = here("run", "tiny.yaml", "--track", "tensorbord")
    assert code == 2
    assert "--track: there is no tracker called 'tensorbord'. Did you mean 'tensorboard'?" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize(
    ("name", "missing"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow.tracking")]
)
def test_a_tracker_that_is_not_installed(tmp_path, here, monkeypatch, name, missing):
    monkeypatch.setitem(__import__("sys").modules, missing, None)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    code, _, printed = here("run", "tiny.yaml", "--track", name)
    assert code == 2
    assert f"pip install 'prism-bench[{name}]'" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


def test_a_callback_that_fails_harms_nothing(tmp_path):
    class Bad(Callback):
        def round_done(self, number, record):
            raise RuntimeError("no connection")

    experiment = Experiment.load(TINY, {"algorithm": "fedavg"})
    with pytest.warns(UserWarning, match="Bad failed and is told no more: RuntimeError: no connection"):
        outcome = carry_out(experiment, tmp_path, callbacks=[Bad()])
    assert not outcome.failed
    assert len(outcome.rounds) == 4


def test_callbacks_hear_everything_in_order(tmp_path):
    heard = []

    class Hear(Callback):
        def loading(self, data):
            heard.append("loading")

        def begin(self, experiment, data, partition, device):
            heard.append(f"begin {experiment.name} on {device}")

        def run_started(self, number, run, label, done):
            heard.append(f"start {number}: {label}")

        def round_done(self, number, record):
            heard.append(f"{number}: {record['round']}")

        def run_done(self, number, label, summary, reused, error):
            heard.append(f"done {number}, reused {reused}: {summary['rounds']} rounds")

        def end(self):
            heard.append("end")

    experiment = Experiment.load(TINY, {"algorithm": "fedavg", "training.rounds": 2})
    carry_out(experiment, tmp_path, callbacks=[Hear()])
    first = ["loading", "begin tiny on cpu"]
    rounds = ["start 0: fedavg, seed 0", "0: 1", "0: 2", "done 0, reused False: 2 rounds", "end"]
    assert heard == [*first, *rounds]
    heard.clear()
    carry_out(experiment, tmp_path, callbacks=[Hear()])
    assert heard == [*first, "done 0, reused True: 2 rounds", "end"]
