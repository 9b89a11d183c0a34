"""The round loop: the only place where the steps of a round follow each other."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from prism_bench.base import registry
from prism_bench.base.errors import BadPlugin, Diverged
from prism_bench.core.algorithm import Algorithm, Client, selected
from prism_bench.core.axes import State
from prism_bench.core.seeds import stream
from prism_bench.core.threads import workers
from prism_bench.data.dataset import Dataset
from prism_bench.data.population import Population
from prism_bench.engine import costs
from prism_bench.engine.by_client import ByClient, mixed, worst
from prism_bench.engine.costs import Costs
from prism_bench.engine.evaluate import Evaluated, evaluate, fit
from prism_bench.engine.hardware import Stopwatch, choose_device, clients_at_once
from prism_bench.engine.local import LocalTrainer, clients_side, overrides
from prism_bench.engine.round import Round, Task
from prism_bench.engine.sampler import Known
from prism_bench.engine.sections import Execution
from prism_bench.engine.spec import Run, check_class

if TYPE_CHECKING:
    from prism_bench.engine.executors import Executor, MakeExecutor


class Federation:
    """A run under way on the server: the algorithm, its clients, and what trains them.

    ``executor`` makes what trains the clients, in place of what the settings name.
    """

    def __init__(
        self,
        run: Run,
        data: Dataset,
        population: Population,
        execution: Execution,
        executor: MakeExecutor | None = None,
    ) -> None:
        check_class(run.algorithm.kind)
        self.run, self.population, self.execution = run, population, execution
        self.device = choose_device(execution.device)
        self.data = data.to(self.device)
        self.algorithm: Algorithm = clients_side(run, data)
        dense = run.model.settings.initial(self.algorithm.network, stream(run.seed, "weights"))
        self._start(dense)
        self.about = (data.signature, run.training.passed, run.training.momentum)
        self.full_costs = costs.of_full_model(self.algorithm.network, *self.about)
        self.keeps = run.capacity.keep
        if run.capacity.budget:
            budgets = run.capacity.budget
            self.keeps = tuple(costs.largest_keep(self.algorithm, b, self.full_costs, *self.about) for b in budgets)
        self.algorithm.keeps, self.algorithm.clients = self.keeps, len(population)
        if run.training.fan_in == "thin":
            self._start(self.algorithm.network.thinned(dense, self.algorithm.features()))
        self.expected = {keep: costs.of_client(self.algorithm, keep, *self.about) for keep in self.keeps}
        """What a client of each capacity pays, as long as no round has told."""
        self.charged: dict[float, Counter[str]] = {keep: Counter() for keep in self.keeps}
        """How often clients of each capacity have trained sub-models of which sizes."""
        self.memories: dict[int, dict[int, State]] = {}
        """What clients keep between participations."""
        self.trainer = LocalTrainer(run, self.data, population, self.device, execution.compile)
        self._make_executor = executor

    def _start(self, dense: State) -> None:
        self.algorithm.start({name: tensor.to(self.device) for name, tensor in dense.items()})

    @cached_property
    def executor(self) -> Executor:
        """What trains the clients, started when it is first needed."""
        make = self._make_executor or registry.load("executors", self.execution.executor, "execution.on").make
        largest = max(one.activation_bytes + 2 * one.transfer_bytes for one in self.expected.values())
        return make(self.trainer, self.execution, clients_at_once(self.execution, self.device, largest))

    def stop(self) -> None:
        """End what was started to train clients."""
        if "executor" in self.__dict__:
            self.executor.close()

    @property
    def step_macs(self) -> float:
        """MACs of the forward pass of a client's local step."""
        return self.client_costs.macs * self.run.training.batch

    @property
    def client_costs(self) -> Costs:
        """What a client is expected to pay per round."""
        return self._mean(self.expected)

    @cached_property
    def known(self) -> Known:
        """What a sampler knows of the clients that may take part."""
        sizes, dealt = self.population.sizes, None if self.run.capacity.redraw else self.dealt
        if self.eligible is not None and dealt is not None:
            sizes, dealt = sizes[self.eligible], dealt[self.eligible]
        return Known(sizes, dealt, self.keeps)

    @cached_property
    def able(self) -> np.ndarray:
        """Whether clients of each capacity take part."""
        able = np.array([self.algorithm.takes_part(keep) for keep in self.keeps])
        if not able.any():
            raise BadPlugin(f"{self.run.algorithm.name}: `takes_part` leaves every client out.")
        return able

    @cached_property
    def eligible(self) -> np.ndarray | None:
        """The clients that may take part, where the method leaves some out."""
        if self.able.all() or self.run.capacity.redraw:
            return None
        return np.flatnonzero(self.able[self.dealt])

    @cached_property
    def by_client(self) -> ByClient:
        """How good a model is for each client."""
        return ByClient(self.data, self.population)

    @cached_property
    def dealt(self) -> np.ndarray:
        """The capacity that each client of the population keeps, by its number among `keeps`."""
        return self.run.capacity.deal(len(self.population), stream(self.run.seed, "capacity"))

    def cohort(self, round: int) -> list[Client]:
        """The clients of a round with their keep ratios: the same for every algorithm under one seed."""
        run, total = self.run, len(self.population)
        active = min(run.training.active, len(self.known))
        chosen = run.sampler.settings.draw(active, self.known, stream(run.seed, "cohort", round))
        if len(set(chosen.tolist())) != active:
            raise BadPlugin(f"{run.sampler.name}: drew {chosen!r}, not {active} distinct clients.")
        chosen = chosen if self.eligible is None else self.eligible[chosen]
        if run.capacity.redraw:
            dealt = run.capacity.deal_some(active, total, stream(run.seed, "redraw", round), self.able)
            chosen = chosen[: len(dealt)]
        else:
            dealt = self.dealt[chosen]
        return [
            Client(int(number), self.keeps[capacity], self.population.size(number))
            for number, capacity in zip(chosen, dealt, strict=True)
        ]

    def rounds(self, first: int = 0) -> Iterator[dict[str, Any]]:
        """Run all rounds, or from ``first`` on; yields one record per round."""
        for round in range(first, self.run.training.rounds):
            yield self.round(round)

    def round(self, round: int) -> dict[str, Any]:
        """Select, gather, train, merge, refresh, evaluate."""
        return self.carry_out(self.open(round))

    def open(self, round: int) -> Round:
        """Draw the round's clients and select what each trains."""
        clock = Stopwatch(self.device)
        cohort = self.cohort(round)
        if overrides(self.algorithm, "report"):
            with clock("train"):
                reports = self.executor.report([client.number for client in cohort])
            cohort = [replace(client, report=report) for client, report in zip(cohort, reports, strict=True)]
        with clock("create"):
            plan = selected(self.algorithm, round, cohort)
            tasks = [
                Task(client, selection, part, self.memories.get(client.number, {}).get(part, {}))
                for client, selections in zip(cohort, plan, strict=True)
                for part, selection in enumerate(selections)
            ]
            weights = {client.number: self._weight(client) for client in cohort}
            opened = Round(round, cohort, tasks, self.algorithm, weights, clock)
            opened.sizes = self._sizes(opened)
            opened.costs = [self._price(sizes) for sizes in opened.sizes]
            return opened

    def carry_out(self, opened: Round) -> dict[str, Any]:
        """Train what was selected, and close the round."""
        with opened.clock("train"):
            for trained in self.executor.train(opened):
                opened.add(trained)
        return self.close(opened)

    def close(self, opened: Round) -> dict[str, Any]:
        """Take over what came back, evaluate, and say how the round went."""
        run, round, clock = self.run, opened.number, opened.clock
        loss = torch.cat(opened.losses).mean().item()
        if not math.isfinite(loss):
            raise Diverged(f"the training loss is {loss} in round {round + 1}; a smaller training.lr may help.")
        with clock("merge"):
            merged = opened.merge.result()
        with clock("refresh"):
            self._check_finite(merged, round)
            self.algorithm.finish_round(round, merged)
            self._check_finite(self.algorithm.checkpoint(), round)
        for client, sizes in zip(opened.cohort, opened.sizes, strict=True):
            self.charged[client.keep][sizes] += 1
        for number, kept in opened.memories.items():
            parts = {**self.memories.pop(number, {}), **kept}
            if left := {part: memory for part, memory in parts.items() if memory}:
                self.memories[number] = left
        record: dict[str, Any] = {"round": round + 1, "lr": self.trainer.learning_rate(round), "train_loss": loss}
        last = round + 1 == run.training.rounds
        if (round + 1) % run.evaluation.every == 0 or last:
            with clock("evaluate"):
                record |= self.accuracies()
            loss_there = record[f"{run.evaluation.on}_loss"]
            if not math.isfinite(loss_there):  # whatever is deployed gives no answer
                raise Diverged(f"the deployed model's loss is {loss_there} after round {round + 1}.")
            if run.evaluation.probes:
                views = {name: registry.load("views", name, "evaluation.probes") for name in run.evaluation.probes}
                record["probes"] = {
                    n: view.record(self, opened) for n, view in views.items() if last or not view.at_end
                }
        return record | {f"seconds_{stage}": seconds for stage, seconds in clock.seconds.items()}

    @staticmethod
    def _check_finite(values: Any, round: int) -> None:
        """Diverged where a number among nested values is none."""
        if isinstance(values, Mapping):
            values = values.values()
        elif not isinstance(values, (list, tuple)):
            if isinstance(values, torch.Tensor) and not bool(torch.isfinite(values).all()):
                raise Diverged(f"weights are not finite after round {round + 1}; a smaller training.lr may help.")
            return
        for value in values:
            Federation._check_finite(value, round)

    def accuracies(self) -> dict[str, float]:
        """In %, of the model that the method deploys, of its full model and of the part that was trained; then of what
        a client of each capacity would run, and of the worst tenth of the clients with that."""
        full = trained = self.evaluate(self.algorithm.full_model())
        part = self.algorithm.trained_part()
        if part is not None:
            trained = self.evaluate(part)
        deployed = full if self.algorithm.deploys == "full" else trained
        whole = not self.run.algorithm.kind.cuts
        each = [full if whole else self.evaluate(self.algorithm.client_model(keep)) for keep in self.keeps]
        theirs = [self.by_client.accuracies(one.correct) for one in each]
        own = mixed(theirs, None if self.run.capacity.redraw else self.dealt, self.run.capacity.share)
        return {
            "accuracy": deployed.accuracy,
            "accuracy_full": full.accuracy,
            "accuracy_trained": trained.accuracy,
            **{f"accuracy_client_{number}": one.accuracy for number, one in enumerate(each, start=1)},
            "accuracy_worst": worst(own),
            f"{self.run.evaluation.on}_loss": deployed.loss,
        }

    def evaluate(self, model: Any) -> Evaluated:
        """How a server model does on the test set."""
        # Compiled code is shared by threads that would get in each other's way.
        count = 1 if self.execution.compile else workers(self.device)
        how = (self.run.evaluation.batch, count, self.run.training.precision)
        statistics = fit(model, self.data, *how) if self.algorithm.network.static else None
        return evaluate(model, self.data, *how, statistics)

    def dense_weights(self) -> State | None:
        """The full model's weights; None where the server's model is no single network (an ensemble)."""
        state = self.algorithm.full_model().state
        shapes = {name: tensor.shape for name, tensor in self.algorithm.network.named_parameters()}
        return state if all(name in state and state[name].shape == shape for name, shape in shapes.items()) else None

    def costs(self) -> dict[str, float]:
        """What one client pays per round, what it would for the full model, and the mean keep ratio behind it.

        The mean over the clients of each capacity that took part, and over the capacities by their shares.
        """
        paid = {}
        for keep, sizes in self.charged.items():
            prices = [self._price(key) for key in sizes]
            shares = [count / sizes.total() for count in sizes.values()]
            paid[keep] = costs.average(prices, shares) if prices else self.expected[keep]
        full = {f"full_{name}": value for name, value in asdict(self.full_costs).items()}
        mean = sum(keep * share for keep, share in zip(self.keeps, self._shares, strict=True))
        return asdict(self._mean(paid)) | full | {"keep_ratio": mean}

    def checkpoint(self) -> dict[str, Any]:
        """All that the next round and the summary depend on, as tensors and plain values."""
        return {
            "algorithm": self.algorithm.checkpoint(),
            "charged": {str(keep): dict(sizes) for keep, sizes in self.charged.items()},
            "memories": self.memories,
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from what `checkpoint` gave."""
        self.algorithm.restore(saved["algorithm"])
        self.charged = {keep: Counter(saved["charged"][str(keep)]) for keep in self.keeps}
        self.memories = {
            client: {
                part: {name: tensor.to(self.device) for name, tensor in memory.items()}
                for part, memory in parts.items()
            }
            for client, parts in saved["memories"].items()
        }

    def _weight(self, client: Client) -> Any:
        own = self.algorithm.weight(client)
        if own is not None:
            return own
        return float(client.samples) if self.run.training.weights == "samples" else 1.0

    def _sizes(self, opened: Round) -> list[str]:
        """What each client's costs follow from: the sizes of its sub-models, and the bytes of its report."""
        parts: dict[int, list[dict[str, int]]] = {client.number: [] for client in opened.cohort}
        for task in opened.tasks:
            parts[task.client.number].append(task.sizes)
        reports = [sum(tensor.nbytes for tensor in client.report.values()) for client in opened.cohort]
        return [json.dumps([parts[client.number], sent]) for client, sent in zip(opened.cohort, reports, strict=True)]

    @cached_property
    def _prices(self) -> dict[str, Costs]:
        return {}

    def _price(self, key: str) -> Costs:
        if key not in self._prices:
            sizes, report = json.loads(key)
            price = costs.of_sizes(self.algorithm, sizes, *self.about)
            self._prices[key] = replace(price, transfer_bytes=price.transfer_bytes + report)
        return self._prices[key]

    def _mean(self, paid: dict[float, Costs]) -> Costs:
        return costs.average([paid[keep] for keep in self.keeps], self._shares)

    @cached_property
    def _shares(self) -> Sequence[float]:
        """Of the clients that take part, those of each capacity."""
        shares: list[float] = (np.array(self.run.capacity.share) * self.able).tolist()
        return self.run.capacity.share if self.able.all() else [share / sum(shares) for share in shares]


def split(run: Run, data: Dataset) -> Population:
    """The run's partition of the training data."""
    labels: np.ndarray = data.train.labels.numpy()
    population: Population = run.partition.settings.split(labels, data.owners, stream(run.seed, "partition"))
    return population
