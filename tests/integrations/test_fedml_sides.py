"""Server and workers with nothing between them but pickled messages."""

from __future__ import annotations

import pickle

import pytest
import torch

from prism_bench.base import registry
from prism_bench.integrations.fedml.sides import ClientFailed, Server, Worker
from prism_bench.testing import federation

SIZES = (12, 9, 12, 5, 12)


def make(algorithm):
    return federation(algorithm, keep=(0.4, 0.2), sizes=SIZES, at_once=1, active=4)


def jobs(message):
    return message.get("jobs", {})


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("algorithm", registry.find("algorithms"))
def test_any_number_of_workers_in_any_order_gives_the_loops_numbers(algorithm, stays):
    own = make(algorithm)
    expected = list(own.rounds())
    records = []
    server = Server(make(algorithm), 3, stays, 0, records.append)
    workers = [Worker(make(algorithm)) for _ in range(3)]
    for _ in range(3):
        messages = pickle.loads(pickle.dumps(server.messages))
        assert list(messages) == [0, 1, 2]
        for number, message in messages.items():
            clients = {client for client, _ in jobs(message).values()}
            assert not stays or all(client % 3 == number for client in clients)
        uploads = [workers[number].train(message) for number, message in messages.items()]
        server.close(pickle.loads(pickle.dumps(uploads[::-1])))
    assert server.done
    assert not any(jobs(message) for message in server.messages.values()), "nothing is sent after the last round"
    for record, other in zip(records, expected, strict=True):
        same = {key for key in other if not key.startswith("seconds")}
        assert {key: record[key] for key in same} == {key: other[key] for key in same}
    state = server.federation.algorithm.state
    assert all(torch.equal(tensor, state[name]) for name, tensor in own.algorithm.state.items())
    assert all(record["seconds_train"] > 0 for record in records)


def test_clients_are_dealt_out_evenly_unless_their_data_stays():
    server = Server(make("prism"), 2, False, 0, print)
    assert [len(jobs(message)) for message in server.messages.values()] == [2, 2]


def test_more_than_the_sub_model_is_never_sent(monkeypatch):
    """A method that hands out the whole model, whatever its costs say, does not get past the server."""
    one = make("prism")
    gather = type(one.open(0)).gather
    monkeypatch.setattr(
        "prism_bench.rounds.Round.gather",
        lambda self, tasks: gather(self, [type(task)(task.client, {}) for task in tasks]),
    )
    with pytest.raises(RuntimeError, match=r"would get \d+ bytes of tensors, but its sub-model"):
        Server(one, 2, False, 0, print)


def test_a_clients_error_is_the_servers():
    server = Server(make("fedavg"), 2, False, 0, print)
    with pytest.raises(ClientFailed, match="no disk"):
        server.close([{"results": {}}, {"error": "in silo 2: no disk"}])


def test_a_worker_leaves_its_message_as_it_was():
    """In one process the message is the server's own."""
    server, worker = Server(make("fedavg"), 1, False, 0, print), Worker(make("fedavg"))
    before = pickle.dumps(server.messages[0])
    worker.train(server.messages[0])
    assert pickle.dumps(server.messages[0]) == before
    assert worker.federation.algorithm.state == {}
