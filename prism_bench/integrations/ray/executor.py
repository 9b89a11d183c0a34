"""Clients train in Ray's actors, on one machine or many. One that is lost is replaced, and its tasks are done again."""

from __future__ import annotations

import copy
import heapq
import math
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from prism_bench.base.settings import Settings
from prism_bench.base.system import end_with
from prism_bench.core.algorithm import Client
from prism_bench.core.axes import State
from prism_bench.engine.executors import Executor
from prism_bench.engine.hardware import choose_device, keep_memory
from prism_bench.engine.local import LocalTrainer
from prism_bench.engine.round import Round, Task, Trained
from prism_bench.engine.sections import Execution
from prism_bench.harness.run_folder import environment
from prism_bench.integrations.ray import cluster

Arrays = dict[str, np.ndarray]
"""Tensors on their way: Ray moves an array's bytes as they are."""
Sent = tuple[list[tuple[Client, Arrays]], Arrays]
"""A group of tasks as it is sent: each one's client with what that keeps, and their stacked sub-models."""
Came = tuple[Arrays, np.ndarray, list[Arrays]]
"""A group as it comes back: what was trained, the losses, and what each client keeps."""

WORTH = 2**20
"""Bytes of sub-models that are worth a message of their own; smaller ones are sent together."""
TO_BEGIN = 10
"""So many times as long as for a node is a worker waited for that a node has room for: it may be busy, or slow."""
AHEAD = 4
"""So many messages per worker may be done ahead of one that is waited for: what they brought is held meanwhile."""


class RayExecutor(Executor):
    """Clients train in Ray's actors, on this machine or on a cluster's. An actor or node that is lost is replaced, and
    its tasks are done again.
    """

    class Params(Settings):
        workers: PositiveInt | Literal["auto"] = Field("auto", description="actors; auto: as many as there is room for")
        cpus: PositiveFloat = Field(1, description="CPUs that Ray sets aside for each; a worker trains by one thread")
        gpus: NonNegativeFloat = Field(
            0, description="GPUs for each, or a fraction of one; 0: clients train on the CPU"
        )
        address: str | None = Field(
            None,
            description="of the cluster: auto, HOST:PORT or local; none: RAY_ADDRESS, else a Ray of this machine alone",
        )
        limit: PositiveFloat = Field(
            600, description="seconds without a word after which a worker with tasks counts as lost"
        )
        patience: PositiveFloat = Field(
            cluster.PATIENCE, description="seconds to wait for a worker where there is none, before the run fails"
        )

    elsewhere = True

    TRIES = 3
    """So many workers may be lost over the same tasks, or in a row before they are ready."""

    def __init__(self, trainer: LocalTrainer, execution: Execution, at_once: int, params: Any = None) -> None:
        super().__init__(trainer, execution, at_once, params)
        self._crew: list[_Worker] = []
        self._count = 0
        self._connected = False
        self._stillborn = 0
        self._trainer: Any = None
        """The trainer among Ray's objects: every node gets it once."""

    @classmethod
    def settings(cls, execution: Execution) -> Any:
        cluster.needs_ray("execution.on")
        return super().settings(execution)

    def train(self, round: Round) -> Iterator[Trained]:
        before = torch.get_num_threads()
        try:
            # What the caller does meanwhile would take the cores of workers beside it, mostly to wait for each other.
            torch.set_num_threads(1)
            yield from self._train(round)
        finally:
            torch.set_num_threads(before)

    def _train(self, round: Round) -> Iterator[Trained]:
        groups = list(round.groups(self.at_once))
        messages = self.messages(round, groups)
        self._start()
        for worker in self._crew:
            worker.under_way.clear()  # of a round that was left in the middle
        waiting, came = list(range(len(messages))), {}
        losses: Counter[int] = Counter()
        done, since = 0, time.monotonic()
        while done < len(messages):
            for worker in self._crew:
                while len(worker.under_way) < 2 and worker.ready and waiting:
                    if waiting[0] >= done + AHEAD * self._count:
                        break
                    place = heapq.heappop(waiting)
                    worker.send(place, round.number, [self.pack(round, groups[number]) for number in messages[place]])
            for worker, about, answer in self._hear():
                if isinstance(answer, Lost):
                    for again in worker.under_way.values():
                        heapq.heappush(waiting, again)
                    self._replace(worker, round, losses, answer)
                elif about is None:
                    self._welcome(answer)
                else:
                    came[about] = answer
            if any(worker.ready for worker in self._crew):
                since = time.monotonic()
            elif (alone := time.monotonic() - since) > self.params.patience:
                self._give_up(round, alone)
            while done in came:
                for number, group in zip(messages[done], came.pop(done), strict=True):
                    yield self._unpack(groups[number], group)
                done += 1

    def messages(self, round: Round, groups: Sequence[Sequence[Task]]) -> list[list[int]]:
        """Which groups are sent together: in their order, enough for a message, and few enough for all to have some."""
        self._start()
        most = max(1, len(groups) // (2 * self._count))
        found: list[list[int]] = []
        size = math.inf
        for number, tasks in enumerate(groups):
            each = sum(round.costs[0].transfer_bytes for _ in tasks) / 2
            if size + each > WORTH or len(found[-1]) >= most:
                found.append([])
                size = 0
            found[-1].append(number)
            size += each
        return found

    def pack(self, round: Round, tasks: Sequence[Task]) -> Sent:
        """What a group of tasks sends: their sub-models, and nothing else of the server's tensors."""
        # What a client told the server is the server's now.
        clients = [(replace(task.client, report={}), _arrays(task.memory)) for task in tasks]
        return clients, _arrays(round.gather(tasks))

    def _unpack(self, tasks: Sequence[Task], came: Came) -> Trained:
        device = self.trainer.device
        state, losses, memories = came
        kept = [_tensors(memory, device) for memory in memories]
        return Trained(tasks, _tensors(state, device), torch.tensor(losses, device=device), kept)

    # Workers ----------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._crew:
            return
        each, count = self.params.cpus, self.params.workers
        self._connected = cluster.connect(self.params.address, each * (1 if count == "auto" else count))
        import ray  # only now: what is said to a Ray of this machine alone is read when it is imported

        cluster.check_room(each, self.params.gpus, "execution.on")
        self._count = cluster.places(each, self.params.gpus) if count == "auto" else int(count)
        # The copy holds nothing on a device that another node may not have.
        self._trainer = ray.put(_on(self.trainer, torch.device("cpu")))
        self._crew = [self._hire() for _ in range(self._count)]

    def _hire(self) -> _Worker:
        import ray

        how = {"num_cpus": self.params.cpus, "num_gpus": self.params.gpus, "scheduling_strategy": "SPREAD"}
        actor = ray.remote(Trainer).options(**how).remote()
        # In a list, so that it is a name and not yet the object: where loading fails, the worker can say why.
        return _Worker(actor, actor.hello.remote([self._trainer], self.params.gpus, self.trainer.device.type))

    def _hear(self) -> list[tuple[_Worker, int | None, Any]]:
        """What workers say within a second: which one, about which message (None: it is ready), and the answer."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        of = {ref: worker for worker in self._crew for ref in worker.awaited}
        finished, _ = ray.wait(list(of), num_returns=1, timeout=1.0)
        heard: list[tuple[_Worker, int | None, Any]] = []
        lost: set[int] = set()
        for ref in finished:
            worker = of[ref]
            try:
                answer = ray.get(ref)
            except RayTaskError as error:
                if isinstance(error.cause, Exception):
                    raise error.cause from error
                raise
            except RayError as error:
                if id(worker) not in lost:
                    lost.add(id(worker))
                    heard.append((worker, None, Lost(str(error).partition("\n")[0])))
                continue
            heard.append((worker, worker.take(ref), answer))
        for worker in self._crew:
            if worker.under_way and time.monotonic() - worker.heard > self.params.limit and id(worker) not in lost:
                text = f"a worker said nothing for {self.params.limit:g} s (execution.on.limit)"
                heard.append((worker, None, Lost(text)))
        return heard

    def _replace(self, worker: _Worker, round: Round, losses: Counter[int], why: Lost) -> None:
        """Put another worker in the place of one that is lost, unless too many were."""
        worker.end()
        first = next(iter(worker.under_way.values()), None)
        if first is not None:
            losses[first] += 1
        elif not worker.ready:
            self._stillborn += 1
        times = losses[first] if first is not None else self._stillborn
        if times >= self.TRIES:
            what = "over the same tasks" if first is not None else "before they were ready"
            raise RuntimeError(
                f"Ray workers were lost {times} times {what} in round {round.number + 1}, the last one so: {why}. "
                "Memory may have run out; fewer workers, more execution.on.cpus for each, or a smaller "
                "execution.at_once may help."
            )
        self._crew[self._crew.index(worker)] = self._hire()

    def _give_up(self, round: Round, alone: float) -> None:
        """Without a worker for longer than patience lasts: for long where nodes may be busy or starting one."""
        nowhere = cluster.places(self.params.cpus, self.params.gpus) == 0
        if nowhere or alone > TO_BEGIN * self.params.patience:
            why = "no node has room for one" if nowhere else "others have them all, or none gets ready"
            raise RuntimeError(
                f"round {round.number + 1}: the Ray cluster has given no worker with {self.params.cpus:g} CPUs and "
                f"{self.params.gpus:g} GPUs for {alone:.0f} s; {why} (execution.on.patience: "
                f"{self.params.patience:g}). Finished rounds are kept; the same command goes on from there."
            )

    def _welcome(self, there: dict[str, Any]) -> None:
        """Compare a new worker's code and conditions with this process's."""
        self._stillborn = 0
        here = conditions(self.trainer)
        for key in ("code", "prism_bench"):
            if there[key] != here[key]:
                raise RuntimeError(
                    f"node {there['node']} has other code of this package or of a plugin: {key} is {there[key]}, here "
                    f"{here[key]}. Install the same on all nodes."
                )
        differ = [f"{key} {there[key]}, here {here[key]}" for key in TELLING if there[key] != here[key]]
        if differ:
            text = f"the Ray node {there['node']} differs ({'; '.join(differ)}): the last digits may, too."
            warnings.warn(text, stacklevel=2)

    def close(self) -> None:
        crew, self._crew = self._crew, []
        for worker in crew:
            worker.end()
        self._trainer = None
        if self._connected:
            self._connected = False
            cluster.disconnect()


TELLING = ("torch", "numpy", "platform", "processor")
"""What decides the last digits, of that which `conditions` gives."""


def conditions(trainer: LocalTrainer) -> dict[str, Any]:
    """What a process would train with, as far as numbers depend on it."""
    about = environment(trainer.device)
    return {"code": trainer.run.code(), **{key: about[key] for key in ("prism_bench", *TELLING)}}


class Lost(str):
    """Why a worker counts as lost."""


@dataclass(eq=False)
class _Worker:
    """An actor, as the driver sees it."""

    actor: Any
    hello: Any
    """Stands for its first word; None once that has come."""
    under_way: dict[Any, int] = field(default_factory=dict)
    """What stands for an answer, and which message that is about; the oldest first."""
    heard: float = 0.0
    """When it last answered, or was given something to do, by this process's clock."""

    @property
    def ready(self) -> bool:
        return self.hello is None

    @property
    def awaited(self) -> list[Any]:
        return list(self.under_way) if self.ready else [self.hello]

    def send(self, place: int, round: int, groups: list[Sent]) -> None:
        if not self.under_way:
            self.heard = time.monotonic()
        self.under_way[self.actor.train.remote(round, groups)] = place

    def take(self, ref: Any) -> int | None:
        """Which message an answer is about."""
        self.heard = time.monotonic()
        if ref is self.hello or ref == self.hello:
            self.hello = None
            return None
        return self.under_way.pop(ref)

    def end(self) -> None:
        import ray

        ray.kill(self.actor, no_restart=True)


class Trainer:
    """The actor: holds data and network, and trains the sub-models that it is sent."""

    def hello(self, held: Sequence[Any], gpus: float, servers_device: str) -> dict[str, Any]:
        """Get what it trains with; says what that is."""
        import ray

        end_with(os.getppid())  # the node's daemon: Ray's workers may outlive it by a minute
        torch.set_num_threads(1)  # the workers are what goes on side by side
        keep_memory()
        cluster.use_share_of_gpu(gpus)
        self.at_once = 10**9
        device = servers_device if servers_device != "cpu" else "auto"
        self.trainer = _on(ray.get(held[0]), choose_device(device if gpus else "cpu"))
        return {"node": ray.util.get_node_ip_address()} | conditions(self.trainer)

    def train(self, round: int, groups: Sequence[Sent]) -> list[Came]:
        return [self._train(round, clients, arrays) for clients, arrays in groups]

    def _train(self, round: int, clients: Sequence[tuple[Client, Arrays]], arrays: Arrays) -> Came:
        """A group that the device has no memory for is done again from the start, half as many clients at a time, and
        so are all that follow.
        """
        if len(clients) > self.at_once:
            starts = range(0, len(clients), self.at_once)
            parts = [slice(start, start + self.at_once) for start in starts]
            came = [
                self._train(round, clients[part], {name: array[part] for name, array in arrays.items()})
                for part in parts
            ]
            states, losses, memories = zip(*came, strict=True)
            state = {name: np.concatenate([one[name] for one in states]) for name in states[0]}
            return state, np.concatenate(losses), [memory for some in memories for memory in some]
        device, unsent = self.trainer.device, self.trainer.algorithm.unsent()
        tasks = [Task(client, {}, memory=_tensors(memory, device)) for client, memory in clients]
        try:
            trained = self.trainer.train(round, tasks, _tensors(arrays, device))
        except torch.OutOfMemoryError:
            if len(clients) == 1:
                raise
            self.at_once = -(-len(clients) // 2)
        else:
            up = {name: tensor for name, tensor in trained.state.items() if name not in unsent}
            return _arrays(up), trained.losses.cpu().numpy(), [_arrays(memory) for memory in trained.memories]
        return self._train(round, clients, arrays)


def _on(trainer: LocalTrainer, device: torch.device) -> LocalTrainer:
    """The same on another device."""
    moved = copy.copy(trainer)
    moved.device, moved.data = device, trainer.data.to(device)
    return moved


def _arrays(state: State) -> Arrays:
    return {name: tensor.cpu().numpy() for name, tensor in state.items()}


def _tensors(arrays: Arrays, device: torch.device) -> State:
    """Copies: what Ray hands out is shared among processes, and can't be written to."""
    return {name: torch.tensor(array, device=device) for name, array in arrays.items()}
