"""FedML's cross-silo jobs over gRPC: a server process, and one client process per silo.

FedML itself sends each silo its own payload where the parameters are a plain dict by silo number. What it lacks is an
end for a job that can't go on: a silo that fails or disappears would leave all others waiting.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import grpc
from fedml.core import ClientTrainer, ServerAggregator
from fedml.cross_silo.client.fedml_client_master_manager import ClientMasterManager
from fedml.cross_silo.client.fedml_trainer_dist_adapter import TrainerDistAdapter
from fedml.cross_silo.client.message_define import MyMessage
from fedml.cross_silo.server.fedml_aggregator import FedMLAggregator
from fedml.cross_silo.server.fedml_server_manager import FedMLServerManager
from torch import nn

from prism_bench.integrations.fedml.data import EightTuple
from prism_bench.integrations.fedml.sides import Message, Remote, Worker

Address = tuple[str, int]


class Aggregator(ServerAggregator):
    """What FedML calls model parameters is a dict of messages here, one per silo."""

    def __init__(self, args: Any, executor: Remote) -> None:
        super().__init__(nn.Identity(), args)
        self.executor = executor

    def get_model_params(self) -> dict[int, Message]:
        return self.executor.messages()

    def set_model_params(self, model_parameters: Any) -> None:
        """FedML hands back what `aggregate` gave it."""

    def aggregate(self, raw_client_model_or_grad_list: list[tuple[int, Message]]) -> dict[int, Message]:
        return self.executor.hand_in([upload for _, upload in raw_client_model_or_grad_list])

    def test(self, test_data: Any, device: Any, args: Any) -> None:
        """The suite's loop does."""


class Trainer(ClientTrainer):
    """The suite's own training; the message says which clients."""

    def __init__(self, args: Any, worker: Worker) -> None:
        super().__init__(nn.Identity(), args)
        self.worker = worker

    def set_model_params(self, model_parameters: Message) -> None:
        self.message = model_parameters

    def get_model_params(self) -> Message:
        return self.message

    def train(self, train_data: Any, device: Any, args: Any) -> None:
        self.message = self.worker.answer(self.message, f"silo {args.rank}")


class PatientQueue(queue.Queue[Any]):
    """FedML asks in a loop without a pause whether a message has come, which takes a whole core of every process."""

    def qsize(self) -> int:
        size = super().qsize()
        if not size:
            time.sleep(0.002)
        return size


class ServerManager(FedMLServerManager):
    def __init__(self, args: Any, dataset: EightTuple, executor: Remote) -> None:
        self.executor = executor
        train_num, _, train, test, local_num, local_train, local_test, _ = dataset
        data = (train, test, train_num, local_train, local_test, local_num)
        about = (executor.workers, executor.trainer.device, args, Aggregator(args, executor))
        super().__init__(args, FedMLAggregator(*data, *about), None, 0, executor.workers, "GRPC")
        self.com_manager.grpc_servicer.message_q.__class__ = PatientQueue
        peers = {rank: address for rank, address in addresses(self.com_manager).items() if rank != 0}
        self.watch = Watch(peers, args.patience, self.lost)

    def run(self) -> None:
        self.watch.start()
        super().run()

    def process_online_status(self, client_status: Any, msg_params: Any) -> None:
        """Silos say hello until they are answered; what comes later belongs to the next run."""
        self.watch.seen.add(int(msg_params.get_sender_id()))
        if not self.is_initialized:
            super().process_online_status(client_status, msg_params)

    def process_finished_status(self, client_status: Any, msg_params: Any) -> None:
        """FedML waits five seconds more, for messages that a job without its platform doesn't send."""
        self.client_finished_mapping[str(msg_params.get_sender_id())] = True
        if len(self.client_finished_mapping) == self.executor.workers:
            self.finish()

    def handle_message_receive_model_from_client(self, msg_params: Any) -> None:
        super().handle_message_receive_model_from_client(msg_params)
        if self.executor.failed:
            self.finish()

    def lost(self, rank: int, problem: str) -> None:
        if self.executor.closed:
            self.finish()
        else:
            end(f"silo {rank} {problem}: the job can't go on.")

    def finish(self) -> None:
        self.watch.stop()
        stop(self)


class ClientManager(ClientMasterManager):
    failed = False
    """Never seen to be otherwise: a silo whose server's run has failed ends at once."""

    def __init__(self, args: Any, dataset: EightTuple, worker: Worker) -> None:
        train_num, _, _, _, local_num, local_train, local_test, _ = dataset
        about = (nn.Identity(), train_num, local_num, local_train, local_test, Trainer(args, worker))
        adapter = TrainerDistAdapter(args, worker.trainer.device, args.rank, *about)
        super().__init__(args, adapter, None, args.rank, args.worker_num, "GRPC")
        self.com_manager.grpc_servicer.message_q.__class__ = PatientQueue
        self.watch = Watch({0: addresses(self.com_manager)[0]}, args.patience, self.lost)

    def run(self) -> None:
        self.watch.start()
        super().run()

    def handle_message_connection_ready(self, msg_params: Any) -> None:
        threading.Thread(target=self._say_hello, daemon=True).start()

    def _say_hello(self) -> None:
        """FedML's client says it once, and fails where nobody listens.

        The server may not be up yet, or still be in the run before.
        """
        while not self.is_inited and not self.watch.over.is_set():
            with suppress(grpc.RpcError):
                self.send_client_status(0)
            time.sleep(0.5)

    def handle_message_init(self, msg_params: Any) -> None:
        self.watch.seen.add(0)
        super().handle_message_init(msg_params)

    def handle_message_receive_model_from_server(self, msg_params: Any) -> None:
        if msg_params.get(MyMessage.MSG_ARG_KEY_MODEL_PARAMS).get("failed"):
            end("the run has failed on the server: the job can't go on.")
        super().handle_message_receive_model_from_server(msg_params)

    def lost(self, rank: int, problem: str) -> None:
        end(f"the server {problem}: the job can't go on.")

    def finish(self) -> None:
        self.watch.stop()
        stop(self)


def stop(manager: Any) -> None:
    """Stop listening, once what is under way has been answered: the next run's manager takes the same port."""
    manager.com_manager.grpc_server.stop(3).wait()
    manager.com_manager.stop_receive_message()


def addresses(manager: Any) -> dict[int, Address]:
    """Where each rank listens."""
    return {rank: (row.ingress_ip or row.grpc_server_ip, row.grpc_server_port)
            for rank, row in manager.grpc_mappings.items()}  # fmt: skip


class Watch(threading.Thread):
    """Looks again and again whether the others still listen; FedML's channels would never tell."""

    def __init__(self, peers: Mapping[int, Address], patience: float, lost: Callable[[int, str], None]) -> None:
        super().__init__(daemon=True)
        self.peers, self.patience, self.lost = peers, patience, lost
        self.seen: set[int] = set()
        self.over = threading.Event()

    def run(self) -> None:
        started, missed = time.monotonic(), dict.fromkeys(self.peers, 0)
        while not self.over.wait(0.5):
            for rank, address in self.peers.items():
                if listens(address):
                    self.seen.add(rank)
                    missed[rank] = 0
                elif rank in self.seen:
                    missed[rank] += 1
                    if missed[rank] == 3 and not self.over.is_set():
                        return self.lost(rank, "is gone")
                elif time.monotonic() - started > self.patience:
                    return self.lost(rank, f"has not come up within {self.patience:g} s")

    def stop(self) -> None:
        self.over.set()


def listens(address: Address) -> bool:
    try:
        socket.create_connection(address, timeout=3).close()
    except OSError:
        return False
    return True


def end(problem: str) -> None:
    """End this process from any thread: others of FedML's may wait for messages that will not come."""
    print(f"error: {problem}", file=sys.stderr, flush=True)
    os._exit(1)
