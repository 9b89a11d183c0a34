"""FedML's MPI simulator (``backend: MPI``): rank 0 is the server, the others train their share of a round's clients."""

from __future__ import annotations

from typing import Any

from fedml.core.distributed.communication.constants import CommunicationConstants
from fedml.simulation.mpi.fedavg.FedAVGAggregator import FedAVGAggregator
from fedml.simulation.mpi.fedavg.FedAvgClientManager import FedAVGClientManager
from fedml.simulation.mpi.fedavg.FedAvgServerManager import FedAVGServerManager
from fedml.simulation.mpi.fedavg.FedAVGTrainer import FedAVGTrainer
from fedml.simulation.mpi.fedavg.message_define import MyMessage

from prism_bench.integrations.fedml.data import EightTuple
from prism_bench.integrations.fedml.sides import Message, Remote, Worker


class Aggregator(FedAVGAggregator):
    """What FedML calls global parameters is a dict of messages here, one per worker."""

    def __init__(self, args: Any, dataset: EightTuple, executor: Remote) -> None:
        train_num, _, train, test, local_num, local_train, local_test, _ = dataset
        data = (train, test, train_num, local_train, local_test, local_num)
        super().__init__(*data, executor.workers, executor.trainer.device, args, None)
        self.executor = executor

    def client_sampling(self, *_: Any) -> list[int]:
        """Which message goes to which worker; the round's clients are drawn where the messages are made."""
        return list(range(self.worker_num))

    def get_global_model_params(self) -> dict[int, Message]:
        return self.executor.messages()

    def aggregate(self) -> dict[int, Message]:
        return self.executor.hand_in([self.model_dict[worker] for worker in range(self.worker_num)])

    def test_on_server_for_all_clients(self, round_idx: int) -> None:
        """The suite's loop does."""


class OneRun:
    """What both managers do otherwise, as several runs may follow each other."""

    def register_message_receive_handlers(self: Any) -> None:
        super().register_message_receive_handlers()  # type: ignore[misc]
        # FedML announces the connection also here, where nobody asked, and warns that nobody did.
        self.register_message_receive_handler(CommunicationConstants.MSG_TYPE_CONNECTION_IS_READY, lambda _: None)

    def run(self: Any) -> None:
        if self.rank == 0:
            self.send_init_msg()
        super().run()  # type: ignore[misc]
        # Nobody listens any more for this run, nor yet for the next: no message can go to the wrong one.
        self.comm.Barrier()

    def finish(self: Any) -> None:
        """End the run, and not MPI with it: the next run needs it."""
        self.com_manager.stop_receive_message()


class ServerManager(OneRun, FedAVGServerManager):
    """Sends each worker its own message, where FedML sends all the same."""

    def __init__(self, args: Any, dataset: EightTuple, executor: Remote) -> None:
        self.executor = executor
        aggregator = Aggregator(args, dataset, executor)
        super().__init__(args, aggregator, args.comm, args.process_id, args.worker_num, "MPI")

    def send_message_init_config(self, receive_id: int, global_model_params: Any, client_index: int) -> None:
        super().send_message_init_config(receive_id, global_model_params[client_index], client_index)

    def send_message_sync_model_to_client(self, receive_id: int, global_model_params: Any, client_index: int) -> None:
        super().send_message_sync_model_to_client(receive_id, global_model_params[client_index], client_index)

    def handle_message_receive_model_from_client(self, msg_params: Any) -> None:
        super().handle_message_receive_model_from_client(msg_params)
        if self.executor.failed:
            self.finish()


class Trainer(FedAVGTrainer):
    """The suite's own training; the message says which clients."""

    def __init__(self, args: Any, worker: Worker) -> None:
        super().__init__(None, None, None, None, 0, worker.trainer.device, args, None)
        self.worker, self.rank = worker, args.rank

    def update_model(self, weights: Message) -> None:
        self.message = weights

    def train(self, round_idx: int | None = None) -> tuple[Message, int]:
        return self.worker.answer(self.message, f"worker {self.rank}"), len(self.message["jobs"])


class ClientManager(OneRun, FedAVGClientManager):
    def __init__(self, args: Any, dataset: EightTuple, worker: Worker) -> None:
        super().__init__(args, Trainer(args, worker), args.comm, args.process_id, args.worker_num, "MPI")
        self.failed = False
        """Whether the server's run ended before its time."""

    def handle_message_init(self, msg_params: Any) -> None:
        """Ends after the first round where that is also the last, which FedML's own forgets."""
        super().handle_message_init(msg_params)
        if self.num_rounds == 1:
            self.finish()

    def handle_message_receive_model_from_server(self, msg_params: Any) -> None:
        self.failed = "failed" in msg_params.get(MyMessage.MSG_ARG_KEY_MODEL_PARAMS)
        if self.failed:
            self.finish()
        else:
            super().handle_message_receive_model_from_server(msg_params)
