"""FedML's single-process simulator (``backend: sp``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedml.simulation.sp.fedavg.fedavg_api import FedAvgAPI
from torch import nn

from prism_bench.engine.local import LocalTrainer
from prism_bench.engine.sections import Execution
from prism_bench.integrations.fedml.data import EightTuple
from prism_bench.integrations.fedml.sides import FedMLExecutor, Message, Worker, carry


class SubModelAPI(FedAvgAPI):
    """A round of FedML's loop, with one message per client in place of one model for all.

    FedML's own passes every client the live weights of the one before it in the first round, and knows one model only.
    """

    def __init__(self, args: Any, dataset: EightTuple, worker: Worker) -> None:
        self.worker = worker
        self.messages: Sequence[Message] = ()
        self.uploads: Sequence[Message] = ()
        super().__init__(args, worker.trainer.device, dataset, nn.Identity())

    def _setup_clients(self, *_: Any) -> None:
        self.client_list = [self.worker]

    def train(self) -> None:
        self._aggregate([(len(message["jobs"]), self.worker.train(message)) for message in self.messages])

    def _aggregate(self, w_locals: list[tuple[int, Message]]) -> None:
        self.uploads = [upload for _, upload in w_locals]

    def run(self) -> None:
        """What `FedMLRunner` calls."""
        self.train()

    def finish(self) -> None:
        """Nothing listens."""


class InOneProcess(FedMLExecutor):
    """FedML runs round by round, in the process of the run."""

    def __init__(
        self, trainer: LocalTrainer, execution: Execution, at_once: int, args: Any, dataset: EightTuple
    ) -> None:
        super().__init__(trainer, execution, at_once, workers=args.client_num_per_round)
        self.api = SubModelAPI(args, dataset, Worker(trainer))
        self.dataset = dataset

    def exchange(self, messages: dict[int, Message]) -> Sequence[Message]:
        self.api.messages = list(messages.values())
        carry(self.api.args, self.trainer.device, self.dataset, self.api)
        return self.api.uploads
