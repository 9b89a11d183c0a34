"""Experiments: a grid of runs, resumed by being run again; tables; the Python API."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

import prism_bench
from prism_bench.base.errors import BadInput
from prism_bench.data.dataset import Split
from prism_bench.data.digits import Digits
from prism_bench.harness.callbacks import Callback
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.runner import carry_out

SMALL = {
    "name": "small",
    "seeds": 2,
    "data": "digits",
    "partition": {"name": "iid", "clients": 6},
    "model": {"name": "smallcnn", "width": 5},
    "training": {"rounds": 2, "active": 2, "epochs": 1},
    "grid": {"algorithm": ["fedavg", "prism", {"name": "prism", "channels": "all"}], "capacity.keep": [0.2, 0.4]},
}
TIMES = ["seconds", *(f"seconds_{stage}" for stage in ("create", "train", "merge", "refresh", "evaluate"))]


def numbers(frame):
    return frame.drop(columns=TIMES)


def test_the_grid():
    runs = Experiment.load(SMALL).runs
    # FedAvg has no capacity: one run a seed. PriSM: two variants × two keep ratios × two seeds.
    assert len(runs) == 2 + 8
    assert [run.label for run in runs[:3]] == ["fedavg, seed 0", "fedavg, seed 1", "prism at 0.2, seed 0"]


def test_quickstart_has_all_five_at_two_keep_ratios():
    runs = Experiment.load("quickstart").runs
    cells = {(run.algorithm.name, run.capacity.label) for run in runs}
    assert {name for name, _ in cells} >= {"fedavg", "prism", "orthdrop", "origdrop", "splitmix"}
    assert len({keep for name, keep in cells if name == "prism"}) == 2
    assert len({run.seed for run in runs}) >= 2


def testparse_overrides():
    def loaded(**overrides):
        return Experiment.load(SMALL, {key.replace("__", "."): value for key, value in overrides.items()}).runs

    assert {run.training.rounds for run in loaded(training__rounds=7)} == {7}
    assert {run.capacity.keep for run in loaded(capacity__keep=0.5)} == {(1.0,), (0.5,)}
    assert {run.algorithm.name for run in loaded(algorithm="orthdrop")} == {"orthdrop"}
    kappas = {run.algorithm.name: getattr(run.algorithm.settings, "kappa", None) for run in loaded(algorithm__kappa=4)}
    assert kappas == {"fedavg": None, "prism": 4}
    assert {run.data.settings.test_share for run in loaded(data__test_share=0.5)} == {0.5}
    assert {run.capacity.label for run in loaded(capacity={"keep": [0.4, 0.2], "share": [0.5, 0.5]})} == {
        "1",
        "0.4 (50%) + 0.2 (50%)",
    }
    assert {run.training.lr for run in loaded(grid__training__lr=[0.3, 0.4])} == {0.3, 0.4}
    wide = SMALL | {"grid": {"model": ["smallcnn", "cnn"], "algorithm": ["fedavg"], "training": [{"rounds": 1}]}}
    below = Experiment.load(wide, {"model.width": 3, "model.norm": "batch", "training.active": 1}).runs
    assert {(run.model.name, run.model.settings.width, run.training.active) for run in below} == {
        ("smallcnn", 3, 1),
        ("cnn", 3, 1),
    }
    assert len(Experiment.load(SMALL, seeds=[5]).runs) == 5
    assert {run.seed for run in Experiment.load(SMALL, seeds=3).runs} == {0, 1, 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algoritm": "prism"}, "algoritm: there is no such setting. Did you mean 'algorithm'?"),
        ({"grid": {"algorithm": ["prims"]}}, "algorithm.name: there is no algorithm called 'prims'. Did you"),
        ({"model": "resnet"}, "model.name: there is no model called 'resnet'. Did you mean 'resnet18'?"),
        ({"training": {"round": 3}}, "training.round: there is no such setting. Did you mean 'rounds'?"),
        ({"training": {"lr": "fast"}}, "training.lr: Input should be a valid number"),
        ({"training": {"lr": -1}}, "training.lr: Input should be greater than 0 (got -1)"),
        ({"training": {"lr": float("nan")}}, "training.lr: "),
        ({"training": 3}, "training: needs settings below it (got 3)"),
        ({"grid": {"algorithm": ["prism"], "capacity.keep": [0.2, 1.5]}}, "capacity.keep: a keep ratio must be above"),
        ({"grid": {"algorithm": ["prism"], "capacity.keep": [0]}}, "capacity.keep: a keep ratio must be above"),
        ({"capacity": {"keep": [0.4, 0.2], "share": [0.4, 0.4]}, "grid": {"algorithm": ["prism"]}}, "add up to 1"),
        ({"partition": {"name": "iid", "clients": 1}}, "training.active: 2 active clients per round, but partition"),
        ({"partition": {"name": "dirichlet", "clients": 6}}, "partition.alpha: is missing"),
        ({"grid": {"algorithm": [{"name": "prism", "kapa": 3}]}}, "algorithm.kapa: there is no such setting. Did you"),
        ({"grid": 7}, "grid: needs settings with a list"),
        ({"grid": {1: [2]}}, "grid.1: there is no such setting"),
        ({"grid": {"seeds": [2]}}, "grid.seeds: there is no such setting"),
        ({"grid": {"algorithm": []}}, "grid.algorithm: needs at least one value"),
        ({"grid": {"algorithm": [3]}}, "algorithm: needs a name"),
        ({"grid": {"algorithm": [{"kappa": 3}]}}, "algorithm: needs a name"),
        ({"execution": 3}, "execution: needs settings below it (got 3)"),
        ({"training": {3: 4}}, "training.3: there is no such setting"),
        ({"seeds": 0}, "seeds: a number of seeds"),
        ({"seeds": [1, -2]}, "seeds: a number of seeds"),
        ({"name": "../up"}, "name: must be letters"),
        ({"data": None}, "data: needs a name"),
        ({"model": ["cnn", "smallcnn"]}, "Several to compare go below 'grid:'."),
        ({"grid": {"algorithm": ["prism"], "capacity.kep": [0.2]}}, "capacity.kep: there is no such setting"),
        ({"grid": {"algorithm": ["prism"], "training.lr.x": [0.2]}}, "training.lr"),
    ],
)  # fmt: skip
def test_bad_settings_are_named(change, message):
    with pytest.raises(BadInput) as error:
        Experiment.load(SMALL | change)
    assert message in str(error.value)


def test_a_section_in_the_grid_adds_to_the_files():
    runs = Experiment.load(SMALL | {"grid": {"algorithm": ["fedavg"], "training": [{"lr": 0.1}, {"lr": 0.2}]}}).runs
    assert {(run.training.rounds, run.training.epochs) for run in runs} == {(2, 1)}
    assert {run.training.lr for run in runs} == {0.1, 0.2}


def test_runs_that_a_table_cant_tell_apart_are_refused():
    grid = {"algorithm": ["prism"], "capacity": [{"keep": 0.4}, {"keep": 0.40000001}]}
    with pytest.raises(
        BadInput, match=r"two runs are both called 'prism at 0\.4, seed 0'; they differ in capacity\.keep"
    ):
        Experiment.load(SMALL | {"grid": grid})


def test_full_model_training_is_the_reference_of_every_mix(tmp_path):
    """FedAvg has no capacity, whatever mixes the grid compares the others at."""
    grid = {"algorithm": ["fedavg", "prism"], "capacity.share": [[0.5, 0.5], [0.2, 0.8]]}
    tree = SMALL | {"capacity": {"keep": [0.4, 0.2]}, "grid": grid}
    result = prism_bench.table(carry_out(Experiment.load(tree, seeds=1)).rounds)
    assert result["keep"].tolist() == ["1", "0.4 (50%) + 0.2 (50%)", "0.4 (20%) + 0.2 (80%)"]
    assert result["drop_n"].tolist() == [0, 1, 1]


def test_a_setting_that_no_algorithm_has():
    with pytest.raises(
        BadInput, match=r"algorithm\.kapa: none of fedavg, prism has this setting. Did you mean 'kappa'"
    ):
        Experiment.load(SMALL, {"algorithm.kapa": 4})


def test_finished_runs_are_kept_and_not_run_again(tmp_path):
    experiment = Experiment.load(SMALL)
    first = carry_out(experiment, tmp_path).rounds
    folders = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    assert len(folders) == 10
    again = carry_out(experiment, tmp_path).rounds
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()} == folders
    pd.testing.assert_frame_equal(numbers(first), numbers(again), check_exact=True, check_dtype=False)


def test_an_interrupted_experiment_goes_on_where_it_was(tmp_path):
    experiment = Experiment.load(SMALL)

    class Stop(Callback):
        def round_done(self, number, record):
            if number == 3 and record["round"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(experiment, tmp_path, callbacks=[Stop()])
    assert len(list((tmp_path / "runs").glob("*/done.json"))) == 3
    resumed, whole = carry_out(experiment, tmp_path).rounds, carry_out(experiment).rounds
    pd.testing.assert_frame_equal(numbers(resumed), numbers(whole), check_exact=True, check_dtype=False)


def test_other_data_is_another_run(tmp_path, monkeypatch):
    """The same settings on another subset of the data must not be taken for the run that is there."""
    experiment = Experiment.load(SMALL, {"algorithm": "fedavg"}, seeds=1)
    carry_out(experiment, tmp_path)
    load = Digits.load

    def fewer(self):
        data = load(self)
        return replace(data, test=Split(data.test.inputs[:100], data.test.labels[:100]))

    monkeypatch.setattr(Digits, "load", fewer)
    carry_out(experiment, tmp_path)
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_one_failing_cell_leaves_the_others_unharmed(tmp_path):
    grid = {"algorithm": ["fedavg"], "training.lr": [0.1, 1e30]}
    outcome = carry_out(Experiment.load(SMALL | {"grid": grid}), tmp_path)
    assert list(outcome.failed) == ["fedavg, seed 0, training.lr=1e+30", "fedavg, seed 1, training.lr=1e+30"]
    assert set(outcome.rounds["settings"]) == {"training.lr=0.1"}


def test_python_api_in_three_lines(tmp_path):
    rounds = prism_bench.run(SMALL, seeds=1, overrides={"training.rounds": 1})
    result = prism_bench.table(rounds)
    assert len(result) == 5
    assert list(tmp_path.iterdir()) == []
    files = prism_bench.write_pictures(rounds, tmp_path / "deep")
    assert [file.name for file in files] == ["curves.png", "drops.png", "costs.png"]
