"""One run: its settings, and the round loop, the only place where the steps of a round follow each other."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import prism_bench
from prism_bench import costs, registry
from prism_bench.algorithm import Algorithm, Client
from prism_bench.axes import Selection
from prism_bench.capacity import Capacity
from prism_bench.config import Evaluation, Execution, Settings, Training, validate
from prism_bench.data.dataset import Dataset
from prism_bench.errors import BadInput, Diverged, nearest
from prism_bench.evaluate import evaluate
from prism_bench.partition import Partition
from prism_bench.seeds import stream
from prism_bench.submodel import Merge, gather_stacked
from prism_bench.train import Local, train

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


SMALL_STEP = 1e8
"""MACs of a client's local step below which overhead outweighs arithmetic on a CPU, as measured on two cores."""


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
        text = json.dumps(self.as_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def code(self) -> str:
        """A hash of the package's version and of the plugins' own files: an edited method is another run."""
        digest = hashlib.sha256(prism_bench.__version__.encode())
        for section in PLUGINS:
            file = inspect.getsourcefile(getattr(self, section).kind)
            digest.update(Path(file).read_bytes() if file else b"")
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

    @property
    def step_macs(self) -> float:
        """Of a client's local step, forward."""
        return self.client_costs.macs * self.run.training.batch

    def cohort(self, round: int) -> list[Client]:
        """The clients of a round with their keep ratios: the same for every algorithm under one seed."""
        run, total = self.run, len(self.partition)
        dealt = run.capacity.deal(total, stream(run.seed, "capacity", *([round] if run.capacity.redraw else [])))
        chosen = stream(run.seed, "cohort", round).permutation(total)[: run.training.active]
        return [Client(int(number), self.keeps[dealt[number]]) for number in chosen]

    def learning_rate(self, round: int) -> float:
        training = self.run.training
        if training.schedule == "constant":
            return training.lr
        return training.lr * (1 + math.cos(math.pi * round / training.rounds)) / 2

    def rounds(self) -> Iterator[dict[str, Any]]:
        """Run all rounds; yields one record each."""
        for round in range(self.run.training.rounds):
            yield self.round(round)

    def round(self, round: int) -> dict[str, Any]:
        """Select, gather, train, merge, refresh, evaluate."""
        run, algorithm, clock = self.run, self.algorithm, Stopwatch(self.device)
        cohort = self.cohort(round)
        lr = self.learning_rate(round)
        with clock("create"):
            plan = algorithm.select(round, cohort)
            merge = Merge(algorithm.state, algorithm.layout)
        losses = []
        for group in self._groups(cohort, plan):
            with clock("create"):
                selections = [selection for _, selection in group]
                state = gather_stacked(algorithm.state, algorithm.layout, selections)
                work = [
                    Local.plan(self.partition[number], run.training, run.seed, round, number) for number, _ in group
                ]
            with clock("train"):
                losses.append(train(algorithm, state, work, self.data, run.training, lr))
            with clock("merge"):
                for row, selection in enumerate(selections):
                    merge.add(selection, {name: tensor[row] for name, tensor in state.items()})
        loss = torch.cat(losses).mean().item()
        if not math.isfinite(loss):
            raise Diverged(f"the training loss is {loss} in round {round + 1}; a smaller training.lr may help.")
        with clock("merge"):
            merged = merge.result()
        with clock("refresh"):
            if not all(bool(torch.isfinite(tensor).all()) for tensor in merged.values()):
                raise Diverged(f"weights are not finite after round {round + 1}; a smaller training.lr may help.")
            algorithm.finish_round(round, merged)
        record: dict[str, Any] = {"round": round + 1, "lr": lr, "train_loss": loss}
        if (round + 1) % run.evaluation.every == 0 or round + 1 == run.training.rounds:
            with clock("evaluate"):
                record |= self.accuracies()
        return record | {f"seconds_{stage}": seconds for stage, seconds in clock.seconds.items()}

    def accuracies(self) -> dict[str, float]:
        """In %, of the model that the method deploys, of its full model and of the part that was trained."""
        batch = self.run.evaluation.batch
        full = trained = evaluate(self.algorithm.full_model(), self.data, batch)
        part = self.algorithm.trained_part()
        if part is not None:
            trained = evaluate(part, self.data, batch)
        accuracy, loss = full if self.algorithm.deploys == "full" else trained
        return {
            "accuracy": accuracy,
            "accuracy_full": full[0],
            "accuracy_trained": trained[0],
            "test_loss": loss,
        }

    def _groups(
        self, cohort: Sequence[Client], plan: Sequence[Sequence[Selection]]
    ) -> Iterator[list[tuple[int, Selection]]]:
        """Sub-models of equal shapes, as many together as train at once."""
        alike: dict[Any, list[tuple[int, Selection]]] = defaultdict(list)
        for client, selections in zip(cohort, plan, strict=True):
            for selection in selections:
                sizes = tuple(sorted((axis, len(indices)) for axis, indices in selection.items()))
                alike[sizes].append((client.number, selection))
        at_once = clients_at_once(self.execution, self.device, self.step_macs)
        for tasks in alike.values():
            for start in range(0, len(tasks), at_once):
                yield tasks[start : start + at_once]

    def costs(self) -> dict[str, float]:
        """What one client pays in one round, what it would for the full model, and the mean keep ratio behind it."""
        full = {f"full_{name}": value for name, value in asdict(self.full_costs).items()}
        mean = sum(keep * share for keep, share in zip(self.keeps, self.run.capacity.share, strict=True))
        return asdict(self.client_costs) | full | {"keep_ratio": mean}


class Stopwatch:
    """Seconds by stage; waits for the device, so that a stage pays for its own work."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = dict.fromkeys(("create", "train", "merge", "refresh", "evaluate"), 0.0)

    def __call__(self, stage: str) -> Stopwatch:
        self.stage = stage
        return self

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if self.device.type in ("cuda", "mps"):
            getattr(torch, self.device.type).synchronize()
        self.seconds[self.stage] += time.perf_counter() - self.start


def choose_device(wanted: str) -> torch.device:
    """The device of that name; 'auto' takes a GPU where there is one."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return torch.device(next(name for name, there in present.items() if there))
    if not present[wanted]:
        usable = ", ".join(name for name, there in present.items() if there)
        raise BadInput(f"device: '{wanted}' is not available on this machine. Available: {usable}.")
    return torch.device(wanted)


def clients_at_once(execution: Execution, device: torch.device, step_macs: float) -> int:
    """How many clients train in one pass.

    On a CPU, stacking saves the overhead of many small operations and loses once the operations are large enough to
    fill the caches (``tox -e bench``).
    """
    if execution.at_once != "auto":
        return execution.at_once
    if device.type != "cpu":
        return 20
    return 8 if step_macs < SMALL_STEP else 1


@contextmanager
def threads(execution: Execution, step_macs: float) -> Iterator[None]:
    """Use so many threads of the CPU meanwhile.

    With small operations a second thread gains little on an idle machine, and where another program has its core,
    waiting for it made a run 5 to 15 times slower.
    """
    before = torch.get_num_threads()
    auto = 1 if step_macs < SMALL_STEP else before
    torch.set_num_threads(auto if execution.threads == "auto" else execution.threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def split(run: Run, data: Dataset) -> Partition:
    """The run's partition of the training data."""
    labels: np.ndarray = data.train.labels.numpy()
    partition: Partition = run.partition.settings.split(labels, data.writers, stream(run.seed, "partition"))
    return partition
