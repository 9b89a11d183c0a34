"""FedML's single-process simulator (``backend: sp``)."""

from __future__ import annotations

from typing import Any

from fedml.simulation.sp.fedavg.fedavg_api import FedAvgAPI
from torch import nn

from prism_bench.integrations.fedml.sides import Message, Server, Worker


class SubModelAPI(FedAvgAPI):
    """FedML's loop, with a message a client in place of one model for all.

    FedML's own passes every client the live weights of the one before it in the first round, and knows one model only.
    """

    def __init__(self, args: Any, dataset: Any, server: Server, worker: Worker) -> None:
        self.server, self.worker = server, worker
        super().__init__(args, server.federation.device, dataset, nn.Identity())

    def _setup_clients(self, *_: Any) -> None:
        self.client_list = [self.worker]

    def train(self) -> None:
        while not self.server.done:
            messages = self.server.messages.values()
            self._aggregate([(len(message["jobs"]), self.worker.train(message)) for message in messages])

    def _aggregate(self, w_locals: list[tuple[int, Message]]) -> None:
        self.server.close(upload for _, upload in w_locals)

    def run(self) -> None:
        """What `FedMLRunner` calls."""
        self.train()
