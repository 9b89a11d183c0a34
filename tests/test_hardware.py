"""What a run computes with: every fast path against the plain one."""

from __future__ import annotations

import ctypes
import shutil
import threading

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from prism_bench.base.errors import BadInput
from prism_bench.core.algorithm import Client
from prism_bench.core.submodel import gather_stacked
from prism_bench.core.threads import in_threads, workers
from prism_bench.data.dataset import channels_last
from prism_bench.engine import costs, hardware
from prism_bench.engine.hardware import clients_at_once
from prism_bench.engine.local import Schedule, train
from prism_bench.engine.round import Task
from prism_bench.engine.sections import Execution, Training
from prism_bench.models.layers import FewChannels
from prism_bench.models.lstm import Recurrence
from prism_bench.testing import federation, tiny_data


@pytest.fixture
def threads():
    """Set the number of torch's threads; the test's end restores it."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_results_come_in_order_and_few_items_are_asked_for_ahead():
    asked, ahead = [], []

    def items():
        for number in range(20):
            asked.append(number)
            yield number

    for done, result in enumerate(in_threads(lambda number: -number, items(), 3)):
        assert result == -done
        ahead.append(len(asked) - done)
    assert max(ahead) <= 4


def test_threads_are_shared_out(threads):
    threads(6)
    seen = list(in_threads(lambda _: torch.get_num_threads(), range(4), 2))
    assert seen == [3] * 4
    assert torch.get_num_threads() == 6


def test_an_error_stops_the_others_and_arrives():
    stop, started = threading.Event(), threading.Barrier(2)

    def work(number):
        started.wait(10)
        if number == 0:
            raise ValueError("number 0")
        assert stop.wait(10), "the other one was not told"

    with pytest.raises(ValueError, match="number 0"):
        list(in_threads(work, range(2), 2, stop))


@pytest.mark.parametrize("algorithm", ["fedavg", "prism", "splitmix"])
def test_the_number_of_threads_changes_no_bit(algorithm, threads):
    """Of training: clients of two capacities, several groups, trained side by side and merged in their order."""
    outcomes = []
    for count in (1, 2, 3):
        threads(count)
        one = federation(algorithm, keep=(0.4, 0.2), sizes=(12, 5, 9, 12, 7), at_once=1)
        assert workers(one.device) == count
        losses = [one.round(round)["train_loss"] for round in range(2)]
        outcomes.append((losses, one.algorithm.state))
    for losses, state in outcomes[1:]:
        assert losses == outcomes[0][0]
        assert all(torch.equal(tensor, outcomes[0][1][name]) for name, tensor in state.items())


def test_training_ends_at_once_when_it_is_no_longer_wanted():
    one = federation("fedavg")
    stop = threading.Event()
    stop.set()
    state = gather_stacked(one.algorithm.state, one.algorithm.layout, [{}])
    one.trainer.train(0, [Task(Client(0, 1.0), {})], state, stop)
    assert all(torch.equal(state[name][0], tensor) for name, tensor in one.algorithm.state.items())


def short_of_memory(monkeypatch, one, fits):
    """Let training fail, half done, where more clients than fit are stacked; returns the sizes that were tried."""
    tried, real = [], one.trainer.train

    def limited(round, tasks, state, stop=None):
        tried.append(len(tasks))
        if len(tasks) > fits:
            for tensor in state.values():
                tensor.add_(1)
            raise torch.OutOfMemoryError("no memory")
        return real(round, tasks, state, stop)

    monkeypatch.setattr(one.trainer, "train", limited)
    return tried


def test_without_memory_for_all_half_as_many_train_at_once_and_nothing_is_lost(monkeypatch):
    one, plain = (federation("prism", sizes=(12,) * 7, at_once=at_once) for at_once in (7, 1))
    tried = short_of_memory(monkeypatch, one, fits=2)
    for round in range(2):
        mine, other = one.round(round), plain.round(round)
        assert mine["train_loss"] == pytest.approx(other["train_loss"], abs=1e-5)
    assert tried == [7, 4, 2, 2, 3, 2, 1, *[2, 2, 2, 1]], "halved once, and kept"
    mine, other = (list(run.algorithm.full_model().state.values()) for run in (one, plain))
    torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_one_client_that_does_not_fit_is_an_error(monkeypatch):
    one = federation("fedavg")
    short_of_memory(monkeypatch, one, fits=0)
    with pytest.raises(torch.OutOfMemoryError):
        one.round(0)


def test_on_a_gpu_the_free_memory_says_how_many_train_at_once(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * 2**30, 16 * 2**30))
    gpu = torch.device("cuda")
    assert clients_at_once(Execution(), gpu, client_bytes=2**30) == 4
    assert clients_at_once(Execution(), gpu, client_bytes=2**40) == 1
    assert clients_at_once(Execution(), gpu, client_bytes=1) == 64
    assert clients_at_once(Execution(at_once=3), gpu, client_bytes=2**40) == 3


class Transfers(TorchDispatchMode):
    """Counts copies between devices; on the meta device whatever else needs a value on the host is an error."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            sources = {arg.device.type for arg in args if isinstance(arg, torch.Tensor) and arg.ndim}
            self.count += bool(sources) and sources != {result.device.type}
        return result


@pytest.mark.parametrize("clients", [1, 3])
def test_no_step_of_an_epoch_waits_for_the_host(clients):
    meta = torch.device("meta")
    one = federation("prism", data=tiny_data((1, 8, 8), 10, 400), sizes=(80,) * clients)
    one.data = one.data.to(meta)
    object.__setattr__(one.data, "augment", True)
    counts = []
    for epochs in (1, 5):
        training = Training(batch=8, epochs=epochs)
        work = [Schedule.plan(one.population[number], training, 0, 0, number) for number in range(clients)]
        selections = [one.algorithm.select(0, [Client(number, 0.4)])[0][0] for number in range(clients)]
        stacked = gather_stacked(one.algorithm.state, one.algorithm.layout, selections)
        state = {name: tensor.to(meta) for name, tensor in stacked.items()}
        with Transfers() as transfers:
            train(one.algorithm, state, work, one.data, training, 0.1)
        counts.append(transfers.count)
    assert counts[0] == counts[1] > 0


def way(one, keep):
    """Which of its forwards a sub-model is trained with, as MACs of each and of what was taken."""
    [[selection]] = one.algorithm.select(0, [Client(0, keep)])
    sizes = {axis: len(indices) for axis, indices in selection.items()}
    shapes = {n: one.algorithm.layout.shape(n, t.shape, sizes) for n, t in one.algorithm.state.items()}
    about = (shapes, one.data.signature, one.run.training.batch)
    each = [costs.count(forward, *about).macs for forward in one.algorithm.equivalents()]
    stacked = {name: (1, *shape) for name, shape in shapes.items()}
    forward = one.trainer.forward(shapes)
    taken = costs.count(lambda params, x: forward(params, x[None])[0], stacked, *about[1:]).macs
    return each, taken


def test_factors_are_multiplied_first_where_that_is_less_work():
    narrow = federation("prism", model={"name": "cnn"}, keep=0.2, batch=32)
    (factors, product), taken = way(narrow, 0.2)
    assert taken == product < factors
    wide = federation("orthdrop", model={"name": "cnn"}, keep=0.2, batch=32)
    (factors, product), taken = way(wide, 0.2)
    assert taken == factors < product
    assert narrow.client_costs.macs == way(narrow, 0.2)[1], "costs are of what runs"


@pytest.mark.parametrize("channels", [2, 13])
def test_batch_norm_of_few_channels_is_torchs(channels):
    generator = torch.Generator().manual_seed(channels)
    x = channels_last(3 + torch.randn(16, channels, 32, 32, generator=generator, dtype=torch.float64)).requires_grad_()
    weight, bias = (torch.randn(channels, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    assert FewChannels.suit(x)
    assert not FewChannels.suit(x.detach().contiguous())
    assert not FewChannels.suit(x[:2])
    results = []
    for normalised in (FewChannels.apply(x, weight, bias), F.batch_norm(x, None, None, weight, bias, training=True)):
        wanted = normalised * torch.arange(float(normalised.numel())).view_as(normalised).sin()
        results.append([normalised, *torch.autograd.grad(wanted.sum(), [x, weight, bias])])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("factorised", [False, True])
@pytest.mark.parametrize("steps", [1, 7, 25, 60])
def test_the_recurrence_has_autograds_gradients(steps, factorised):
    generator = torch.Generator().manual_seed(steps)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()  # noqa: E731
    arriving = draw(steps, 3, 20)
    matrices = [draw(4, 5), draw(20, 4)] if factorised else [draw(20, 5)]

    def plain():
        state = memory = torch.zeros(3, 5, dtype=torch.float64)
        states = []
        for now in arriving:
            gates = state
            for matrix in matrices:
                gates = F.linear(gates, matrix)
            let_in, forget, cell, let_out = (now + gates).chunk(4, -1)
            memory = forget.sigmoid() * memory + let_in.sigmoid() * cell.tanh()
            state = let_out.sigmoid() * memory.tanh()
            states.append(state)
        return torch.stack(states)

    weights = draw(steps, 3, 5).detach()
    mine, other = Recurrence.apply(arriving, *matrices)[0], plain()
    torch.testing.assert_close(mine, other)
    gradients = [torch.autograd.grad((states * weights).sum(), [arriving, *matrices]) for states in (mine, other)]
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_have_their_channels_side_by_side(channels):
    images = torch.randn(5, channels, 6, 7)
    laid = channels_last(images)
    assert torch.equal(laid, images)
    assert laid.stride() == (42 * channels, 1, 7 * channels, channels)
    convolved = F.conv2d(laid, torch.randn(4, channels, 3, 3))
    assert convolved.stride(1) == 1, "what follows goes by the strides"
    stacked = torch.randn(2, 5, channels, 6, 7)
    assert channels_last(stacked) is stacked


def test_precision_is_part_of_the_run_and_changes_little():
    runs = {name: federation("prism", precision=name) for name in ("float32", "tf32", "bfloat16")}
    assert len({one.run.identity for one in runs.values()}) == 3
    records = {name: one.round(0) for name, one in runs.items()}
    assert records["bfloat16"]["train_loss"] != records["float32"]["train_loss"]
    assert records["bfloat16"]["train_loss"] == pytest.approx(records["float32"]["train_loss"], rel=0.02)
    assert records["bfloat16"]["test_loss"] == pytest.approx(records["float32"]["test_loss"], rel=0.02)
    assert all(tensor.dtype == torch.float32 for tensor in runs["bfloat16"].algorithm.state.values())
    assert records["tf32"]["train_loss"] == records["float32"]["train_loss"], "a CPU has no tf32"


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_compiled_training_agrees():
    one, plain = (federation("prism", sizes=(12, 12), at_once=1) for _ in range(2))
    one.trainer.compile, one.execution = True, Execution(device="cpu", compile=True)
    mine, other = one.round(0), plain.round(0)
    assert mine["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0, "nothing was compiled"


def test_the_allocator_is_told_once_and_never_against_the_environment(monkeypatch):
    calls = []

    class Library:
        def __init__(self, _):
            self.mallopt = lambda *call: calls.append(call)

    monkeypatch.setattr(ctypes, "CDLL", Library)
    for name in ("MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    hardware.keep_memory()
    assert dict(calls) == {-1: 2**31 - 1, -3: 2**30, -8: 1}
    calls.clear()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000")
    hardware.keep_memory()
    assert calls == []


def test_on_a_cpu_clients_are_stacked_where_they_fit_into_the_caches():
    cpu = torch.device("cpu")
    assert clients_at_once(Execution(), cpu, client_bytes=1e6) == 8
    assert clients_at_once(Execution(), cpu, client_bytes=3e6) == 1


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("two_gpus")
def test_one_gpu_of_several_can_be_named():
    assert hardware.choose_device("cuda:1") == torch.device("cuda:1")
    assert hardware.choose_device("auto") == torch.device("cuda")
    with pytest.raises(BadInput, match=r"device: 'cuda:2' is not available on this machine. Available: cuda:0, cuda:1"):
        hardware.choose_device("cuda:2")
    assert Execution(device="cuda:1").device == "cuda:1"
    for wrong in ("cuda:", "gpu", "cuda:-1", "cuda:one"):
        with pytest.raises(ValueError, match="must be auto, cpu, cuda, cuda:0"):
            Execution(device=wrong)


@pytest.mark.usefixtures("two_gpus")
def test_jobs_take_the_visible_gpus_in_turn_unless_one_was_named():
    assert [hardware.pinned("auto", job) for job in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [hardware.pinned("cuda", job) for job in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [hardware.pinned(device, 1) for device in ("cuda:0", "cpu")] == ["cuda:0", "cpu"]


def test_without_a_gpu_jobs_stay_where_they_are():
    assert [hardware.pinned("auto", job) for job in range(2)] == ["auto", "auto"]
