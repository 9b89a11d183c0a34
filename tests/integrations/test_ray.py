"""A round's clients in Ray's actors: the same numbers, whatever is lost on the way."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from ray_nodes import beyond_loopback

from prism_bench.base.errors import BadInput
from prism_bench.harness.callbacks import Callback
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.runner import carry_out
from prism_bench.integrations.ray import cluster
from prism_bench.integrations.ray.executor import RayExecutor, Trainer
from prism_bench.testing import EXECUTOR_CHECKS, federation

if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed: pip install 'prism-bench[ray]'", allow_module_level=True)

TREE = {
    "name": "tiny",
    "data": {"name": "noise", "shape": [1, 8, 8], "classes": 4, "train": 60, "test": 20},
    "partition": {"name": "iid", "clients": 5},
    "model": {"name": "smallcnn", "width": 5},
    "capacity": {"keep": [0.4, 0.2], "share": [0.4, 0.6]},
    "training": {"rounds": 3, "active": 5, "epochs": 1, "batch": 4, "lr": 0.05},
    "execution": {"at_once": 1, "threads": 1},
}
FIVE = ["fedavg", "prism", "orthdrop", "origdrop", "splitmix"]


@pytest.mark.parametrize("check", EXECUTOR_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_conformance(check, nodes):
    check("ray", {"workers": 2, "cpus": 0.25})


def test_five_algorithms_give_the_numbers_of_threads(nodes, tmp_path):
    experiment = TREE | {"grid": {"algorithm": FIVE}}
    plain = carry_out(Experiment.load(experiment), tmp_path / "threads").rounds
    on = {"execution.on": {"name": "ray", "workers": 2}}
    other = carry_out(Experiment.load(experiment, on), tmp_path / "ray")
    assert other.failed == {}
    same = [column for column in plain if not column.startswith("seconds")]
    assert plain[same].equals(other.rounds[same]), "the identity of the runs included"
    assert len(plain) == 15


def on_ray(method, rounds=1, meanwhile=lambda executor: None, settings=None, sizes=(12,) * 4, **params):
    """A small run in actors; ``meanwhile`` is called as answers come."""
    on = {"name": "ray", "workers": 2, "cpus": 0.25, **(settings or {})}
    one = federation(method, params, keep=(0.4, 0.2), at_once=1, sizes=sizes, executor=RayExecutor.make, on=on)
    first = one.executor._hear

    def hear():
        heard = first()
        if any(isinstance(place, int) for _, place, _ in heard):
            meanwhile(one.executor)
        return heard

    try:
        one.executor._start()
        while not all(worker.ready for worker in one.executor._crew):
            first()
        one.executor._hear = hear
        records = [one.round(round) for round in range(rounds)]
    finally:
        one.stop()
    return one, records


def command_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[-300:]


def same_as_threads(one, records, method, sizes=(12,) * 4, **params):
    plain = federation(method, params, keep=(0.4, 0.2), at_once=1, sizes=sizes)
    for round, record in enumerate(records):
        assert plain.round(round)["train_loss"] == record["train_loss"]
    assert all(torch.equal(tensor, plain.algorithm.state[name]) for name, tensor in one.algorithm.state.items())


def test_a_node_that_dies_in_mid_round_changes_nothing(nodes, another, monkeypatch):
    from ray_methods import Hostile

    doomed, killed, replaced = another(num_cpus=2), [], []
    replace = RayExecutor._replace
    monkeypatch.setattr(RayExecutor, "_replace", lambda *given: replaced.append(given) or replace(*given))

    def kill(executor):
        if not killed and all(worker.ready for worker in executor._crew):
            killed.append(doomed)
            nodes.remove_node(doomed, allow_graceful=False)

    # More workers than fit on the other nodes; those that come after them have room once others are done.
    settings, sizes, params = {"workers": 4, "cpus": 1}, (4,) * 40, {"how": "slow", "marks": ""}
    one, records = on_ray(Hostile, 1, kill, settings, sizes, **params)
    assert replaced, "workers were lost with tasks"
    same_as_threads(one, records, Hostile, sizes, **params)


def test_no_worker_left_is_an_error_in_time_and_the_run_goes_on_later(nodes, another, tmp_path):
    node = another(num_cpus=3)
    on = {"execution.on": {"name": "ray", "workers": 1, "cpus": 3, "patience": 4}}

    class AfterTheFirst(Callback):
        def round_done(self, number, record):
            if record["round"] == 1:
                self.at = time.monotonic()
                nodes.remove_node(node, allow_graceful=False)
                while cluster.places(3, 0):
                    time.sleep(0.1)

    watcher, tree = AfterTheFirst(), TREE | {"algorithm": "prism"}
    outcome = carry_out(Experiment.load(tree, on), tmp_path, callbacks=[watcher])
    [error] = outcome.failed.values()
    assert "round 2: the Ray cluster has given no worker with 3 CPUs and 0 GPUs for " in error
    assert "no node has room for one (execution.on.patience: 4)" in error
    assert time.monotonic() - watcher.at < 4 + 40, "Ray itself takes a while to notice"
    same = carry_out(Experiment.load(tree)).rounds
    resumed = carry_out(Experiment.load(tree), tmp_path).rounds
    assert resumed["train_loss"].tolist() == same["train_loss"].tolist()


@pytest.mark.parametrize("how", ["die", "hang"])
def test_an_actor_that_dies_or_hangs_is_replaced(nodes, tmp_path, how):
    """``die`` is what the system does to a process for memory."""
    params = {"how": how, "marks": str(tmp_path)}
    from ray_methods import Hostile

    one, records = on_ray(Hostile, settings={"limit": 4}, **params)
    assert (tmp_path / "mark-0").exists(), "it happened"
    same_as_threads(one, records, Hostile, **params)


def test_an_actor_that_raises_is_the_runs_failure(nodes, tmp_path):
    from ray_methods import Hostile

    with pytest.raises(ValueError, match="a method's own mistake"):
        on_ray(Hostile, how="raise", marks=str(tmp_path))


def test_tasks_that_kill_every_worker_end_the_run(nodes, tmp_path):
    from ray_methods import Hostile

    with pytest.raises(RuntimeError, match="Ray workers were lost 3 times over the same tasks in round 1"):
        on_ray(Hostile, how="die", marks=str(tmp_path), times=100, settings={"workers": 1})


@pytest.mark.parametrize("method", FIVE)
def test_what_travels_is_what_costs_says(method):
    """Bytes of each client's sub-models down and up; the message around them is small. Needs no cluster."""
    one = federation(method, keep=(0.4, 0.2), at_once=1, executor=RayExecutor)
    opened = one.open(0)
    actor = Trainer()
    actor.trainer, actor.at_once = one.trainer, 10
    travelled = dict.fromkeys((client.number for client in opened.cohort), 0)
    for group in opened.groups(1):
        clients, sent = one.executor.pack(opened, group)
        [(came, _, _)] = actor.train(0, [(clients, sent)])
        arrays = [*sent.values(), *came.values()]
        travelled[group[0].client.number] += sum(array.nbytes for array in arrays)
        assert len(pickle.dumps((clients, sent))) < sum(array.nbytes for array in sent.values()) + 4000
    assert list(travelled.values()) == [cost.transfer_bytes for cost in opened.costs]


def test_a_group_that_memory_has_no_room_for_is_halved():
    class Small:
        """A trainer with memory for two clients."""

        def __init__(self, trainer):
            self.trainer, self.seen = trainer, []
            self.device, self.algorithm = trainer.device, trainer.algorithm

        def train(self, round, tasks, state):
            self.seen.append(len(tasks))
            if len(tasks) > 2:
                next(iter(state.values())).zero_()  # some of it was done already
                raise torch.OutOfMemoryError("there is none")
            return self.trainer.train(round, tasks, state)

    one = federation("fedavg", at_once=4, executor=RayExecutor)
    opened = one.open(0)
    clients, sent = one.executor.pack(opened, opened.tasks)
    actor = Trainer()
    actor.trainer, actor.at_once = Small(one.trainer), 10
    [(came, losses, memories)] = actor.train(0, [(clients, sent)])
    assert actor.trainer.seen == [4, 2, 2]
    actor.train(0, [(clients, sent)])
    assert actor.trainer.seen == [4, 2, 2, 2, 2], "it remembers"
    pairs = [one.trainer.train(0, pair, opened.gather(pair)) for pair in (opened.tasks[:2], opened.tasks[2:])]
    for name, array in came.items():
        assert np.array_equal(array, torch.cat([pair.state[name] for pair in pairs]).numpy())
    assert len(losses) == len(memories) == 4


def test_messages_are_worth_their_trip():
    class Two(RayExecutor):
        def _start(self):
            self._count = 2

    one = federation("fedavg", sizes=(2,) * 40, at_once=1, executor=Two)
    opened = one.open(0)
    groups = list(opened.groups(1))
    messages = one.executor.messages(opened, groups)
    assert [number for message in messages for number in message] == list(range(40))
    assert len(messages) == 4, "two for each worker, as small sub-models are sent together"
    opened.costs = [type(opened.costs[0])(*[2**22] * 5)] * 40
    assert len(one.executor.messages(opened, groups)) == 40, "large ones alone"


def test_bad_settings_are_known_before_anything_runs(tmp_path, monkeypatch):
    tree = TREE | {"algorithm": "prism"}
    for given, message in (
        ({"wokers": 2}, r"execution.on.wokers: there is no such setting. Did you mean 'workers'"),
        ({"cpus": 0}, r"execution.on.cpus: .*greater than 0"),
        ({"workers": 0}, r"execution.on.workers"),
    ):
        with pytest.raises(BadInput, match=message):
            carry_out(Experiment.load(tree, {"execution.on": {"name": "ray", **given}}), tmp_path)
    with pytest.raises(BadInput, match="'ray' starts processes of its own for each run; use --jobs 1"):
        carry_out(Experiment.load(tree, {"execution.on": "ray"}), tmp_path, jobs=2)
    monkeypatch.setattr("prism_bench.integrations.ray.cluster.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"execution.on: needs Ray, .* pip install 'prism-bench\[ray\]'"):
        carry_out(Experiment.load(tree, {"execution.on": "ray"}), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_room_that_no_node_has_is_an_error(nodes):
    with pytest.raises(BadInput, match="no node of the Ray cluster has 64 CPUs and 0 GPUs; the largest have 1 CPUs"):
        on_ray("fedavg", settings={"cpus": 64})


def test_a_ray_of_ones_own_listens_to_nobody_else_and_leaves_nothing(marked, tmp_path):
    """Killed in the middle, too; nothing connects beyond the loopback, and Ray's files are where RAY_TMPDIR says."""
    (tmp_path / "tiny.json").write_text(
        json.dumps(TREE | {"algorithm": "prism", "training": TREE["training"] | {"rounds": 10000}})
    )
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    kept |= {"HOME": str(tmp_path), "RAY_TMPDIR": str(marked.folder), "RAY_TEST_MARK": marked.mark}
    command = [sys.executable, "-m", "prism_bench", "run", "tiny.json", "--out", "out"]
    process = subprocess.Popen(
        [*command, "--set", "execution.on={name: ray, workers: 1, cpus: 0.5}"],
        cwd=tmp_path, env=kept, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not list((tmp_path / "out").glob("runs/*/checkpoint*")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    everyone = marked.alive()
    assert len(everyone) > 3
    assert beyond_loopback(everyone) == []
    assert list((marked.folder / "ray").glob("session_*"))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    # Ray's own agents sometimes look for their node for a minute before they end.
    assert list(map(command_of, marked.alive(grace=120))) == []
    assert not (tmp_path / ".ray").exists(), "nothing in the home folder"
