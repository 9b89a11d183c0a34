"""One run: its settings, and the round loop, the only place where the steps of a round follow each other."""

from __future__ import annotations

import hashlib
import inspect
import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import record_function

import prism_bench
from prism_bench import costs, registry
from prism_bench.algorithm import Algorithm, Client, Forward, compute
from prism_bench.axes import Selection, State
from prism_bench.capacity import Capacity
from prism_bench.config import Evaluation, Execution, Settings, Training, identity, validate
from prism_bench.data.dataset import Dataset
from prism_bench.errors import BadInput, Diverged, nearest
from prism_bench.evaluate import evaluate
from prism_bench.partition import Partition
from prism_bench.probes import PROBES
from prism_bench.processor import in_threads, workers
from prism_bench.seeds import stream
from prism_bench.submodel import Merge, gather_stacked
from prism_bench.train import Local, stacked, train

PLUGINS: Mapping[str, registry.Kind] = {
    "data": "datasets",
    "partition": "partitions",
    "model": "models",
    "algorithm": "algorithms",
}
SECTIONS: Mapping[str, type[Settings]] = {
    "capacity": Capacity,
    "training": Training,
    "evaluation": Evaluation,
}


DECIDING = (
    *(f"{module}.py" for module in ("algorithm", "axes", "capacity", "evaluate", "orthogonal", "rounds", "seeds")),
    *("submodel.py", "train.py", "partition.py", "data/dataset.py", "models/layers.py", "models/network.py"),
)
"""The harness's own modules that decide a run's numbers, beside the plugins'."""

CACHED = 2**21
"""Bytes of a client's training up to which stacking clients pays on a CPU; measured on one with 1 MiB of L2 cache."""


@dataclass(frozen=True)
class Plugin:
    """A chosen plugin with its validated settings."""

    name: str
    settings: Any
    kind: Any

    @classmethod
    def choose(cls, section: str, value: Any) -> Plugin:
        """From ``name`` or ``{name: ..., setting: ...}``."""
        values = cls.given(section, value)
        kind = registry.load(PLUGINS[section], values["name"], f"{section}.name")
        params = kind.Params if section == "algorithm" else kind
        settings = validate(params, {key: v for key, v in values.items() if key != "name"}, section)
        return cls(values["name"], settings, kind)

    @staticmethod
    def given(section: str, value: Any) -> dict[str, Any]:
        """The long form of what was given: ``{name: ..., setting: ...}``."""
        values = {"name": value} if isinstance(value, str) else value
        if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
            raise BadInput(f"{section}: needs a name, alone or as 'name:' with settings beside it (got {value!r}).")
        return dict(values)

    @property
    def variant(self) -> str:
        """The settings that were given, where not all are the defaults."""
        return " ".join(f"{key}={value}" for key, value in self.settings.model_dump(exclude_unset=True).items())

    @property
    def label(self) -> str:
        return f"{self.name} {self.variant}".rstrip()

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, **self.settings.model_dump(mode="json")}


@dataclass(frozen=True)
class Run:
    """All that decides a run's numbers, resolved and validated."""

    seed: int
    data: Plugin
    partition: Plugin
    model: Plugin
    algorithm: Plugin
    capacity: Capacity
    training: Training
    evaluation: Evaluation

    @classmethod
    def resolve(cls, tree: Mapping[str, Any]) -> Run:
        """From a nested mapping, as a YAML file gives it."""
        for key in tree:
            if key not in {*PLUGINS, *SECTIONS, "seed"}:
                raise BadInput(f"{key}: there is no such setting. {nearest(key, [*PLUGINS, *SECTIONS])}")
        for section in PLUGINS:
            if section not in tree:
                raise BadInput(f"{section}: is missing.")
        plugins = {section: Plugin.choose(section, tree[section]) for section in PLUGINS}
        sections = {key: validate(kind, tree.get(key) or {}, key) for key, kind in SECTIONS.items()}
        if not plugins["algorithm"].kind.cuts:
            sections["capacity"] = Capacity()
        run = cls(seed=tree.get("seed", 0), **plugins, **sections)  # type: ignore[arg-type]
        if run.training.active > run.partition.settings.clients:
            raise BadInput(
                f"training.active: {run.training.active} active clients a round, but partition.clients is only "
                f"{run.partition.settings.clients}."
            )
        return run

    def as_dict(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            **{section: getattr(self, section).as_dict() for section in PLUGINS},
            **{section: getattr(self, section).model_dump(mode="json") for section in SECTIONS},
        }

    @property
    def identity(self) -> str:
        """Equal for equal settings, and for those only."""
        return identity(self.as_dict())

    def code(self) -> str:
        """A hash of all code that decides the numbers, and of weights to start from: edited, it is another run."""
        digest = hashlib.sha256(prism_bench.__version__.encode())
        for section in PLUGINS:
            file = inspect.getsourcefile(getattr(self, section).kind)
            digest.update(Path(file).read_bytes() if file else b"")
        for module in DECIDING:
            digest.update((Path(__file__).parent / module).read_bytes())
        digest.update(self.model.settings.content())
        return digest.hexdigest()[:8]

    @property
    def label(self) -> str:
        """For people: what is running."""
        keep = f" at {self.capacity.label}" if self.algorithm.kind.cuts else ""
        return f"{self.algorithm.label}{keep}, seed {self.seed}"


class Federation:
    """A run under way: the algorithm, its clients and their data."""

    def __init__(self, run: Run, data: Dataset, partition: Partition, execution: Execution) -> None:
        self.run, self.partition, self.execution = run, partition, execution
        self.device = choose_device(execution.device)
        self.data = data.to(self.device)
        network = run.model.settings.build(data.signature)
        dense = run.model.settings.initial(network, stream(run.seed, "weights"))
        self.full_costs = costs.of_full_model(network, data.signature, run.training.batch)
        self.algorithm: Algorithm = run.algorithm.kind(
            run.algorithm.settings,
            network,
            {name: tensor.to(self.device) for name, tensor in dense.items()},
            run.seed,
        )
        about = (data.signature, run.training.batch)
        self.keeps = run.capacity.keep
        if run.capacity.budget:
            budgets = run.capacity.budget
            self.keeps = tuple(costs.largest_keep(self.algorithm, b, self.full_costs, *about) for b in budgets)
        self.algorithm.keeps = self.keeps
        each = [costs.of_client(self.algorithm, keep, *about) for keep in self.keeps]
        self.client_costs = costs.average(each, run.capacity.share)
        largest = max(one.activation_bytes + 2 * one.transfer_bytes for one in each)
        self.at_once = clients_at_once(execution, self.device, largest)
        self._forwards: dict[Any, Forward] = {}

    @property
    def step_macs(self) -> float:
        """Of a client's local step, forward."""
        return self.client_costs.macs * self.run.training.batch

    def cohort(self, round: int) -> list[Client]:
        """The clients of a round with their keep ratios: the same for every algorithm under one seed."""
        run, total, active = self.run, len(self.partition), self.run.training.active
        # Each draw costs what the active clients do, however many there are in all.
        chosen = stream(run.seed, "cohort", round).choice(total, active, replace=False)
        if run.capacity.redraw:
            dealt = run.capacity.deal_some(active, total, stream(run.seed, "capacity", round))
        else:
            dealt = self.dealt[chosen]
        return [Client(int(number), self.keeps[capacity]) for number, capacity in zip(chosen, dealt, strict=True)]

    @cached_property
    def dealt(self) -> np.ndarray:
        """The capacity that each client of the population keeps, by its number among `keeps`."""
        return self.run.capacity.deal(len(self.partition), stream(self.run.seed, "capacity"))

    def learning_rate(self, round: int) -> float:
        training = self.run.training
        if training.schedule == "constant":
            return training.lr
        return training.lr * (1 + math.cos(math.pi * round / training.rounds)) / 2

    def rounds(self, first: int = 0) -> Iterator[dict[str, Any]]:
        """Run all rounds, or from ``first`` on; yields one record each."""
        for round in range(first, self.run.training.rounds):
            yield self.round(round)

    def round(self, round: int) -> dict[str, Any]:
        """Select, gather, train, merge, refresh, evaluate."""
        opened = self.open(round)
        with opened.clock("train"):
            for tasks, state, losses in self.trained(opened):
                opened.add(tasks, state, losses)
        return self.close(opened)

    def trained(self, opened: Round) -> Iterator[tuple[list[Task], State, Tensor]]:
        """Sub-models of the round's tasks after training, group by group in their order.

        A group that the device has no memory for is done again from the start, half as many clients at a time, and so
        are all that follow.
        """
        stop = threading.Event()

        def work(group: tuple[list[Task], State]) -> list[tuple[list[Task], State, Tensor]]:
            tasks, state = group
            try:
                return [(tasks, state, self.train(opened.number, [task.client for task in tasks], state, stop))]
            except torch.OutOfMemoryError:
                if len(tasks) == 1:
                    raise
            del group, state
            self.at_once = -(-len(tasks) // 2)
            halves = (tasks[: self.at_once], tasks[self.at_once :])
            return [done for half in halves for done in work((half, opened.gather(half)))]

        groups = list(self.groups(opened.tasks))
        states = ((tasks, opened.gather(tasks)) for tasks in groups)
        return chain.from_iterable(in_threads(work, states, min(len(groups), self.workers), stop))

    def open(self, round: int) -> Round:
        """Draw the round's clients and select what each trains."""
        clock = Stopwatch(self.device)
        cohort = self.cohort(round)
        with clock("create"):
            plan = self.algorithm.select(round, cohort)
            pairs = zip(cohort, plan, strict=True)
            tasks = [Task(client.number, selection) for client, selections in pairs for selection in selections]
            return Round(round, tasks, self.algorithm, clock)

    def train(self, round: int, clients: Sequence[int], state: State, stop: threading.Event | None = None) -> Tensor:
        """Train stacked sub-models in place, one a client; returns their losses. Server's tensors are not read."""
        run = self.run
        work = [Local.plan(self.partition[client], run.training, run.seed, round, client) for client in clients]
        forward = self.forward({name: tuple(tensor.shape[1:]) for name, tensor in state.items()})
        lr = self.learning_rate(round)
        return train(self.algorithm, state, work, self.data, run.training, lr, forward=forward, stop=stop)

    def forward(self, shapes: dict[str, tuple[int, ...]]) -> Forward:
        """Of the algorithm's equivalent forwards, the one of least MACs for a sub-model of these shapes; stacked."""
        key = tuple(shapes.values())
        if key not in self._forwards:
            about = (shapes, self.data.signature, self.run.training.batch)
            ways = self.algorithm.equivalents()
            best = min(ways, key=lambda way: costs.measure(way, *about).macs) if len(ways) > 1 else ways[0]
            forward = stacked(compute(best, self.run.training.precision))
            self._forwards[key] = torch.compile(forward) if self.execution.compile else forward
        return self._forwards[key]

    @property
    def workers(self) -> int:
        """How many groups of clients, or batches of the test, are computed side by side."""
        return 1 if self.execution.compile else workers(self.device)

    def close(self, opened: Round) -> dict[str, Any]:
        """Take over what came back, evaluate, and say how the round went."""
        run, round, clock = self.run, opened.number, opened.clock
        loss = torch.cat(opened.losses).mean().item()
        if not math.isfinite(loss):
            raise Diverged(f"the training loss is {loss} in round {round + 1}; a smaller training.lr may help.")
        with clock("merge"):
            merged = opened.merge.result()
        with clock("refresh"):
            if not all(bool(torch.isfinite(tensor).all()) for tensor in merged.values()):
                raise Diverged(f"weights are not finite after round {round + 1}; a smaller training.lr may help.")
            self.algorithm.finish_round(round, merged)
        record: dict[str, Any] = {"round": round + 1, "lr": self.learning_rate(round), "train_loss": loss}
        if (round + 1) % run.evaluation.every == 0 or round + 1 == run.training.rounds:
            with clock("evaluate"):
                record |= self.accuracies()
            if run.evaluation.probes:
                record["probes"] = self.probe(opened)
        return record | {f"seconds_{stage}": seconds for stage, seconds in clock.seconds.items()}

    def accuracies(self) -> dict[str, float]:
        """In %, of the model that the method deploys, of its full model and of the part that was trained."""
        how = (self.data, self.run.evaluation.batch, self.workers, self.run.training.precision)
        full = trained = evaluate(self.algorithm.full_model(), *how)
        part = self.algorithm.trained_part()
        if part is not None:
            trained = evaluate(part, *how)
        accuracy, loss = full if self.algorithm.deploys == "full" else trained
        return {
            "accuracy": accuracy,
            "accuracy_full": full[0],
            "accuracy_trained": trained[0],
            "test_loss": loss,
        }

    def probe(self, opened: Round) -> dict[str, Any]:
        """The rows of every probe that was asked for; pictures at the end only."""
        last = opened.number + 1 == self.run.training.rounds
        wanted = [name for name in self.run.evaluation.probes if last or name != "features"]
        return {name: PROBES[name](self, opened) for name in wanted}

    def groups(self, tasks: Sequence[Task]) -> Iterator[list[Task]]:
        """Sub-models of equal shapes, as many together as train at once; the order in which they are merged."""
        alike: dict[Any, list[Task]] = defaultdict(list)
        for task in tasks:
            alike[tuple(sorted((axis, len(indices)) for axis, indices in task.selection.items()))].append(task)
        for equal in alike.values():
            for start in range(0, len(equal), self.at_once):
                yield equal[start : start + self.at_once]

    def costs(self) -> dict[str, float]:
        """What one client pays in one round, what it would for the full model, and the mean keep ratio behind it."""
        full = {f"full_{name}": value for name, value in asdict(self.full_costs).items()}
        mean = sum(keep * share for keep, share in zip(self.keeps, self.run.capacity.share, strict=True))
        return asdict(self.client_costs) | full | {"keep_ratio": mean}


@dataclass(frozen=True)
class Task:
    """One sub-model that a client trains in a round."""

    client: int
    selection: Selection


class Round:
    """A round under way on the server: what its clients train, and what has come back."""

    def __init__(self, number: int, tasks: list[Task], algorithm: Algorithm, clock: Stopwatch) -> None:
        self.number, self.tasks, self.clock = number, tasks, clock
        self.merge = Merge(algorithm.state, algorithm.layout)
        self.losses: list[Tensor] = []

    def gather(self, tasks: Sequence[Task]) -> State:
        """The tasks' sub-models, of equal shapes, stacked: copies, and all that clients get of the server's tensors."""
        with self.clock("create"):
            return gather_stacked(self.merge.state, self.merge.layout, [task.selection for task in tasks])

    def add(self, tasks: Sequence[Task], state: State, losses: Tensor) -> None:
        """Take in stacked sub-models after training. The order of the tasks shows in the last digits of the sums."""
        with self.clock("merge"):
            for row, task in enumerate(tasks):
                self.merge.add(task.selection, {name: tensor[row] for name, tensor in state.items()})
        self.losses.append(losses)


class Stopwatch:
    """Seconds by stage; waits for the device, so that a stage pays for its own work. One within another stops it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = dict.fromkeys(("create", "train", "merge", "refresh", "evaluate"), 0.0)
        self.inside: list[str] = []
        self.since = 0.0

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        self._charge()
        self.inside.append(stage)
        try:
            with record_function(stage):  # its name in a trace
                yield
        finally:
            self._charge()
            self.inside.pop()

    def _charge(self) -> None:
        if self.device.type in ("cuda", "mps"):
            getattr(torch, self.device.type).synchronize()
        now = time.perf_counter()
        if self.inside:
            self.seconds[self.inside[-1]] += now - self.since
        self.since = now


def choose_device(wanted: str) -> torch.device:
    """The device of that name; 'auto' takes a GPU where there is one."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return torch.device(next(name for name, there in present.items() if there))
    if not present[wanted]:
        usable = ", ".join(name for name, there in present.items() if there)
        raise BadInput(f"device: '{wanted}' is not available on this machine. Available: {usable}.")
    return torch.device(wanted)


def clients_at_once(execution: Execution, device: torch.device, client_bytes: float) -> int:
    """How many clients train in one pass, where each takes so many bytes.

    On a CPU, stacking saves the overhead of many small operations and loses once they no longer fit into the caches
    (``tox -e bench``). On a GPU as many as fit into half of the memory that is free.
    """
    if execution.at_once != "auto":
        return execution.at_once
    if device.type == "cpu":
        return 8 if client_bytes < CACHED else 1
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 2**32
    return max(1, min(64, int(free / 2 / client_bytes)))


def split(run: Run, data: Dataset) -> Partition:
    """The run's partition of the training data."""
    labels: np.ndarray = data.train.labels.numpy()
    partition: Partition = run.partition.settings.split(labels, data.writers, stream(run.seed, "partition"))
    return partition
