"""Where tasks train changes nothing, and a worker that is lost is replaced."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest
import torch

from prism_bench.base.errors import BadInput
from prism_bench.engine.processes import Processes
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.runner import carry_out
from prism_bench.testing import federation

TREE = {
    "name": "tiny",
    "data": {"name": "noise", "shape": [1, 8, 8], "classes": 4, "train": 60, "test": 20},
    "partition": {"name": "iid", "clients": 5},
    "model": {"name": "smallcnn", "width": 5},
    "capacity": {"keep": [0.4, 0.2], "share": [0.4, 0.6]},
    "training": {"rounds": 2, "active": 5, "epochs": 1, "batch": 4, "lr": 0.05},
    "grid": {"algorithm": ["prism", "splitmix"]},
}


def test_the_numbers_are_the_same_in_processes_of_their_own(tmp_path):
    plain = carry_out(Experiment.load(TREE), tmp_path / "threads").rounds
    apart = {"execution.on": {"name": "processes", "workers": 2}}
    other = carry_out(Experiment.load(TREE, apart), tmp_path / "processes").rounds
    same = [column for column in plain if not column.startswith("seconds")]
    assert plain[same].equals(other[same]), "the identity of the runs included"


class Loses(Processes):
    """Kills a worker while the round's first tasks are under way, so many times."""

    times = 1

    def send(self, round, tasks):
        sent = super().send(round, tasks)
        if self.times and len(self._pool._processes) > 0:
            self.times -= 1
            victim = next(iter(self._pool._processes))
            with suppress(ProcessLookupError):  # it has ended by itself
                os.kill(victim, signal.SIGKILL)
        return sent


def lossy(times):
    def make(trainer, execution, at_once):
        executor = Loses(trainer, execution, at_once, Processes.Params(workers=1))
        executor.times = times
        return executor

    return make


def test_a_lost_workers_tasks_are_done_again_and_the_round_is_the_same():
    one, plain = (federation("prism", keep=(0.4, 0.2), at_once=1) for _ in range(2))
    one._make_executor = lossy(times=2)
    try:
        for round in range(2):
            mine, other = one.round(round), plain.round(round)
            assert mine["train_loss"] == other["train_loss"]
        assert one.executor.times == 0, "workers were lost"
    finally:
        one.stop()
    assert all(torch.equal(tensor, plain.algorithm.state[name]) for name, tensor in one.algorithm.state.items())


def test_workers_that_die_again_and_again_end_the_run():
    one = federation("fedavg", at_once=1)
    one._make_executor = lossy(times=100)
    with pytest.raises(RuntimeError, match="worker processes died 3 times in a row in round 1"):
        one.round(0)
    one.stop()


def test_it_has_one_job_at_a_time(tmp_path):
    with pytest.raises(BadInput, match="'processes' starts processes of its own for each run; use --jobs 1"):
        carry_out(Experiment.load(TREE, {"execution.on": "processes"}), tmp_path, jobs=2)
    with pytest.raises(BadInput, match=r"execution.on.wokers: there is no such setting. Did you mean 'workers'"):
        carry_out(Experiment.load(TREE, {"execution.on": {"name": "processes", "wokers": 2}}), tmp_path)
    assert list(tmp_path.iterdir()) == []
