"""Flower: its `FedAvg` strategy on the simulation runtime, with an actor of one thread for each thread of the setting.

The strategy picks the nodes that the work names. Actors keep the data and the module from one message to the next.
Switched off: evaluation (`fraction_evaluate=0`), Ray's dashboard, telemetry and logging below warnings.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from work import Net, Work, train
from worker import Turns

app = ClientApp()


@app.train()
def train_client(message: Message, context: Context) -> Message:
    config = message.content["config"]
    work, net = _resident(config["work"])
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(net, work.batches(config["round"], config["client"]), work.sgd)
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
    return Message(content=RecordDict(content), reply_to=message)


@cache
def _resident(path: str) -> tuple[Work, Net]:
    torch.set_num_threads(1)
    work = Work.read(Path(path))
    return work, work.net()


class Follow(FedAvg):
    """FedAvg with the cohorts of the work; waits for its turn before each round."""

    def __init__(self, work: Work, path: str, turns: Turns) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.work, self.path, self.turns = work, path, turns

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.turns.wait(arrays)
        nodes, round = sorted(grid.get_node_ids()), server_round - 1
        for client in self.work.cohort(round):
            told = ConfigRecord({"work": self.path, "round": round, "client": client})
            content = RecordDict({"arrays": arrays, "config": told})
            yield Message(content=content, message_type=MessageType.TRAIN, dst_node_id=nodes[client])


def run(path: Path, threads: int, turns: Turns) -> None:
    logging.getLogger("flwr").setLevel(logging.WARNING)
    work, server = Work.read(path), ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        result = Follow(work, str(path), turns).start(grid, ArrayRecord(work.net().state_dict()), work.rounds)
        turns.finish(result.arrays)

    resources = {"init_args": {"num_cpus": threads}, "client_resources": {"num_cpus": 1, "num_gpus": 0}}
    run_simulation(server, app, work.clients, backend_config=resources)
