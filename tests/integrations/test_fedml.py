"""Real FedML jobs: one process, MPI with three ranks, gRPC with a server and two silos."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml

import prism_bench
from prism_bench.base import registry
from prism_bench.base.files import read_tensors
from prism_bench.engine import costs
from prism_bench.engine.federation import Federation, split
from prism_bench.engine.sections import Execution
from prism_bench.engine.spec import Run
from prism_bench.harness.runner import carry_out
from prism_bench.integrations.fedml import Config
from prism_bench.integrations.fedml.job import ThroughFedML

HERE = Path(__file__).parent
BACKENDS = ("sp", "MPI", "GRPC")
ROUNDS, ACTIVE, WORKERS = 3, 4, 2

missing = [name for name in ("fedml", "mpi4py", "grpc") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(missing), reason=f"{', '.join(missing)} not installed: pip install 'prism-bench[fedml-distributed]'"
)


def algorithms():
    """The five, and a third party's where it is installed (`tox` does)."""
    five = ["fedavg", "prism", "orthdrop", "origdrop", "splitmix"]
    return [*five, *(["spreaddrop"] if "spreaddrop" in registry.find("algorithms") else [])]


def config(backend, methods, rounds=ROUNDS, **ours):
    cross_silo = backend == "GRPC"
    return {
        "common_args": {"training_type": "cross_silo" if cross_silo else "simulation", "random_seed": 3},
        "data_args": {"dataset": "digits", "partition_method": "hetero", "partition_alpha": 0.5},
        "model_args": {"model": "smallcnn"},
        "train_args": {
            "federated_optimizer": "FedAvg",
            "client_num_in_total": 6,
            "client_num_per_round": ACTIVE,
            "comm_round": rounds,
            "epochs": 1,
            "batch_size": 16,
            "learning_rate": 0.05,
        },
        "validation_args": {"frequency_of_the_test": 1},
        "device_args": {"using_gpu": False} | ({"worker_num": WORKERS} if cross_silo else {}),
        "comm_args": {"backend": backend} | ({"grpc_ipconfig_path": "ip.csv"} if cross_silo else {}),
        "prism_args": {
            "model": {"width": 10, "norm": "batch"},
            "capacity": {"keep": [0.4, 0.2], "share": [0.5, 0.5]},
            "grid": {"algorithm": methods},
            "patience": 60,
        }
        | ours,
    }


SAME = {
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5},
    "model": {"name": "smallcnn", "width": 10, "norm": "batch"},
    "capacity": {"keep": [0.4, 0.2], "share": [0.5, 0.5]},
    "training": {"active": ACTIVE, "rounds": ROUNDS, "epochs": 1, "batch": 16, "lr": 0.05},
}
"""The same for the suite's own loop. Clients one after another: all at once differs by floating point."""


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Job:
    """A job in a folder of its own, with its own home and a closed network."""

    def __init__(self, folder, backend, methods, fault="none", prefix=(), **ours):
        self.folder, self.mark = folder, uuid.uuid4().hex
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "home").mkdir()
        (folder / "job.yaml").write_text(yaml.safe_dump(config(backend, methods, **ours)))
        rows = [f"{rank},{rank},127.0.0.1,{port}" for rank, port in enumerate(free_ports(WORKERS + 1))]
        (folder / "ip.csv").write_text("\n".join(["eid,rank,grpc_server_ip,grpc_server_port", *rows]) + "\n")
        python = [sys.executable, str(HERE / "spied.py"), "report", fault, "--cf", "job.yaml", "--out", "out"]
        mpiexec = Path(sys.executable).parent / "mpiexec"
        commands = {
            "sp": [python],
            "MPI": [[str(mpiexec if mpiexec.exists() else shutil.which("mpiexec")), "-n", str(WORKERS + 1), *python]],
            # The silos first: the order must not matter.
            "GRPC": [[*python, "--rank", str(rank), "--role", "client"] for rank in (1, 2)]
            + [[*python, "--rank", "0", "--role", "server"]],
        }
        self.logs = [folder / f"log-{number}.txt" for number in range(len(commands[backend]))]
        self.processes = [
            subprocess.Popen(
                [*prefix, *command],
                cwd=folder,
                env=self.environment(),
                stdout=log.open("w"),
                stderr=-2,
                start_new_session=True,
            )
            for command, log in zip(commands[backend], self.logs, strict=True)
        ]

    def environment(self):
        kept = {key: value for key, value in os.environ.items() if key in ("PATH", "LD_LIBRARY_PATH", "LANG", "TMPDIR")}
        return kept | {
            "HOME": str(self.folder / "home"),
            "JOB_MARK": self.mark,
            "MPLBACKEND": "agg",
            "NETWORK_GUARD": str(self.folder / "network.txt"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(HERE / "guard"),
        }

    def wait(self, seconds=150):
        """The exit codes; the server's is the last."""
        deadline = time.time() + seconds
        try:
            return [process.wait(max(0.1, deadline - time.time())) for process in self.processes]
        except subprocess.TimeoutExpired:
            pytest.fail(f"the job did not end within {seconds} s:\n{self.text()}")
        finally:
            self.ended = time.time()
            self.left = self.alive(grace=3)
            for pid in self.left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def alive(self, grace=0.0):
        """Processes that carry this job's mark in their environment, children of children too."""
        deadline = time.time() + grace
        while True:
            found = []
            for entry in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
                    if not zombie and f"JOB_MARK={self.mark}".encode() in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
            if not found or time.time() >= deadline:
                return found
            time.sleep(0.1)

    def text(self):
        return "\n".join(log.read_text(errors="replace")[-6000:] for log in self.logs)

    def reports(self):
        return [json.loads(file.read_text()) for file in self.folder.glob("report-*.json")]

    def counts(self):
        return sum((Counter(report["counts"]) for report in self.reports()), Counter())

    def messages(self):
        return [message for report in self.reports() for message in report["messages"]]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    out = tmp_path_factory.mktemp("own") / "out"
    tree = SAME | {"grid": {"algorithm": algorithms()}, "execution": {"device": "cpu", "at_once": 1, "threads": 1}}
    prism_bench.run(tree, seeds=[3], out=out)
    return out


@pytest.fixture(scope="session")
def alone():
    """What to put before a command so that it has no network but loopback, also for what Python does not see."""
    namespace = ["unshare", "--user", "--map-root-user", "--net", "--kill-child", "--"]
    keep = ["sh", "-c", "ip link set lo up && echo up && exec sleep 1000"]
    try:
        keeper = subprocess.Popen([*namespace, *keep], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except FileNotFoundError:
        yield []
        return
    enter = ["nsenter", "-t", str(keeper.pid), "--user", "--preserve-credentials", "--net", "--"]
    assert keeper.stdout is not None
    works = keeper.stdout.readline() == "up\n" and not subprocess.run([*enter, "true"], check=False).returncode
    yield enter if works else []
    keeper.kill()
    keeper.wait()


@pytest.fixture(scope="module", params=BACKENDS)
def finished(request, tmp_path_factory, alone):
    """One job per backend, with all algorithms in it."""
    job = Job(tmp_path_factory.mktemp(request.param) / "job", request.param, algorithms(), prefix=alone)
    codes = job.wait()
    assert set(codes) == {0}, job.text()
    return request.param, job


def test_results_equal_the_suites_own_loop(finished, reference):
    """Every recorded number of every round, and the server's tensors at the end, to 1e-6."""
    _, job = finished
    ours, own = (pd.read_csv(folder / "rounds.csv") for folder in (job.folder / "out", reference))
    assert list(ours) == list(own)
    assert len(own) == ROUNDS * len(algorithms())
    assert ours["algorithm"].tolist() == own["algorithm"].tolist()
    for column in (column for column in own.select_dtypes("number") if not column.startswith("seconds")):
        expected = pytest.approx(own[column].tolist(), rel=0, abs=1e-6, nan_ok=True)
        assert ours[column].tolist() == expected, column
    assert own["accuracy"].between(0, 100).all()
    folders = sorted(path.name for path in (reference / "runs").iterdir())
    assert folders == sorted(path.name for path in (job.folder / "out" / "runs").iterdir()), "the same runs by identity"
    for name in folders:
        [mine], [other] = (list((f / "runs" / name).glob("checkpoint-*.pt")) for f in (job.folder / "out", reference))
        mine, other = (_tensors(read_tensors(file)["algorithm"]) for file in (mine, other))
        assert len(mine) == len(other) > 0
        for one, two in zip(mine, other, strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=1e-6)


def _tensors(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else []
    return [tensor for value in values for tensor in _tensors(value)]


def test_hooks_are_called_as_often_as_rounds_and_workers_ask(finished):
    backend, job = finished
    runs, counts = len(algorithms()), job.counts()
    expected = {
        "sp": {"sp.SubModelAPI.train": ROUNDS, "sp.SubModelAPI._aggregate": ROUNDS, "Worker.train": ROUNDS * ACTIVE},
        "MPI": {
            "mpi.Aggregator.get_global_model_params": 1,
            "mpi.Aggregator.aggregate": ROUNDS,
            "mpi.ServerManager.send_message_init_config": WORKERS,
            "mpi.ServerManager.send_message_sync_model_to_client": WORKERS * (ROUNDS - 1),
            "mpi.Trainer.update_model": WORKERS * ROUNDS,
            "mpi.Trainer.train": WORKERS * ROUNDS,
            "mpi.FedAVGServerManager.handle_message_receive_model_from_client": WORKERS * ROUNDS,
            "mpi.FedAVGClientManager.send_model_to_server": WORKERS * ROUNDS,
            "Worker.train": WORKERS * ROUNDS,
        },
        "GRPC": {
            "grpc.Aggregator.aggregate": ROUNDS,
            # After the last round FedML sends once more; there is nothing in it.
            "grpc.Trainer.set_model_params": WORKERS * (ROUNDS + 1),
            "grpc.Trainer.train": WORKERS * ROUNDS,
            "grpc.FedMLServerManager.send_message_init_config": WORKERS,
            "grpc.FedMLServerManager.send_message_diff_sync_model_to_client": WORKERS * ROUNDS,
            "grpc.ClientMasterManager.send_model_to_server": WORKERS * ROUNDS,
            "Worker.train": WORKERS * ROUNDS,
        },
    }[backend]
    assert counts == {name: count * runs for name, count in expected.items()}


def test_a_client_gets_its_sub_model_and_no_more(finished):
    """Bytes down and up of every client in every round are what `costs` says; what is pickled is hardly larger."""
    _, job = finished
    messages = job.messages()
    for name in algorithms():
        run = Run.resolve(SAME | {"algorithm": name, "seed": 3})
        data = run.data.settings.load()
        one = Federation(run, data, split(run, data), Execution(device="cpu"))
        each = {keep: costs.of_client(one.algorithm, keep, data.signature, 16).transfer_bytes / 2 for keep in one.keeps}
        sent = [message for message in messages if message["algorithm"] == name]
        for round in range(ROUNDS):
            cohort = {str(client.number): each[client.keep] for client in one.cohort(round)}
            for way in ("down", "up"):
                seen = Counter()
                for message in sent:
                    if message["round"] == round:
                        seen.update(message[way])
                assert seen == cohort, (name, round, way)
        for message in sent:
            assert message["own"] == 0, "what trains holds no weights but those it was sent"
            assert message["pickled"] < sum(message["down"].values()) + 600 * message["tensors"] + 600
        full = one.full_costs.transfer_bytes / 2
        assert run.algorithm.kind.cuts == (max(each.values()) < full)


def test_a_worker_builds_nothing_of_the_servers(finished):
    """Over MPI and gRPC a process that trains makes no federation and decomposes nothing."""
    backend, job = finished
    built = {bool(report["messages"]): report["servers"] for report in job.reports()}
    if backend == "sp":
        assert built[True]["Federation"] == len(algorithms())
    else:
        assert [bool(report["messages"]) for report in job.reports()].count(True) == WORKERS
        assert [report["servers"] for report in job.reports() if report["messages"]] == [{}] * WORKERS
        assert built[False]["Federation"] == len(algorithms())
        assert built[False]["svd"] > 0


def test_nothing_connects_and_nothing_is_left(finished):
    backend, job = finished
    log = job.folder / "network.txt"
    assert not log.exists(), log.read_text()
    started = (job.folder / "network.txt.on").read_text().count("spied.py")
    assert started == {"sp": 1, "MPI": WORKERS + 1, "GRPC": WORKERS + 1}[backend], "the guard was on in every process"
    assert job.left == []
    home = {file.relative_to(job.folder / "home").parts[0] for file in (job.folder / "home").rglob("*")}
    assert home <= {".fedml", ".cache", ".config"}
    traces = [file for file in (job.folder / "home" / ".fedml").rglob("*") if file.is_file()]
    assert all(file.parent.name == "fedml_trace" for file in traces)


def test_the_network_was_closed(alone):
    if not alone:
        pytest.skip("no right to make a network namespace: the jobs above had Python's sockets closed only")
    probe = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"
    done = subprocess.run([*alone, sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert "Network is unreachable" in done.stderr


SAYS = {"raise": "a client's data is broken", "nan": "weights are not finite after round 2", "kill": ""}


@pytest.mark.parametrize(
    ("backend", "fault"),
    [(backend, fault) for backend in BACKENDS for fault in SAYS if (backend, fault) != ("sp", "kill")],
)
def test_a_fault_ends_the_whole_job(backend, fault, tmp_path):
    """With the error, within 30 s, and no process is left; no table shows the run."""
    job = Job(tmp_path / "job", backend, ["prism"], fault)
    codes = job.wait()
    struck = float((job.folder / "report-fault").read_text())
    assert job.ended - struck < 30
    assert job.left == []
    assert 0 not in codes, job.text()
    assert SAYS[fault] in job.text()
    if fault == "raise":
        # Where it happened, and where the job is reported: what one process could not print is not lost.
        [kept] = (job.folder / "out" / "runs").glob("*/log.txt")
        assert SAYS[fault] in kept.read_text("utf-8")
        assert backend == "sp" or job.text().count(f"ValueError: {SAYS[fault]}") >= 2
    if fault == "kill":
        assert {"MPI": "signal 9", "GRPC": "is gone: the job can't go on"}[backend] in job.text()
    elif backend != "sp":
        assert "error" in job.text().lower()
    assert not (job.folder / "out" / "rounds.csv").exists()
    assert not list((job.folder / "out" / "runs").glob("*/done.json"))


@pytest.mark.parametrize("backend", ["MPI", "GRPC"])
def test_a_run_that_fails_at_its_end_ends_the_job_too(backend, tmp_path):
    """The workers have trained all of its rounds, and nobody starts the next run with them."""
    job = Job(tmp_path / "job", backend, ["prism", "fedavg"], "nan", rounds=2)
    codes = job.wait()
    assert job.ended - float((job.folder / "report-fault").read_text()) < 30
    assert job.left == []
    assert 0 not in codes, job.text()
    assert SAYS["nan"] in job.text()


def test_a_killed_server_ends_the_silos(tmp_path):
    job = Job(tmp_path / "job", "GRPC", ["prism"], "kill-server")
    codes = job.wait()
    assert job.ended - float((job.folder / "report-fault").read_text()) < 30
    assert codes[:2] == [1, 1]
    assert "the server is gone" in job.logs[0].read_text()
    assert job.left == []


def test_a_server_does_not_wait_for_ever(tmp_path):
    job = Job(tmp_path / "job", "GRPC", ["prism"], patience=3)
    for process in job.processes[:2]:
        process.kill()
    codes = job.wait(60)
    assert codes[2] == 1
    assert "has not come up within 3 s" in job.logs[2].read_text()


def test_one_round_is_enough(tmp_path):
    """FedML's own MPI clients wait for ever after a first round that is also the last."""
    job = Job(tmp_path / "job", "MPI", ["fedavg"], rounds=1)
    assert set(job.wait(60)) == {0}, job.text()
    assert len(pd.read_csv(job.folder / "out" / "rounds.csv")) == 1


def test_runs_side_by_side_give_the_same_numbers(reference, tmp_path, monkeypatch):
    """What makes the executor is pickled to the processes that do the runs."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(config("sp", ["fedavg", "prism"])))
    read = Config.read(tmp_path / "job.yaml")
    outcome = carry_out(read.experiment, tmp_path / "out", jobs=2, executor=ThroughFedML(read))
    assert outcome.failed == {}
    own = pd.read_csv(reference / "rounds.csv")
    own = own[own["algorithm"].isin(["fedavg", "prism"])].reset_index(drop=True)
    assert len(own) == 2 * ROUNDS
    for column in ("algorithm", "round", "train_loss", "accuracy", "test_loss"):
        values = outcome.rounds[column].tolist()
        assert values == (own[column].tolist() if column == "algorithm" else pytest.approx(own[column], abs=1e-6))


def test_the_command_shows_the_table_of_the_examples(here, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    example = Path(prism_bench.__file__).parent / "integrations/fedml/examples/sp/fedml_config.yaml"
    tree = yaml.safe_load(example.read_text("utf-8"))
    tree["train_args"] |= {"comm_round": 1, "epochs": 1}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tree))
    code, out, err = here("fedml", "--cf", "mine.yaml")
    assert code == 0, err
    assert all(name in out for name in algorithms()[:5])
    written = {file.name for file in (tmp_path / "results" / "fedml_sp").iterdir()}
    assert {"rounds.csv", "table.csv", "experiment.json", "runs"} <= written
