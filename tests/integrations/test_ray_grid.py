"""A grid's runs as Ray tasks: the same results, whatever is lost on the way."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from prism_bench.harness.callbacks import Callback
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.results import STAGES, Results
from prism_bench.harness.runner import carry_out
from prism_bench.integrations.ray import grid as ray_grid
from prism_bench.integrations.ray.grid import RayGrid

if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed: pip install 'prism-bench[ray]'", allow_module_level=True)

TREE = {
    "name": "tiny",
    "data": {"name": "noise", "shape": [1, 8, 8], "classes": 4, "train": 60, "test": 20},
    "partition": {"name": "iid", "clients": 5},
    "model": {"name": "smallcnn", "width": 5},
    "capacity": {"keep": [0.4, 0.2], "share": [0.4, 0.6]},
    "training": {"rounds": 3, "active": 5, "epochs": 1, "batch": 4, "lr": 0.05},
    "execution": {"threads": 1},
    "algorithm": "prism",
}


def numbers(frame):
    return frame.drop(columns=["seconds", *(f"seconds_{stage}" for stage in STAGES)])


def same(one, other):
    pd.testing.assert_frame_equal(numbers(one), numbers(other), check_exact=True)


class Heard(Callback):
    def __init__(self, then=lambda number, record: None):
        self.started, self.rounds, self.ends, self.then = [], [], {}, then

    def run_started(self, number, run, label, done):
        self.started.append((number, done))

    def round_done(self, number, record):
        self.rounds.append((number, record["round"]))
        self.then(number, record)

    def run_done(self, number, label, summary, reused, error):
        self.ends[number] = "failed" if summary is None else "kept" if reused else "done"


def on_ray(experiment, out, heard=None, timeout=None, fresh=False, **how):
    with RayGrid(**how) as grid:
        callbacks = [] if heard is None else [heard]
        return carry_out(experiment, out, grid=grid, callbacks=callbacks, timeout=timeout, fresh=fresh)


@pytest.fixture
def not_shared(monkeypatch, tmp_path):
    """Workers don't find the folder of the results."""

    def sign(jobs):
        jobs[0].folder.path.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "elsewhere").touch()
        return tmp_path / "elsewhere"

    monkeypatch.setattr(RayGrid, "_sign", staticmethod(sign))
    monkeypatch.setattr(ray_grid, "FETCH_SECONDS", 0.0)


def test_a_grid_gives_the_same_results_and_says_how_it_goes(nodes, tmp_path):
    experiment = Experiment.load(TREE | {"grid": {"algorithm": ["fedavg", "prism", "splitmix"]}}, seeds=2)
    plain = carry_out(experiment, tmp_path / "here").rounds
    heard = Heard()
    same(on_ray(experiment, tmp_path / "ray", heard, cpus=1).rounds, plain)
    assert sorted(heard.rounds) == [(number, round) for number in range(6) for round in (1, 2, 3)]
    assert heard.ends == dict.fromkeys(range(6), "done")
    again = Heard()
    same(on_ray(experiment, tmp_path / "ray", again).rounds, plain)
    assert again.ends == dict.fromkeys(range(6), "kept")
    assert again.started == []
    left = [path.name for path in (tmp_path / "ray" / "runs").rglob(".*")]
    assert left == [], "neither leases nor signs"


def test_where_nodes_share_no_folder_results_are_fetched(nodes, tmp_path, not_shared):
    experiment = Experiment.load(TREE, seeds=3)
    plain = carry_out(experiment, tmp_path / "here").rounds
    heard = Heard()
    same(on_ray(experiment, tmp_path / "ray", heard).rounds, plain)
    assert heard.ends == dict.fromkeys(range(3), "done")
    for here, there in zip(*(sorted((tmp_path / name / "runs").iterdir()) for name in ("here", "ray")), strict=True):
        assert [file.name[:18] for file in sorted(here.iterdir())] == [
            file.name[:18] for file in sorted(there.iterdir())
        ]


LONG = TREE | {"training": TREE["training"] | {"rounds": 60}}


@pytest.mark.parametrize("shared", [True, False])
def test_a_node_that_dies_in_mid_grid_changes_nothing(nodes, another, tmp_path, request, shared):
    if not shared:
        request.getfixturevalue("not_shared")
    experiment = Experiment.load(LONG)
    plain = carry_out(experiment, tmp_path / "here").rounds
    rooms = [
        another(
            num_cpus=2,
        )
        for _ in range(2)
    ]
    lost = []

    def kill(number, record):
        """The node that has the run."""
        if record["round"] >= 5 and not lost:
            import ray

            busy = [node for node in rooms if _busy(ray, node)]
            for node in busy:
                nodes.remove_node(node, allow_graceful=False)
            lost.extend(busy)

    heard = Heard(kill)
    with pytest.warns(UserWarning, match="prism.* is started again: "):
        outcome = on_ray(experiment, tmp_path / "ray", heard, cpus=2)
    same(outcome.rounds, plain)
    assert len(lost) == 1
    (first, second) = heard.started
    assert first == (0, 0)
    assert second[1] >= (4 if shared else 1), "it went on from its last checkpoint"


def _busy(ray, node):
    """Whether a worker on the node does a run."""
    [one] = [there for there in ray.nodes() if there["NodeID"] == node.node_id]
    available = ray._private.state.available_resources_per_node()[one["NodeID"]]
    return available.get("CPU", 0) < 2


def test_a_killed_driver_is_started_again(nodes, tmp_path):
    (tmp_path / "tiny.json").write_text(json.dumps(LONG | {"training": LONG["training"] | {"rounds": 200}}))
    command = [sys.executable, "-m", "prism_bench", "run", "tiny.json", "--out", "out", "--seeds", "2"]
    command += ["--on", "ray", "--address", nodes.address]
    first = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while len(list((tmp_path / "out").glob("runs/*/checkpoint*"))) < 4:
        assert first.poll() is None, first.stderr.read()
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert Results.open(tmp_path / "out").runs().empty
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("goes on after round") == 2
    experiment = Experiment.load(tmp_path / "tiny.json", seeds=2)
    same(Results.open(tmp_path / "out").rounds(), carry_out(experiment).rounds)


@pytest.mark.parametrize("how", ["raise", "hang", "die"])
def test_a_run_that_fails_takes_no_other_with_it(nodes, tmp_path, how, monkeypatch):
    from ray_methods import Hostile

    monkeypatch.setattr(ray_grid, "TRIES", 2)
    tree = LONG | {"grid": {"algorithm": ["fedavg", Hostile(how=how, marks=str(tmp_path), times=100)]}}
    heard = Heard()
    outcome = on_ray(Experiment.load(tree), tmp_path / "out", heard, timeout=3)
    assert heard.ends == {0: "done", 1: "failed"}
    [error] = outcome.failed.values()
    assert {
        "raise": "ValueError: a method's own mistake",
        "hang": "no round came to its end within 3 s (--timeout), so its process was ended.",
        "die": "its process or node was lost 2 times in a row",
    }[how] in error


def test_many_tiny_runs(nodes, tmp_path):
    tree = TREE | {"algorithm": "origdrop", "training": TREE["training"] | {"rounds": 1}}
    experiment = Experiment.load(tree, seeds=1000)
    heard = Heard()
    began = time.monotonic()
    outcome = on_ray(experiment, tmp_path / "out", heard)
    print(time.monotonic() - began)
    assert len(outcome.rounds) == 1000
    assert outcome.rounds["seed"].tolist() == list(range(1000))
    assert set(heard.ends.values()) == {"done"}


def test_other_data_on_a_node_is_an_error_of_the_run(nodes, tmp_path):
    [job] = _jobs(tmp_path)
    for part in (1, 2):
        names = list(job.folder.parts)
        names[part] = "0" * 8
        other = ray_grid.replace(job, folder=type(job.folder)(tmp_path / "-".join(names)))
        assert "has other" in ray_grid._elsewhere(other).error
    assert ray_grid._elsewhere(job) is None


def _jobs(out):
    from prism_bench.harness.jobs import Shelf, jobs_of
    from prism_bench.harness.run_folder import RunFolder

    experiment, shelf = Experiment.load(TREE), Shelf(lambda *_: None)
    [run] = experiment.runs
    return jobs_of(experiment, [RunFolder.of(out, run.identity, shelf.digest(run), run.code())], ["one"])


def test_what_cant_be_done_is_known_before_anything_is_written(nodes, tmp_path, here, monkeypatch):
    (tmp_path / "tiny.json").write_text(json.dumps(TREE))
    for options, message in (
        (["--on", "slurm"], "--on slurm: there is no such place. It may be ray"),
        (["--on", "ray", "--jobs", "2"], "--jobs: says how many runs go on here"),
        (["--address", "auto"], "--address: says how runs are carried out on Ray; add --on ray."),
        (["--gpus", "1"], "--gpus: says how runs are carried out on Ray; add --on ray."),
        (["--on", "ray", "--cpus", "0"], "--cpus 0: must be a number above 0."),
        (["--on", "ray", "--cpus", "nan"], "--cpus nan: must be a number above 0."),
        (["--on", "ray", "--gpus", "inf"], "--gpus inf: must be a whole number of GPUs, or a fraction of one."),
        (["--on", "ray", "--gpus", "1.5"], "--gpus 1.5: must be a whole number of GPUs, or a fraction of one."),
        (["--on", "ray", "--device", "cuda"], "--gpus: the runs are to compute on cuda, so say how many GPUs"),
        (["--on", "ray", "--gpus", "1"], "no node of the Ray cluster has 1 CPUs and 1 GPUs; the largest have"),
        (["--on", "ray", "--set", "execution.on=ray"], "execution.on: 'ray' starts processes of its own for each run"),
    ):
        code, _, err = here("run", "tiny.json", "--out", "out", *options)
        assert (code, message in err) == (2, True), err
    monkeypatch.setattr("prism_bench.integrations.ray.cluster.find_spec", lambda name: None)
    code, _, err = here("run", "tiny.json", "--out", "out", "--on", "ray")
    assert (code, "--on ray: needs Ray, which is not installed: pip install 'prism-bench[ray]'." in err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.json"]


def test_a_cluster_that_is_not_there(tmp_path):
    (tmp_path / "tiny.json").write_text(json.dumps(TREE))
    command = [sys.executable, "-m", "prism_bench", "run", "tiny.json", "--out", "out", "--on", "ray"]
    done = subprocess.run(
        [*command, "--address", "127.0.0.1:1"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 2
    assert "address: no Ray cluster answers at '127.0.0.1:1'" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.json"]
