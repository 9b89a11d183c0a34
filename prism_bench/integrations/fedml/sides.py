"""The two sides of a job, whatever carries the messages: a server that deals out sub-models, workers that train them.

Both are made of the steps of the suite's own round loop, so the numbers are the same. A message down is
``{"round": r, "jobs": {number: (client, tensors)}}``, one up ``{"results": {number: (tensors, loss, seconds)}}``, or
``{"error": text}`` where a client failed: plain dicts of tensors on the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from prism_bench.core.axes import State
from prism_bench.engine import costs
from prism_bench.engine.federation import Federation

Message = dict[str, Any]


class ClientFailed(Exception):
    """A client raised an error; the text says where and which."""


class Server:
    """Opens a round, deals out its sub-models, and closes it with what came back.

    ``stays`` says that a client's data lives with one worker: its number decides which, else its place in the cohort.
    """

    def __init__(
        self, federation: Federation, workers: int, stays: bool, first: int, report: Callable[[dict[str, Any]], None]
    ) -> None:
        self.federation, self.workers, self.stays, self.round, self.report = federation, workers, stays, first, report
        about = (federation.data.signature, federation.run.training.batch)
        each = {keep: costs.of_client(federation.algorithm, keep, *about) for keep in federation.keeps}
        self.bytes_down = {keep: cost.transfer_bytes / 2 for keep, cost in each.items()}
        self._open()

    @property
    def done(self) -> bool:
        return self.round == self.federation.run.training.rounds

    def _open(self) -> None:
        self.messages: dict[int, Message] = {worker: {} for worker in range(self.workers)}
        if self.done:
            return
        self.opened = self.federation.open(self.round)
        cohort = {
            client.number: (place, client.keep) for place, client in enumerate(self.federation.cohort(self.round))
        }
        # The loop merges group by group; the order shows in the last digits.
        self.tasks = [task for group in self.federation.groups(self.opened.tasks) for task in group]
        for message in self.messages.values():
            message |= {"round": self.round, "jobs": {}}
        sent = dict.fromkeys(cohort, 0)
        for job, task in enumerate(self.tasks):
            place, _ = cohort[task.client]
            state = _to(self.opened.gather([task]), torch.device("cpu"))
            self.messages[(task.client if self.stays else place) % self.workers]["jobs"][job] = (task.client, state)
            sent[task.client] += sum(tensor.untyped_storage().nbytes() for tensor in state.values())
        for client, (_, keep) in cohort.items():
            if sent[client] > self.bytes_down[keep]:
                raise RuntimeError(
                    f"client {client} would get {sent[client]} bytes of tensors, but its sub-model, with keep ratio "
                    f"{keep:g}, has {self.bytes_down[keep]:.0f}; nothing else may leave the server."
                )

    def close(self, uploads: Iterable[Message]) -> None:
        """Merge what the workers sent, finish the round, and open the next one."""
        results: dict[int, tuple[State, torch.Tensor, float]] = {}
        for upload in uploads:
            if "error" in upload:
                raise ClientFailed(upload["error"])
            results |= upload["results"]
        for job, task in enumerate(self.tasks):
            state, loss, seconds = results[job]
            self.opened.clock.seconds["train"] += seconds
            self.opened.add([task], _to(state, self.federation.device), loss.to(self.federation.device))
        record = self.federation.close(self.opened)
        self.round += 1
        self.report(record)
        self._open()


class Worker:
    """Trains the sub-models that it is sent, of one client after another, with the suite's own trainer."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        # What a client has of the model is what it is sent.
        federation.algorithm.state = {}

    def train(self, message: Message) -> Message:
        """The answer to a message: each sub-model after training, with its loss and how long that took."""
        results = {}
        for job, (client, sent) in message.get("jobs", {}).items():
            start = time.perf_counter()
            # A copy: in one process the message is the server's own.
            state = {name: tensor.to(self.federation.device, copy=True) for name, tensor in sent.items()}
            loss = self.federation.train(message["round"], [client], state).cpu()
            results[job] = (_to(state, torch.device("cpu")), loss, time.perf_counter() - start)
        return {"results": results}


def _to(state: State, device: torch.device) -> State:
    return {name: tensor.to(device) for name, tensor in state.items()}
