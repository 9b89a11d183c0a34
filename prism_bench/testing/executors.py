"""What every executor must hold. Each check takes the executor and, optionally, its settings.

It is put to a method whose clients report, remember and train sub-models of several sizes.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from prism_bench.base import registry
from prism_bench.core.algorithm import Algorithm, Client
from prism_bench.core.axes import Selection, State
from prism_bench.core.selections import along, prefix
from prism_bench.engine.executors import Executor
from prism_bench.engine.federation import Federation
from prism_bench.testing.tiny import KEEPS, Check, Given, Named, described, federation, one_by_one, same_training

SIZES = (3, 12, 9, 12, 5, 2)
"""Samples of each client: some are done much earlier than others."""


class Exacting(Algorithm):
    """For these checks: clients report their labels, remember a bias, and train the first features."""

    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        return [[along(self.layout.of_kind("feature"), client.keep, prefix)] for client in cohort]

    def report(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"labels": labels.bincount(minlength=4)}

    def recall(self, params: State, memory: State) -> State:
        return {**params, **memory}

    def remember(self, params: State, start: State, memory: State) -> State:
        return {"classifier.bias": params["classifier.bias"]}


def check_described(executor: Named, settings: Given = None) -> None:
    """It says in a line what it does, and its settings can't be changed under way."""
    kind = _class(executor)
    described(executor, kind, kind.Params)


def check_numbers(executor: Named, settings: Given = None) -> None:
    """Every task trains to the numbers that it would have alone, and they come in the order of the round's tasks."""
    with started(executor, settings) as (one, runs):
        for round in range(2):
            opened = one.open(round)
            trained = list(runs.train(opened))
            came = [(task.client.number, task.part) for group in trained for task in group.tasks]
            expected = [(task.client.number, task.part) for task in opened.tasks]
            assert sorted(came) == sorted(expected), f"{len(expected)} tasks were to train, and {len(came)} came back"
            assert came == expected, "tasks must be yielded in the order of `round.tasks`, whatever finished first"
            alone = one_by_one(one.trainer, opened)
            assert same_training(trained, alone), "the numbers are not those of plain training, one after another"
            for group in trained:
                opened.add(group)
            one.close(opened)


def check_server(executor: Named, settings: Given = None) -> None:
    """Training changes copies, never the server's tensors."""
    with started(executor, settings) as (one, runs):
        before = {name: tensor.clone() for name, tensor in one.algorithm.state.items()}
        list(runs.train(one.open(0)))
        for name, tensor in one.algorithm.state.items():
            assert torch.equal(tensor, before[name]), f"training changes the server's '{name}'; `round.gather` copies"


def check_reports(executor: Named, settings: Given = None) -> None:
    """Reports come in the order in which clients were asked, as the trainer gives them."""
    with started(executor, settings) as (one, runs):
        asked = [3, 0, 4]
        reports = runs.report(asked)
        assert len(reports) == len(asked), f"{len(asked)} clients were asked, and {len(reports)} reports came"
        for client, report in zip(asked, reports, strict=True):
            own = one.trainer.report(client)["labels"]
            assert torch.equal(report["labels"], own), f"what came as client {client}'s report is not its own"


def check_pickled(executor: Named, settings: Given = None) -> None:
    """With a pickled copy of the trainer it trains alike: it needs nothing that lives in this process only."""
    with started(executor, settings) as (one, runs):
        other = _class(executor).make(pickle.loads(pickle.dumps(one.trainer)), one.execution, 1)
        try:
            opened = one.open(0)
            same = same_training(list(other.train(opened)), list(runs.train(opened)))
        finally:
            other.close()
        assert same, "with a pickled copy of the trainer the numbers are others"


def check_close(executor: Named, settings: Given = None) -> None:
    """`close` can be called twice: before anything was trained, and where a round was left in the middle."""
    for leave in (False, True):
        with started(executor, settings) as (one, runs):
            if leave:
                next(iter(runs.train(one.open(0))))
            runs.close()
            runs.close()


EXECUTOR_CHECKS: tuple[Check, ...] = (
    check_described,
    check_numbers,
    check_server,
    check_reports,
    check_pickled,
    check_close,
)


def _class(executor: Named) -> Any:
    return registry.load("executors", executor, "execution.on") if isinstance(executor, str) else executor


@contextmanager
def started(executor: Named, settings: Given) -> Iterator[tuple[Federation, Executor]]:
    """A run and its executor, one client at a time on one thread: what is bit for bit the same everywhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    name = executor if isinstance(executor, str) else executor.__name__
    on, make = {"name": name, **(settings or {})}, _class(executor).make
    one = federation(Exacting, keep=KEEPS, sizes=SIZES, at_once=1, executor=make, on=on)
    try:
        yield one, one.executor
    finally:
        one.stop()
        torch.set_num_threads(threads)
