"""The two sides of a job, whatever carries the messages: an executor deals out a round's tasks, workers train them.

A message down is ``{"round": r, "step_macs": m, "jobs": {place: (client, tensors, memory)}}``, where the place is
that of a task in the round. One up is ``{"results": {place: (tensors, loss, memory)}}``, or ``{"error": text}`` where a
client failed. All tensors are on the CPU.
"""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from prism_bench.base.errors import BadPlugin
from prism_bench.core.axes import State
from prism_bench.engine.executors import Executor
from prism_bench.engine.hardware import threads
from prism_bench.engine.local import LocalTrainer
from prism_bench.engine.round import Round, Task, Trained
from prism_bench.engine.sections import Execution

Message = dict[str, Any]

CPU = torch.device("cpu")

NO_REPORTS = "its clients report to the server before it selects, which FedML's jobs of several processes don't carry."


class ClientFailed(Exception):
    """A client raised an error; the text says where and which."""


class FedMLExecutor(Executor):
    """Deals the tasks of a round out to workers by FedML's messages, one message per worker.

    ``stays`` says that a client's data lives with one worker: its number decides which, else its place in the cohort.
    """

    def __init__(
        self, trainer: LocalTrainer, execution: Execution, at_once: int, workers: int, stays: bool = False
    ) -> None:
        super().__init__(trainer, execution, at_once)
        self.workers, self.stays = workers, stays

    def train(self, round: Round) -> Iterator[Trained]:
        return self.collect(round, self.exchange(self.deal(round)))

    @abstractmethod
    def exchange(self, messages: dict[int, Message]) -> Iterable[Message]:
        """Bring each worker its message, and give back all that they answer."""

    def deal(self, round: Round) -> dict[int, Message]:
        """A round's messages by worker: its clients' sub-models, and nothing else of the server's."""
        batch = self.trainer.run.training.batch
        step_macs = batch * sum(cost.macs for cost in round.costs) / len(round.costs)
        messages: dict[int, Message] = {
            worker: {"round": round.number, "step_macs": step_macs, "jobs": {}} for worker in range(self.workers)
        }
        places = {client.number: place for place, client in enumerate(round.cohort)}
        sent = [0] * len(round.cohort)
        for job, task in enumerate(round.tasks):
            client, place = task.client, places[task.client.number]
            state = _to(round.gather([task]), CPU)
            # What a client told the server is the server's now. Its memory is the client's own, and not counted.
            content = (replace(client, report={}), state, _to(task.memory, CPU))
            messages[(client.number if self.stays else place) % self.workers]["jobs"][job] = content
            # A view would be sent with all that it is a view of.
            sent[place] += sum(t.untyped_storage().nbytes() // t.element_size() for t in state.values())
        for client, values, cost in zip(round.cohort, sent, round.costs, strict=True):
            if values > cost.parameters:
                raise RuntimeError(
                    f"client {client.number} would get {values} values, but its sub-model, with keep ratio "
                    f"{client.keep:g}, has {cost.parameters:.0f}; nothing else may leave the server."
                )
        return messages

    def collect(self, round: Round, uploads: Iterable[Message]) -> Iterator[Trained]:
        """What the workers sent, in the order of the round's tasks."""
        results: dict[int, tuple[State, Tensor, State]] = {}
        for upload in uploads:
            if "error" in upload:
                raise ClientFailed(upload["error"])
            results |= upload["results"]
        device = self.trainer.device
        for job, task in enumerate(round.tasks):
            state, loss, memory = results.pop(job)
            yield Trained([task], _to(state, device), loss.to(device), [_to(memory, device)])


class Flow(Protocol):
    """What FedML runs."""

    def run(self) -> None: ...

    def finish(self) -> None:
        """Stop listening; again is no harm."""


class Remote(FedMLExecutor):
    """Workers are other processes, and FedML's server waits for their messages in a loop of its own.

    That loop runs in a thread, from the first round to `close`. The two loops meet where FedML asks for messages: it
    hands in what has come back, and waits until the suite's loop has more, or is over. ``flow`` makes FedML's server,
    and ``carry`` has FedML run it.
    """

    def __init__(
        self,
        trainer: LocalTrainer,
        execution: Execution,
        at_once: int,
        workers: int,
        stays: bool,
        flow: Callable[[Remote], Flow],
        carry: Callable[[Flow], None],
    ) -> None:
        super().__init__(trainer, execution, at_once, workers, stays)
        self.flow, self.carry = flow, carry
        self.closed = False
        """Whether no more rounds will come."""
        self.failed = False
        """Whether the workers are being told that none will come, although not all rounds are done."""
        self._left = trainer.run.training.rounds
        self._down: queue.SimpleQueue[dict[int, Message]] = queue.SimpleQueue()
        self._up: queue.SimpleQueue[Sequence[Message] | BaseException] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    # The suite's loop -------------------------------------------------------------------------------------------------

    def exchange(self, messages: dict[int, Message]) -> Sequence[Message]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(self.flow(self),), name="FedML", daemon=True)
            self._thread.start()
        self._down.put(messages)
        answer = self._up.get()
        if isinstance(answer, BaseException):
            raise answer
        self._left -= 1
        return answer

    def report(self, clients: Sequence[int]) -> Sequence[dict[str, Tensor]]:
        raise BadPlugin(f"{self.trainer.run.algorithm.name}: {NO_REPORTS}")

    def close(self) -> None:
        """Tell the workers that the run is over, also where it has failed, and wait until FedML has done so."""
        if self._thread is None:
            return
        # The engine closes an executor in a `finally`: an error under way is the run's.
        error = sys.exc_info()[1]
        failed = error is not None or self._left > 0
        self.closed = True
        self._down.put({worker: {"failed": failed} for worker in range(self.workers)})
        self._thread.join()
        while error is None and not self._up.empty():
            answer = self._up.get()
            if isinstance(answer, BaseException):
                raise answer

    # FedML's loop -----------------------------------------------------------------------------------------------------

    def _run(self, flow: Flow) -> None:
        try:
            self.carry(flow)
        except BaseException as problem:
            self._up.put(problem)
        finally:
            flow.finish()

    def messages(self) -> dict[int, Message]:
        """The next round's, by worker; when all is over, one without jobs for each."""
        messages = self._down.get()
        self.failed = messages[0].get("failed", False)
        return messages

    def hand_in(self, uploads: Sequence[Message]) -> dict[int, Message]:
        """Take what has come back from all workers; gives the next messages."""
        self._up.put(uploads)
        return self.messages()


def carry(args: Any, device: torch.device, dataset: Any, flow: Flow) -> None:
    """Have FedML run a flow of ours."""
    from fedml import FedMLRunner

    # FedML prints as it goes; what the command itself prints is the table.
    with redirect_stdout(sys.stderr):
        FedMLRunner(args, device, dataset, None, algorithm_flow=flow).run()


class Worker:
    """Trains the sub-models that it is sent, of one client after another.

    ``execution`` says how many threads that takes, in a process that does nothing else.
    """

    def __init__(self, trainer: LocalTrainer, execution: Execution | None = None) -> None:
        self.trainer, self.execution = trainer, execution

    def answer(self, message: Message, name: str) -> Message:
        """As `train`, for a process of its own: an error is an answer, too.

        The server then tells all others, and every process ends by itself, so that nothing that was printed is lost.
        One that ended the job at once would leave them guessing.
        """
        try:
            return self.train(message)
        except Exception:
            text = traceback.format_exc()
            print(text, file=sys.stderr, flush=True)
            return {"error": f"in {name}:\n{text}"}

    def train(self, message: Message) -> Message:
        """The answer to a message: what was trained of each sub-model, its loss, and what the client keeps."""
        device, unsent = self.trainer.device, self.trainer.algorithm.unsent()
        results = {}
        with threads(self.execution, message["step_macs"]) if self.execution else nullcontext():
            for job, (client, sent, memory) in message["jobs"].items():
                # A copy: in one process the message is the server's own.
                state = {name: tensor.to(device, copy=True) for name, tensor in sent.items()}
                task = Task(client, {}, memory=_to(memory, device))
                trained = self.trainer.train(message["round"], [task], state)
                up = {name: tensor for name, tensor in trained.state.items() if name not in unsent}
                results[job] = (_to(up, CPU), trained.losses.cpu(), _to(trained.memories[0], CPU))
        return {"results": results}


def _to(state: State, device: torch.device) -> State:
    return {name: tensor.to(device) for name, tensor in state.items()}
