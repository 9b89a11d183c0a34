"""This suite's own loop: `Federation.round`. Switched off: evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from work import Work
from worker import Turns

from prism_bench.engine.federation import Federation, split
from prism_bench.engine.sections import Execution
from prism_bench.engine.spec import Run


def settings(clients: int, active: int, samples: int) -> dict[str, Any]:
    """The run, as a YAML file would have it."""
    return {
        "data": {"name": "noise", "shape": [1, 28, 28], "classes": 62, "train": clients * samples, "test": 1},
        "partition": {"name": "iid", "clients": clients},
        "model": "cnn",
        "algorithm": "fedavg",
        "training": {
            **{"rounds": 10**6, "active": active, "epochs": 1, "batch": 32},
            **{"lr": 0.01, "schedule": "constant", "momentum": 0.9, "decay": 0},
        },
        "evaluation": {"every": 10**6},
    }


def federation(settings: dict[str, Any], threads: int) -> Federation:
    run = Run.resolve(settings)
    data = run.data.settings.load()
    return Federation(run, data, split(run, data), Execution(device="cpu", threads=threads))


def work(settings: dict[str, Any], rounds: int) -> Work:
    """The first rounds of the run, written out for the other arms."""
    one = federation(settings, 1)
    cohorts = [[client.number for client in one.cohort(round)] for round in range(rounds)]
    orders = [
        [np.concatenate(one.trainer.schedule(round, n).batches) for n in cohort] for round, cohort in enumerate(cohorts)
    ]
    return Work(
        settings,
        {name: tensor.numpy() for name, tensor in one.algorithm.state.items()},
        one.data.prepare(one.data.train.inputs).numpy(),
        one.data.train.labels.numpy(),
        np.array(cohorts),
        np.array(orders),
    )


def run(path: Path, threads: int, turns: Turns) -> None:
    work = Work.read(path)
    one = federation(work.settings, threads)
    for round in range(work.rounds):
        turns.wait(one.algorithm.state)
        one.round(round)
    turns.finish(one.algorithm.state)
