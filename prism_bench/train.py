"""Local training: a batch of clients in one pass, or one client after another, by the same code.

Clients whose sub-models have equal shapes are stacked along a leading dimension and share every operation (`vmap`). At
each step only clients with a batch of equal size go together, so a client that has run out of batches does not
move and BatchNorm never sees padding: the result is what each client alone would have got, to floating point.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from prism_bench.algorithm import Algorithm, Forward
from prism_bench.axes import State
from prism_bench.config import Training
from prism_bench.data.dataset import Dataset, channels_last, draw_augmentation, flip_and_crop
from prism_bench.processor import arithmetic
from prism_bench.seeds import stream


@dataclass(frozen=True)
class Local:
    """One client's work in a round: sample indices batch by batch, and the stream its augmentation comes from."""

    batches: list[np.ndarray]
    augment: np.random.Generator

    @classmethod
    def plan(cls, samples: np.ndarray, training: Training, seed: int, round: int, client: int) -> Local:
        """Each epoch goes through the client's samples once, in an order of its own.

        Where ``training.steps`` cuts this short, the next round goes on in the order that this one began.
        """
        each = -(-len(samples) // training.batch)
        count = min(training.steps or math.inf, each * training.epochs)
        first = round * int(count) if training.steps else 0
        batches: list[np.ndarray] = []
        for step in range(first, first + int(count)):
            epoch, place = divmod(step, each)
            if place == 0 or not batches:
                position = (epoch, client) if training.steps else (round, client, epoch)
                order = samples[stream(seed, "batches", *position).permutation(len(samples))]
            batches.append(order[place * training.batch : (place + 1) * training.batch])
        return cls(batches, stream(seed, "augment", round, client))


def train(
    algorithm: Algorithm,
    state: State,
    work: Sequence[Local],
    data: Dataset,
    training: Training,
    lr: float,
    forward: Forward | None = None,
    stop: threading.Event | None = None,
) -> Tensor:
    """Train stacked sub-models in place, the i-th on ``work[i]``; returns each one's mean loss over its steps.

    ``forward`` is one of the algorithm's equivalent ones, `stacked`. Once ``stop`` is set, nothing of this is wanted.
    """
    forward = forward or stacked(algorithm.forward)
    velocity = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    losses = torch.zeros(len(work), device=next(iter(state.values())).device)
    batches = Batches(work, data, training)
    with arithmetic(training.precision):
        for step in range(batches.steps):
            if stop is not None and stop.is_set():
                break
            for rows in batches.alike(step):
                x, y = batches.load(rows, step)
                if len(rows) == len(work):
                    losses += _step(algorithm, forward, state, velocity, x, y, training, lr)
                    continue
                chosen = torch.tensor(rows).to(losses.device, non_blocking=True)
                part = {name: tensor[chosen] for name, tensor in state.items()}
                part_velocity = {name: tensor[chosen] for name, tensor in velocity.items()}
                losses[chosen] += _step(algorithm, forward, part, part_velocity, x, y, training, lr)
                for name in state:
                    state[name][chosen] = part[name]
                    velocity[name][chosen] = part_velocity[name]
    steps = torch.tensor([max(1, len(local.batches)) for local in work]).to(losses.device, non_blocking=True)
    return losses / steps


def stacked(forward: Forward) -> Forward:
    """A forward of one sub-model as one of several: tensors and inputs with the client as leading dimension."""

    def of_all(params: State, x: Tensor) -> Tensor:
        if len(x) > 1:
            logits: Tensor = vmap(forward)(params, x)
            return logits
        return forward({name: tensor.squeeze(0) for name, tensor in params.items()}, channels_last(x[0]))[None]

    return of_all


class Batches:
    """The clients' batches of a round: which samples, and how they are shifted and flipped.

    All of it is sent to the data's device at once, so that no step waits for the host.
    """

    def __init__(self, work: Sequence[Local], data: Dataset, training: Training) -> None:
        self.data, self.sizes = data, [[len(batch) for batch in local.batches] for local in work]
        self.steps = max(map(len, self.sizes), default=0)
        ends = iter(itertools.accumulate(itertools.chain.from_iterable(self.sizes)))
        self.ends = [list(itertools.islice(ends, len(sizes))) for sizes in self.sizes]
        every = [batch for local in work for batch in local.batches]
        self.samples = self._send(every or [np.zeros(0, int)])
        self.shifts: list[Tensor] | None = None
        if data.augment and training.augment and every:
            draws = [draw_augmentation(local.augment, len(batch)) for local in work for batch in local.batches]
            self.shifts = [self._send(part) for part in zip(*draws, strict=True)]

    def _send(self, parts: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(self.data.train.labels.device, non_blocking=True)

    def alike(self, step: int) -> list[list[int]]:
        """The clients that have a batch at this step, by its size."""
        groups: dict[int, list[int]] = defaultdict(list)
        for row, sizes in enumerate(self.sizes):
            if step < len(sizes):
                groups[sizes[step]].append(row)
        return list(groups.values())

    def load(self, rows: Sequence[int], step: int) -> tuple[Tensor, Tensor]:
        """The step's batch of each client, stacked: inputs (clients, batch, ...) and labels (clients, batch)."""
        places = [slice(self.ends[row][step] - self.sizes[row][step], self.ends[row][step]) for row in rows]
        samples = torch.stack([self.samples[place] for place in places])
        x, y = self.data.train.inputs[samples], self.data.train.labels[samples]
        if self.shifts is not None:
            offsets, flips = (torch.cat([part[place] for place in places]) for part in self.shifts)
            x = flip_and_crop(x.flatten(0, 1), offsets, flips).view_as(x)
        return self.data.prepare(x), y


def _step(
    algorithm: Algorithm,
    forward: Forward,
    state: State,
    velocity: State,
    x: Tensor,
    y: Tensor,
    training: Training,
    lr: float,
) -> Tensor:
    """One step of SGD with momentum on every stacked sub-model, in place; returns each one's loss."""
    params = {name: tensor.detach().requires_grad_() for name, tensor in state.items()}
    logits = forward(params, x)
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view_as(y).mean(1)
    # Sub-models share no tensor, so the gradient of the sum is each one's own.
    gradients = dict(zip(params, torch.autograd.grad(loss.sum(), list(params.values())), strict=True))
    with torch.no_grad():
        if training.clip is not None:
            _clip(gradients, training.clip)
        if training.decay:
            algorithm.add_decay(state, gradients, training.decay)
        buffers, changes = list(velocity.values()), list(gradients.values())
        torch._foreach_mul_(buffers, training.momentum)
        torch._foreach_add_(buffers, changes)
        torch._foreach_add_(list(state.values()), buffers, alpha=-lr)
    return loss.detach()


def _clip(gradients: State, largest: float) -> None:
    squares = [gradient.flatten(1).square().sum(1) for gradient in gradients.values()]
    norm = torch.stack(squares).sum(0).sqrt()
    factor = (largest / (norm + 1e-6)).clamp(max=1)
    for gradient in gradients.values():
        gradient.mul_(factor.view(-1, *[1] * (gradient.ndim - 1)))
