"""One run must not hurt another: methods that end, hang or change the process that they are in."""

from __future__ import annotations

import importlib
import os
import sys
import threading

import pytest
import torch

from prism_bench.base import registry
from prism_bench.base.system import how_it_ended, open_standard_streams
from prism_bench.baselines.fedavg import FedAvg
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.jobs import foreign
from prism_bench.harness.runner import carry_out

TREE = {
    "name": "tiny",
    "data": {"name": "noise", "shape": [1, 8, 8], "classes": 4, "train": 60, "test": 20},
    "partition": {"name": "iid", "clients": 5},
    "model": {"name": "smallcnn", "width": 5},
    "capacity": {"keep": 0.4},
    "training": {"rounds": 2, "active": 2, "epochs": 1, "batch": 4, "lr": 0.05},
}


class Exits(FedAvg):
    def finish_round(self, round, merged):
        sys.exit(0)


class EndsAsNoNumber(FedAvg):
    """All is well until the last round's merge is over."""

    def finish_round(self, round, merged):
        super().finish_round(round, merged)
        if round == 1:
            self.state = {name: tensor * float("nan") for name, tensor in self.state.items()}


class ShowsNoNumber(FedAvg):
    """What it keeps is finite, what it deploys is not."""

    def full_model(self):
        model = super().full_model()
        model.state.update({name: tensor * float("inf") for name, tensor in model.state.items()})
        return model


class Disturbs(FedAvg):
    def finish_round(self, round, merged):
        super().finish_round(round, merged)
        torch.set_default_dtype(torch.float64)
        os.chdir("/")


def test_a_method_that_ends_the_program_is_a_failed_run_and_no_other_is(tmp_path):
    outcome = carry_out(Experiment.load(TREE | {"grid": {"algorithm": [Exits, "prism"]}}), tmp_path)
    [error] = outcome.failed.values()
    assert error.startswith("SystemExit: 0 (log: ")
    assert set(outcome.rounds["algorithm"]) == {"prism"}


@pytest.mark.parametrize("method", [EndsAsNoNumber, ShowsNoNumber])
def test_what_is_deployed_is_looked_at_before_a_run_counts_as_done(tmp_path, method):
    outcome = carry_out(Experiment.load(TREE | {"algorithm": method}), tmp_path)
    [error] = outcome.failed.values()
    assert "after round" in error
    assert not list(tmp_path.glob("runs/*/done.json"))


def test_in_one_process_the_folder_and_the_precision_go_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    honest = carry_out(Experiment.load(TREE | {"algorithm": "prism"})).rounds["accuracy"].tolist()
    mixed = carry_out(Experiment.load(TREE | {"grid": {"algorithm": [Disturbs, "prism"]}})).rounds
    assert mixed[mixed["algorithm"] == "prism"]["accuracy"].tolist() == honest
    assert os.getcwd() == str(tmp_path)
    assert torch.get_default_dtype() is torch.float32


def test_only_other_peoples_code_needs_a_process_to_itself():
    own, other = (
        Experiment.load(TREE | {"algorithm": one, "evaluation": {"probes": ["rank"]}}) for one in ("prism", Exits)
    )
    assert not foreign(own.runs[0], own.execution)
    assert foreign(other.runs[0], other.execution)


BAD = '''
import os, signal, time
from prism_bench.baselines.fedavg import FedAvg

class Bad(FedAvg):
    """Hangs under seed 0; under seed 1 ends by a signal without a name, and leaves a process that holds its pipe."""

    def select(self, round, cohort):
        if self._seed == 0 and round == 1:
            time.sleep(1000)
        if self._seed == 1 and round == 1:
            if os.fork() == 0:
                time.sleep(1000)
            os.kill(os.getpid(), 40)
        return super().select(round, cohort)
'''


@pytest.mark.skipif(sys.platform != "linux", reason="real-time signals")
def test_hung_and_killed_runs_end_in_time_and_alone(tmp_path, monkeypatch):
    (tmp_path / "bad_method.py").write_text(BAD)
    monkeypatch.syspath_prepend(str(tmp_path))
    kind = importlib.import_module("bad_method").Bad
    load = registry.load
    monkeypatch.setattr(registry, "load", lambda *given: kind if given[1] == "bad" else load(*given))
    experiment = Experiment.load(TREE | {"algorithm": "bad", "execution": {"threads": 1}}, seeds=3)
    outcome = carry_out(experiment, tmp_path / "out", isolate=True, timeout=10)
    hung, killed = outcome.failed["bad, seed 0"], outcome.failed["bad, seed 1"]
    assert "no round came to its end within 10 s (--timeout)" in hung
    assert "its process died (signal 40)" in killed
    assert outcome.rounds["seed"].unique().tolist() == [2]
    assert threading.active_count() < 10


def test_signals_without_a_name():
    assert how_it_ended(-9) == "SIGKILL"
    assert how_it_ended(3) == "exit code 3"
    assert how_it_ended(-40) == "signal 40"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_closed_output_is_never_a_files_number(tmp_path):
    child = os.fork()
    if child == 0:
        os.close(1)
        open_standard_streams()
        with open(tmp_path / "file", "w") as file:
            os._exit(file.fileno())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code > 2
