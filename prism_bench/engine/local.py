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
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from prism_bench.base.errors import BadInput, BadPlugin, nearest
from prism_bench.core.algorithm import Algorithm, Forward, viewed
from prism_bench.core.axes import Layout, Selection, State
from prism_bench.core.network import Network, noise_from
from prism_bench.core.objective import Step, all_used, cross_entropy
from prism_bench.core.seeds import stream
from prism_bench.data.dataset import Dataset, channels_last, draw_augmentation, flip_and_crop
from prism_bench.data.population import Population
from prism_bench.engine import costs
from prism_bench.engine.hardware import arithmetic, compute
from prism_bench.engine.round import Task, Trained
from prism_bench.engine.sections import Training
from prism_bench.engine.spec import Run


@dataclass(frozen=True)
class Schedule:
    """One client's local steps in a round: sample indices batch by batch, the stream of its augmentation, and all that
    the client has."""

    batches: list[np.ndarray]
    augment: np.random.Generator
    samples: np.ndarray

    @classmethod
    def plan(cls, samples: np.ndarray, training: Training, seed: int, round: int, client: int) -> Schedule:
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
        return cls(batches, stream(seed, "augment", round, client), samples)


def clients_side(run: Run, data: Dataset) -> Algorithm:
    """The run's method with its network: all that a client needs, and nothing of the server's."""
    algorithm: Algorithm = run.algorithm.kind(run.algorithm.settings)
    algorithm.build(run.model.settings.build(data.signature), run.seed)
    check_passes(run.training, algorithm.network)
    frozen, known = set(algorithm.frozen()), algorithm.layout.dims
    for hook, names in (("frozen", frozen), ("unsent", set(algorithm.unsent()))):
        for name in sorted(names - known.keys()):
            raise BadPlugin(
                f"{run.algorithm.name}: `{hook}` names '{name}', and there is no such tensor. {nearest(name, known)}"
            )
    if frozen == known.keys():
        raise BadPlugin(f"{run.algorithm.name}: `frozen` names every tensor, and nothing is left to train.")
    return algorithm


def check_passes(training: Training, network: Network) -> None:
    """BadInput where a step in several passes would be another step than in one."""
    if training.passed < training.batch and network.statistical:
        raise BadInput(
            f"training.micro: {training.micro} of {training.batch} samples in a pass change what BatchNorm does; "
            "use model.norm: group or none, or leave it out."
        )


class LocalTrainer:
    """How clients train, wherever they do: settings, the method's clients' side and the data; nothing of the server's.

    Has no state that a number depends on, and can be pickled: a copy of it in another process trains alike.
    """

    def __init__(
        self, run: Run, data: Dataset, population: Population, device: torch.device, compile: bool = False
    ) -> None:
        self.run, self.data, self.population, self.device, self.compile = run, data, population, device, compile
        self.algorithm = clients_side(run, data)
        self._forwards: dict[Any, Forward] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_forwards": {}}  # worked out again where they are needed

    def schedule(self, round: int, client: int) -> Schedule:
        """What a client goes through in a round."""
        return Schedule.plan(self.population[client], self.run.training, self.run.seed, round, client)

    def learning_rate(self, round: int) -> float:
        training = self.run.training
        if training.schedule == "constant":
            return training.lr
        return training.lr * (1 + math.cos(math.pi * round / training.rounds)) / 2

    def report(self, client: int) -> dict[str, Tensor]:
        """What the client tells the server before it selects."""
        samples = torch.from_numpy(self.population[client]).to(self.data.train.labels.device)
        inputs, labels = self.data.train.inputs[samples], self.data.train.labels[samples]
        return self.algorithm.report(self.data.prepare(inputs), labels)

    def train(self, round: int, tasks: Sequence[Task], state: State, stop: threading.Event | None = None) -> Trained:
        """Train the tasks' stacked sub-models in place. Once ``stop`` is set, nothing of this is wanted."""
        algorithm, clients = self.algorithm, [task.client.number for task in tasks]
        if overrides(algorithm, "recall"):
            for row, task in enumerate(tasks):
                recalled = algorithm.recall({name: tensor[row].clone() for name, tensor in state.items()}, task.memory)
                for name, tensor in recalled.items():
                    state[name][row] = tensor
        keeps_start = any(overrides(algorithm, hook) for hook in ("loss", "upload", "remember"))
        start = {name: tensor.clone() for name, tensor in state.items()} if keeps_start else state
        schedules = [self.schedule(round, client) for client in clients]
        forward = self.forward({name: tuple(tensor.shape[1:]) for name, tensor in state.items()})
        losses = train(
            algorithm, state, schedules, self.data, self.run.training, self.learning_rate(round),
            start=start, forward=forward, stop=stop, draws=Draws(self.run.seed, round, clients),
        )  # fmt: skip
        if overrides(algorithm, "upload"):
            for row, (task, schedule) in enumerate(zip(tasks, schedules, strict=True)):
                way = self.way(len(schedule.batches), self.learning_rate(round))
                for name, tensor in algorithm.upload(_row(state, row), _row(start, row), task.memory, way).items():
                    state[name][row] = tensor
        memories: list[State] = [{} for _ in tasks]
        if overrides(algorithm, "remember"):
            for row, task in enumerate(tasks):
                kept = algorithm.remember(_row(state, row), _row(start, row), task.memory)
                # Copies: a row would hold on to what all of the stacked clients trained.
                memories[row] = {name: tensor.clone() for name, tensor in kept.items()}
        return Trained(tasks, state, losses, memories)

    def way(self, steps: int, lr: float) -> float:
        """How far so many steps move a tensor whose gradient is one at each."""
        optimiser, moved = self.algorithm.optimiser(self.run.training.momentum), {"": torch.zeros(1)}
        slots = optimiser.slots(moved)
        for _ in range(steps):
            optimiser.step(moved, {"": torch.ones(1)}, slots, lr)
        return -moved[""].item()

    def forward(self, shapes: dict[str, tuple[int, ...]]) -> Forward:
        """Of the algorithm's equivalent forwards the one that `costs` says runs with these shapes; stacked."""
        key = tuple(shapes.values())
        if key not in self._forwards:
            training, algorithm = self.run.training, self.algorithm
            best = costs.running(algorithm, shapes, self.data.signature, training.passed, training.momentum)
            forward = stacked(compute(best, training.precision))
            fixed = not overrides(algorithm, "views") and not algorithm.network.draws  # the same at each step
            self._forwards[key] = torch.compile(forward) if self.compile and fixed else forward
        return self._forwards[key]


def overrides(algorithm: Algorithm, hook: str) -> bool:
    """Whether a method has its own of one of the contract's functions."""
    return getattr(type(algorithm), hook) is not getattr(Algorithm, hook)


def _row(state: State, row: int) -> State:
    return {name: tensor[row] for name, tensor in state.items()}


@dataclass(frozen=True)
class Draws:
    """What stacked clients draw in a round's local training, each from streams of its own."""

    seed: int
    round: int
    clients: Sequence[int]

    def noise(self) -> list[torch.Generator]:
        """For a network that draws random numbers in training."""
        streams = [stream(self.seed, "noise", self.round, client) for client in self.clients]
        return [torch.Generator().manual_seed(int(one.integers(2**63))) for one in streams]

    def views(self, count: int, step: int) -> list[int]:
        """For a method whose steps are about parts of the sub-model: which of so many views each client's next is."""
        places = [(self.round, client, step) for client in self.clients]
        return [int(stream(self.seed, "view", *place).integers(count)) for place in places]


def train(
    algorithm: Algorithm,
    state: State,
    schedules: Sequence[Schedule],
    data: Dataset,
    training: Training,
    lr: float,
    *,
    start: State | None = None,
    forward: Forward | None = None,
    stop: threading.Event | None = None,
    draws: Draws | None = None,
) -> Tensor:
    """Train stacked sub-models in place, the i-th by ``schedules[i]``; returns each one's mean loss over its steps.

    ``forward`` is one of the algorithm's equivalent ones, `stacked`; ``start`` the tensors before training, for a
    method's own loss.
    """
    draws = draws or Draws(0, 0, range(len(schedules)))
    losses = torch.zeros(len(schedules), device=next(iter(state.values())).device)
    batches = Batches(schedules, data, training)
    move = Mover(algorithm, forward or stacked(algorithm.forward), training, lr)
    held = {name: tensor for name, tensor in state.items() if name not in algorithm.frozen()}
    slots = move.optimiser.slots(held)
    noise = draws.noise() if algorithm.network.draws else None
    views: Sequence[Sequence[Selection]] = [[{}]]
    if overrides(algorithm, "views"):
        views = move.see(algorithm.layout.of({name: tensor.shape[1:] for name, tensor in state.items()}))
    present = _present(schedules, data) if move.own_loss else None
    with arithmetic(training.precision):
        for step in range(batches.steps):
            if stop is not None and stop.is_set():
                break
            drawn = draws.views(len(views), step) if len(views) > 1 else [0] * len(schedules)
            for rows in batches.alike(step, drawn):
                x, y = batches.load(rows, step)
                view = views[drawn[rows[0]]]
                sources = [noise[row] for row in rows] if noise else None
                if len(rows) == len(schedules):
                    losses += move(state, held, slots, start or state, x, y, present, view, sources)
                    continue
                chosen = torch.tensor(rows).to(losses.device, non_blocking=True)
                part, part_start = _rows(state, chosen), _rows(start, chosen) if start is not None else None
                part_held = {name: part[name] for name in held}
                part_slots = [_rows(slot, chosen) for slot in slots]
                theirs = present[chosen] if present is not None else None
                losses[chosen] += move(part, part_held, part_slots, part_start or part, x, y, theirs, view, sources)
                for name in held:
                    state[name][chosen] = part[name]
                    for slot, part_slot in zip(slots, part_slots, strict=True):
                        slot[name][chosen] = part_slot[name]
    steps = torch.tensor([max(1, len(one.batches)) for one in schedules]).to(losses.device, non_blocking=True)
    return losses / steps


def _present(schedules: Sequence[Schedule], data: Dataset) -> Tensor:
    """Of each client and label, whether the client has any sample of it."""
    labels = data.train.labels
    present = torch.zeros(len(schedules), data.classes, dtype=torch.bool, device=labels.device)
    for row, schedule in enumerate(schedules):
        present[row, labels[torch.from_numpy(schedule.samples).to(labels.device)]] = True
    return present


def _rows(state: State, chosen: Tensor) -> State:
    return {name: tensor[chosen] for name, tensor in state.items()}


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

    def __init__(self, schedules: Sequence[Schedule], data: Dataset, training: Training) -> None:
        self.data, self.sizes = data, [[len(batch) for batch in one.batches] for one in schedules]
        self.steps = max(map(len, self.sizes), default=0)
        ends = iter(itertools.accumulate(itertools.chain.from_iterable(self.sizes)))
        self.ends = [list(itertools.islice(ends, len(sizes))) for sizes in self.sizes]
        every = [batch for one in schedules for batch in one.batches]
        self.samples = self._send(every or [np.zeros(0, int)])
        self.shifts: list[Tensor] | None = None
        if data.augment and training.augment and every:
            draws = [draw_augmentation(one.augment, len(batch)) for one in schedules for batch in one.batches]
            self.shifts = [self._send(part) for part in zip(*draws, strict=True)]

    def _send(self, parts: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(self.data.train.labels.device, non_blocking=True)

    def alike(self, step: int, views: Sequence[int]) -> list[list[int]]:
        """The clients that have a batch at this step, by its size and by the view that they drew."""
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row, (sizes, view) in enumerate(zip(self.sizes, views, strict=True)):
            if step < len(sizes):
                groups[sizes[step], view].append(row)
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


class Mover:
    """One local step of stacked sub-models, in place."""

    def __init__(self, algorithm: Algorithm, forward: Forward, training: Training, lr: float) -> None:
        self.algorithm, self.forward, self.training, self.lr = algorithm, forward, training, lr
        self.optimiser = algorithm.optimiser(training.momentum)
        self.own_loss = overrides(algorithm, "loss")
        self.layout: Layout | None = None
        """The sub-models' own, where a step may be about parts of them."""

    def see(self, layout: Layout) -> Sequence[Sequence[Selection]]:
        """The views of sub-models with this layout."""
        self.layout = layout
        return viewed(self.algorithm, layout)

    def __call__(
        self,
        state: State,
        held: State,
        slots: Sequence[State],
        start: State,
        x: Tensor,
        y: Tensor,
        present: Tensor | None = None,
        view: Sequence[Selection] = ({},),
        noise: Sequence[torch.Generator] | None = None,
    ) -> Tensor:
        """Move the tensors that are trained, ``held``, of all that the clients have, ``state``; returns the losses."""
        whole = {name: tensor.detach() for name, tensor in state.items()}
        trained = {name: whole[name].requires_grad_() for name in held}
        total = torch.zeros(len(x), device=x.device)
        for xs, ys in zip(*(torch.split(one, self.training.passed, 1) for one in (x, y)), strict=True):
            parts = [self._part(whole, part) for part in view]
            logits = [self._logits(part, xs, noise) for part in parts]
            loss = self._loss(logits, ys, parts[0], self._part(start, view[0]), present)
            if xs.shape[1] < x.shape[1]:
                loss = loss * (xs.shape[1] / x.shape[1])
            # Sub-models share no tensor, so the gradient of the sum is each one's own. Those of passes add up in place.
            torch.autograd.backward(loss.sum(), inputs=list(trained.values()))
            total += loss.detach()
        gradients = all_used({name: tensor.grad for name, tensor in trained.items()})
        with torch.no_grad():
            if self.training.clip is not None:
                _clip(gradients, self.training.clip)
            if self.training.decay:
                of_first = self._part(gradients, view[0])
                self.algorithm.add_decay(self._part(held, view[0]), of_first, self.training.decay)
                for name, gradient in gradients.items():
                    if view[0]:
                        gradient[self._where(name, view[0])] = of_first[name]
            self.optimiser.step(held, gradients, slots, self.lr)
        return total

    def _part(self, state: State, part: Selection) -> State:
        return {name: tensor[self._where(name, part)] for name, tensor in state.items()} if part else state

    def _where(self, name: str, part: Selection) -> tuple[Tensor | slice, ...]:
        assert self.layout is not None
        return (slice(None), *self.layout.index(name, part))

    def _logits(self, params: State, x: Tensor, noise: Sequence[torch.Generator] | None) -> Tensor:
        if noise is None:
            return self.forward(params, x)
        each = []
        for row, source in enumerate(noise):
            with noise_from(source):
                each.append(
                    self.forward({name: tensor[row : row + 1] for name, tensor in params.items()}, x[row : row + 1])
                )
        return torch.cat(each)

    def _loss(self, logits: Sequence[Tensor], y: Tensor, params: State, start: State, present: Tensor | None) -> Tensor:
        if not self.own_loss or present is None:
            return cross_entropy(logits[0], y)

        def of_one(
            logits: Tensor, y: Tensor, params: State, start: State, present: Tensor, others: Sequence[Tensor]
        ) -> Tensor:
            return self.algorithm.loss(Step(logits, y, params, start, present, others))

        first, others = logits[0], tuple(logits[1:])
        if len(y) == 1:
            alone = tuple(one[0] for one in others)
            return of_one(first[0], y[0], _row(params, 0), _row(start, 0), present[0], alone)[None]
        losses: Tensor = vmap(of_one)(first, y, params, start, present, others)
        return losses


def _clip(gradients: State, largest: float) -> None:
    squares = [gradient.flatten(1).square().sum(1) for gradient in gradients.values()]
    norm = torch.stack(squares).sum(0).sqrt()
    factor = (largest / (norm + 1e-6)).clamp(max=1)
    for gradient in gradients.values():
        gradient.mul_(factor.view(-1, *[1] * (gradient.ndim - 1)))
