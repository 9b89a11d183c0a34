"""pfl-research: `FederatedAveraging` on its `SimulatedBackend`.

Users are drawn by a sampler that follows the work. Switched off: evaluation, and metrics to the console.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from work import Work
from worker import Turns


class Pause(TrainingProcessCallback):
    """Waits for its turn before each round; where there are more processes than one, the others wait for the first."""

    def __init__(self, turns: Turns | None, rounds: int) -> None:
        self.turns, self.rounds = turns, rounds

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self._wait(model)
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        if central_iteration + 1 < self.rounds:
            self._wait(model)
        return False, Metrics()

    def _wait(self, model: PyTorchModel) -> None:
        if self.turns:
            self.turns.wait(model.pytorch_model.state_dict())
        if torch.distributed.is_initialized():
            torch.distributed.barrier()


def run(path: Path, threads: int, turns: Turns | None) -> None:
    work = Work.read(path)
    net = work.net()
    # pfl asks the module for its loss, and for metrics in a round with evaluation, which the first always is.
    net.loss = lambda x, y: F.cross_entropy(net(x), y)
    net.metrics = lambda x, y: {}
    places = iter([(round, client) for round in range(work.rounds) for client in work.cohort(round)])
    users = FederatedDataset(lambda place: Dataset(work.samples(*place), user_id=str(place)), lambda: next(places))
    model = PyTorchModel(
        net,
        local_optimizer_create=partial(torch.optim.SGD, momentum=work.sgd["momentum"]),
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=work.rounds,
            evaluation_frequency=work.rounds,
            train_cohort_size=len(work.cohort(0)),
            val_cohort_size=0,
        ),
        SimulatedBackend(users, users),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work.sgd["lr"], local_batch_size=work.batch),
        callbacks=[Pause(turns, work.rounds)],
        send_metrics_to_platform=False,
    )
    if turns:
        turns.finish(net.state_dict())
