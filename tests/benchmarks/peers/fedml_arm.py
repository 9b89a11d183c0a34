"""FedML: its single-process simulator (`sp`), `FedAvgAPI`, with a trainer of one's own, as FedML's has no momentum.

Switched off: evaluation, which its loop does after some rounds and the last whatever the settings, and tracking.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from work import Work, train
from worker import Turns

with warnings.catch_warnings():
    # What fedml depends on warns of each other.
    warnings.simplefilter("ignore")
    from fedml import mlops
    from fedml.ml.trainer.my_model_trainer_classification import ModelTrainerCLS
    from fedml.simulation.sp.fedavg import FedAvgAPI


class Trainer(ModelTrainerCLS):
    """Momentum, and a first model that is a copy.

    FedML's first global model is the live one, so that in its first round each client would go on from the one before.
    """

    started = False

    def get_model_params(self) -> dict[str, Tensor]:
        params = super().get_model_params()
        return params if self.started else {name: tensor.clone() for name, tensor in params.items()}

    def train(self, train_data: Batches, device: torch.device, args: SimpleNamespace) -> None:
        self.started = True
        train(self.model, train_data, args.sgd)


class Batches:
    """A client's data loader: goes through the batches of the round that is under way."""

    def __init__(self, api: Follow, client: int) -> None:
        self.api, self.client = api, client

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.api.work.batches(self.api.round, self.client)


class Follow(FedAvgAPI):
    """FedML's loop with the cohorts of the work; waits for its turn before each round."""

    def __init__(self, work: Work, turns: Turns) -> None:
        self.work, self.turns = work, turns
        args = SimpleNamespace(
            training_type="simulation",
            dataset="noise",
            comm_round=work.rounds,
            client_num_in_total=work.clients,
            client_num_per_round=len(work.cohort(0)),
            frequency_of_the_test=work.rounds,
            sgd=work.sgd,
        )
        mlops.pre_setup(args)
        loaders = {client: Batches(self, client) for client in range(work.clients)}
        sizes = dict.fromkeys(loaders, work.orders.shape[2])
        data = [
            sum(sizes.values()),
            0,
            None,
            None,
            sizes,
            loaders,
            dict.fromkeys(loaders),
            len(work.weights["classifier.bias"]),
        ]
        super().__init__(args, torch.device("cpu"), data, work.net())

    def _setup_clients(self, sizes: Any, train_data: Any, test_data: Any, model_trainer: ModelTrainerCLS) -> None:
        self.model_trainer = Trainer(model_trainer.model, self.args)
        super()._setup_clients(sizes, train_data, test_data, self.model_trainer)

    def _client_sampling(self, round_idx: int, *_: int) -> list[int]:
        self.turns.wait(self.model_trainer.get_model_params())
        self.round = round_idx
        return self.work.cohort(round_idx)

    def _local_test_on_all_clients(self, round_idx: int) -> None:
        pass


def run(path: Path, threads: int, turns: Turns) -> None:
    api = Follow(Work.read(path), turns)
    api.train()
    turns.finish(api.model_trainer.get_model_params())
