"""An executor and workers with nothing between them but pickled messages."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace

import pytest
import torch

from prism_bench.base import registry
from prism_bench.base.errors import BadPlugin
from prism_bench.core.algorithm import Algorithm
from prism_bench.engine.executors import Executor
from prism_bench.engine.federation import Federation
from prism_bench.engine.local import LocalTrainer
from prism_bench.engine.round import Round
from prism_bench.integrations.fedml.sides import ClientFailed, FedMLExecutor, Remote, Worker
from prism_bench.testing import EXECUTOR_CHECKS, federation

SIZES = (12, 9, 12, 5, 12)


def make(algorithm, executor=None):
    one = federation(algorithm, keep=(0.4, 0.2), sizes=SIZES, at_once=1, active=4)
    return Federation(one.run, one.data, one.population, one.execution, executor)


def another(trainer):
    """What a worker in another process has."""
    return LocalTrainer(trainer.run, trainer.data, trainer.population, trainer.device)


class Pickled(FedMLExecutor):
    """Three workers; the last to be asked answers first."""

    def __init__(self, trainer, execution, at_once, stays=False):
        super().__init__(trainer, execution, at_once, 3, stays)
        self.apart = [Worker(another(trainer)) for _ in range(3)]
        self.seen = []

    def exchange(self, messages):
        messages = pickle.loads(pickle.dumps(messages))
        assert list(messages) == [0, 1, 2]
        self.seen.append(messages)
        uploads = [self.apart[number].train(message) for number, message in messages.items()]
        return pickle.loads(pickle.dumps(uploads[::-1]))


def assert_same(one, other, records, expected):
    for record, own in zip(records, expected, strict=True):
        same = {key for key in own if not key.startswith("seconds")}
        assert {key: record[key] for key in same} == {key: own[key] for key in same}
    state = other.algorithm.state
    assert all(torch.equal(tensor, state[name]) for name, tensor in one.algorithm.state.items())
    assert all(record["seconds_train"] > 0 for record in records)


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("algorithm", registry.find("algorithms"))
def test_any_number_of_workers_in_any_order_gives_the_loops_numbers(algorithm, stays):
    own, one = make(algorithm), make(algorithm, lambda *about: Pickled(*about, stays))
    assert_same(own, one, list(one.rounds()), list(own.rounds()))
    assert len(one.executor.seen) == 3
    for number, message in (pair for messages in one.executor.seen for pair in messages.items()):
        clients = {client.number for client, _, _ in message["jobs"].values()}
        assert not stays or all(client % 3 == number for client in clients)


def test_a_worker_holds_no_tensor_of_the_servers():
    one = make("prism", Pickled)
    one.round(0)
    for worker in one.executor.apart:
        assert worker.trainer.algorithm.state == {}
        assert not any(isinstance(held, Federation) for held in vars(worker.trainer).values())


def test_clients_are_dealt_out_evenly_unless_their_data_stays():
    one = make("prism")
    executor = Pickled(one.trainer, one.execution, 1)
    executor.workers = 2
    assert [len(message["jobs"]) for message in executor.deal(one.open(0)).values()] == [2, 2]


def test_more_than_the_sub_model_is_never_sent(monkeypatch):
    """A method that hands out the whole model, whatever its costs say, does not get past the server."""
    one, gather = make("prism", Pickled), Round.gather
    monkeypatch.setattr(Round, "gather", lambda self, tasks: gather(self, [replace(t, selection={}) for t in tasks]))
    with pytest.raises(RuntimeError, match=r"would get \d+ values, but its sub-model"):
        one.round(0)


def test_a_view_of_more_is_never_sent(monkeypatch):
    """A pickled view takes along all that it is a view of."""
    one, gather = make("prism", Pickled), Round.gather

    def views(self, tasks):
        return {name: torch.cat([t, t])[: len(t)] for name, t in gather(self, tasks).items()}

    monkeypatch.setattr(Round, "gather", views)
    with pytest.raises(RuntimeError, match=r"would get \d+ values, but its sub-model"):
        one.round(0)


def test_a_clients_error_is_the_servers():
    one = make("fedavg")
    executor = Pickled(one.trainer, one.execution, 1)
    with pytest.raises(ClientFailed, match="no disk"):
        list(executor.collect(one.open(0), [{"results": {}}, {"error": "in silo 2: no disk"}]))


def test_a_worker_leaves_its_message_as_it_was():
    """In one process the message is the server's own."""
    one = make("fedavg")
    executor = Pickled(one.trainer, one.execution, 1)
    message = executor.deal(one.open(0))[0]
    before = pickle.dumps(message)
    executor.apart[0].train(message)
    assert pickle.dumps(message) == before


class PickledPlugin(Pickled):
    """As `Pickled`, made by name."""

    @classmethod
    def make(cls, trainer, execution, at_once):
        return cls(trainer, execution, at_once)


@pytest.mark.parametrize("check", EXECUTOR_CHECKS)
def test_conformance(check):
    check(PickledPlugin)


class Rare(Algorithm):
    """Freezes a tensor, and its clients keep another between participations."""

    def select(self, round, cohort):
        return [[{}] for _ in cohort]

    def frozen(self):
        return [next(iter(dict(self.network.named_parameters())))]

    def recall(self, params, memory):
        return params | memory

    def remember(self, params, start, memory):
        last = list(params)[-1]
        return {last: params[last].clone()}


def rare(executor=None):
    one = make("fedavg")
    run = replace(one.run, algorithm=replace(one.run.algorithm, kind=Rare))
    return Federation(run, one.data, one.population, one.execution, executor)


def test_memories_travel_and_frozen_tensors_go_down_only():
    own, one = rare(), rare(Pickled)
    assert_same(own, one, list(one.rounds()), list(own.rounds()))
    assert one.memories.keys() == own.memories.keys()
    for client, [kept] in ((client, parts.values()) for client, parts in own.memories.items()):
        [mine] = one.memories[client].values()
        assert all(torch.equal(tensor, mine[name]) for name, tensor in kept.items())
    [frozen] = own.algorithm.frozen()
    message = one.executor.seen[-1][0]
    assert any(memory for messages in one.executor.seen for m in messages.values() for *_, memory in m["jobs"].values())
    for state, _, _ in one.executor.apart[0].train(message)["results"].values():
        assert frozen not in state


class Loop:
    """As FedML's servers do: asks for messages, brings them to the workers, hands in, until it is over."""

    def __init__(self, executor, fails_in=None):
        self.executor, self.fails_in, self.told, self.finished = executor, fails_in, None, False
        self.apart = [Worker(another(executor.trainer), executor.execution) for _ in range(executor.workers)]

    def run(self):
        self.thread = threading.current_thread()
        messages = self.executor.messages()
        while "jobs" in messages[0]:
            if messages[0]["round"] == self.fails_in:
                raise ConnectionError("the line is cut")
            messages = self.executor.hand_in([w.train(m) for w, m in zip(self.apart, messages.values(), strict=True)])
        self.told = messages

    def finish(self):
        self.finished = True


def remote(algorithm, **options):
    loops = []

    def flow(executor):
        loops.append(Loop(executor, **options))
        return loops[-1]

    one = make(algorithm, lambda *about: Remote(*about, 2, False, flow, Loop.run))
    return one, loops


def test_two_loops_meet_round_by_round():
    own, (one, loops) = make("prism"), remote("prism")
    assert_same(own, one, list(one.rounds()), list(own.rounds()))
    [loop] = loops
    assert loop.thread is not threading.main_thread()
    assert loop.told is None, "it waits for more, or for the end"
    one.stop()
    assert loop.told == {0: {"failed": False}, 1: {"failed": False}}
    assert loop.finished


@pytest.mark.parametrize("rounds", [1, 3])
def test_workers_are_told_of_a_run_that_failed(rounds):
    """Also where it fails after the last round was trained."""
    one, loops = remote("fedavg")
    for round in range(rounds):
        one.round(round)

    def fails():
        try:
            raise ValueError("the disk is full")
        finally:
            one.stop()

    with pytest.raises(ValueError, match="the disk is full"):
        fails()
    assert loops[0].told == {0: {"failed": True}, 1: {"failed": True}}


class RemotePlugin(Remote):
    """As `remote`, made by name, and with the reports that the checks ask for."""

    report = Executor.report

    @classmethod
    def make(cls, trainer, execution, at_once):
        return cls(trainer, execution, at_once, 2, True, Loop, Loop.run)


@pytest.mark.parametrize("check", EXECUTOR_CHECKS)
def test_conformance_of_two_loops(check):
    check(RemotePlugin)


def test_an_error_in_fedmls_loop_is_the_runs():
    one, loops = remote("fedavg", fails_in=1)
    one.round(0)
    with pytest.raises(ConnectionError, match="the line is cut"):
        one.round(1)
    one.stop()
    assert loops[0].finished
    assert not loops[0].thread.is_alive()


def test_nothing_was_started_before_the_first_round():
    one, loops = remote("fedavg")
    with pytest.raises(BadPlugin, match="its clients report to the server before it selects"):
        one.executor.report([0])
    one.stop()
    assert loops == []
