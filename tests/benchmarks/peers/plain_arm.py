"""The loop that a competent person writes by hand: one module, loaded for each client, and its weights averaged."""

from __future__ import annotations

from pathlib import Path

import torch
from work import Work, train
from worker import Turns


def run(path: Path, threads: int, turns: Turns) -> None:
    work = Work.read(path)
    net = work.net()
    weights = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    for round in range(work.rounds):
        turns.wait(weights)
        cohort = work.cohort(round)
        mean = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        for client in cohort:
            net.load_state_dict(weights)
            train(net, work.batches(round, client), work.sgd)
            for name, tensor in net.state_dict().items():
                mean[name].add_(tensor, alpha=1 / len(cohort))
        weights = mean
    turns.finish(weights)
