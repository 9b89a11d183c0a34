"""The regression gate in all three outcomes: within, slipped, can't compare."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from raw_data import REAL, real

from prism_bench.analysis import gate
from prism_bench.base.errors import BadInput
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.results import Results
from prism_bench.harness.runner import carry_out

SMALL = {
    "name": "small",
    "seeds": 2,
    "data": "digits",
    "partition": {"name": "iid", "clients": 6},
    "model": {"name": "smallcnn", "width": 5},
    "training": {"rounds": 3, "active": 2, "epochs": 1},
    "grid": {"algorithm": ["fedavg", "prism"], "capacity.keep": [0.4]},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("results") / "small"
    carry_out(Experiment.load(SMALL), out)
    return out


@pytest.fixture
def baseline(results, tmp_path, here):
    code, printed, _ = here("check", "base.csv", str(results), "--update")
    assert code == 0
    assert "base.csv: 15 numbers" in " ".join(printed.split())
    return tmp_path / "base.csv"


def changed(baseline, metric, value, algorithm="prism"):
    """The baseline with one number replaced by what ``value`` makes of it."""
    frame = gate.read(baseline)
    row = (frame["metric"] == metric) & (frame["algorithm"] == algorithm)
    assert row.sum() == 1
    frame.loc[row, "value"] = frame.loc[row, "value"].map(value)
    frame.to_csv(baseline, index=False)


def test_what_a_baseline_records(baseline):
    frame = gate.read(baseline)
    costs = ["parameters", "macs", "activation_bytes", "training_bytes", "transfer_bytes"]
    assert frame[frame["algorithm"] == "fedavg"]["metric"].tolist() == ["accuracy", *costs, "overhead"]
    assert frame[frame["algorithm"] == "prism"]["metric"].tolist() == ["accuracy", *costs, "train_time", "overhead"]
    assert dict(zip(frame["metric"], frame["better"], strict=True)) == {
        "accuracy": "higher", **dict.fromkeys([*costs, "train_time", "overhead"], "lower"),
    }  # fmt: skip
    assert frame["experiment"].unique().tolist() == ["small"]


def test_nothing_moved(baseline, results, here):
    code, printed, _ = here("check", "base.csv", str(results))
    assert code == 0
    assert "15 within tolerance, 15 of them unchanged." in printed


@pytest.mark.parametrize(
    ("metric", "value", "code", "word"),
    [
        ("accuracy", lambda v: v + 2.5, 1, "slipped"),
        ("accuracy", lambda v: v + 1.5, 0, "within"),
        ("accuracy", lambda v: v - 2.5, 0, "better"),
        ("macs", lambda v: v / 1.01, 1, "slipped"),
        ("macs", lambda v: v * 1.01, 0, "better"),
        ("train_time", lambda v: v / 2.5, 1, "slipped"),
        ("train_time", lambda v: v / 1.5, 0, "within"),
        ("overhead", lambda v: v - 0.2, 1, "slipped"),
    ],
)
def test_a_number_that_moved(baseline, results, here, metric, value, code, word):
    changed(baseline, metric, value)
    ended, printed, _ = here("check", "base.csv", str(results))
    assert ended == code, printed
    [line] = [line for line in printed.splitlines() if metric in line]
    assert word in line


def test_what_cant_be_compared(baseline, results, here, tmp_path):
    frame = gate.read(baseline)
    gone = frame.assign(algorithm=frame["algorithm"].replace("prism", "fedrolex"))
    gone.to_csv(baseline, index=False)
    code, printed, errors = here("check", "base.csv", str(results))
    assert code == 2
    assert "8 missing: no such number in the results" in printed
    assert "not all of the baseline can be compared" in errors
    frame.assign(identity="0" * 12).to_csv(baseline, index=False)
    code, printed, _ = here("check", "base.csv", str(results))
    assert code == 2
    assert "15 other: the settings or seeds are not those of the baseline" in printed


def test_other_seeds_are_other_results(baseline, tmp_path, here):
    carry_out(Experiment.load(SMALL, seeds=[7, 8]), tmp_path / "other")
    assert here("check", "base.csv", "other")[0] == 2


def test_an_unfinished_experiment_is_no_basis(tmp_path, results, here):
    unfinished = Experiment.load(SMALL, seeds=1)
    carry_out(unfinished, tmp_path / "part")
    part = Results.open(tmp_path / "part")
    about = part.about
    about["runs"].append(about["runs"][0] | {"folder": "x-y-z", "labels": about["runs"][0]["labels"] | {"run": "x"}})
    part.write()
    code, _, printed = here("check", "new.csv", "part", "--update")
    assert code == 2
    assert "only 2 of 3 runs are done" in printed
    assert not (tmp_path / "new.csv").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "can't be read as a baseline"),
        ("a,b\n1,2\n", "is no baseline: column 'experiment' is missing"),
        (",".join(gate.COLUMNS) + "\n", "needs one row per number, all of one experiment"),
        (",".join(gate.COLUMNS) + "\ns,d,m,p,a,v,k,x,accuracy,90,lots,higher,i\n", "line 2: tolerance: needs a number"),
        (",".join(gate.COLUMNS) + "\ns,d,m,p,a,v,k,x,accuracy,90,-1,higher,i\n", "line 2: tolerance: needs a number"),
        (",".join(gate.COLUMNS) + "\ns,d,m,p,a,v,k,x,accuracy,90,1,up,i\n", "line 2: needs a value, and 'higher'"),
        (",".join(gate.COLUMNS) + "\ns,d,m,p,a,v,k,x,accuracy,ninety,1,higher,i\n", "can't be read as a baseline"),
        ("\x00\x01\x02", "base.csv"),
    ],
)
def test_a_bad_baseline_is_named(tmp_path, results, here, content, message):
    (tmp_path / "base.csv").write_text(content)
    code, _, printed = here("check", "base.csv", str(results))
    assert code == 2
    assert message in printed


def test_bad_arguments(tmp_path, results, here):
    assert "there is no such baseline" in here("check", "none.csv", str(results))[2]
    assert "RESULTS: is needed" in here("check", "none.csv", "--update")[2]
    assert "holds no results" in here("check", "none.csv", "nowhere", "--update")[2]
    code, _, printed = here("check", "none.csv", str(results), "--update", "--time", "fast")
    assert code == 2
    assert "--time: needs a number such as 2, or a percentage" in printed
    assert list(tmp_path.iterdir()) == []


def test_the_results_folder_is_found_by_the_experiments_name(baseline, results, tmp_path, here):
    (tmp_path / "results").symlink_to(results.parent)
    assert here("check", "base.csv")[0] == 0


def test_a_baseline_of_another_experiment_stays(baseline, tmp_path, here):
    carry_out(Experiment.load(SMALL | {"name": "other"}, seeds=1), tmp_path / "other")
    before = baseline.read_text()
    code, _, printed = here("check", "base.csv", "other", "--update")
    assert code == 2
    assert "base.csv: is of the experiment 'small', and other of 'other'" in printed
    assert baseline.read_text() == before


def test_numbers_that_the_baseline_has_not(baseline, results, here):
    gate.read(baseline).iloc[:6].to_csv(baseline, index=False)
    code, printed, _ = here("check", "base.csv", str(results))
    assert code == 0
    assert "9 numbers of the results are not in the baseline" in printed


def test_tolerances_that_somebody_set_stay(baseline, results, here):
    frame = gate.read(baseline)
    frame.loc[frame["metric"] == "accuracy", "tolerance"] = "7"
    frame.to_csv(baseline, index=False)
    assert here("check", "base.csv", str(results), "--update", "--costs", "3%")[0] == 0
    again = gate.read(baseline).drop_duplicates("metric").set_index("metric")["tolerance"]
    assert again["accuracy"] == "7"
    assert again["macs"] == "0.1%"


def bench(**medians):
    return {"benchmarks": [{"name": name, "stats": {"median": median}} for name, median in medians.items()]}


def test_benchmarks_are_ratios_to_the_calibration(tmp_path, here):
    """A machine that is three times slower in everything has not slipped; one benchmark that is has."""
    (tmp_path / "first.json").write_text(json.dumps(bench(test_calibration=0.5, test_one=1.0, test_two=2.0)))
    assert here("check", "speed.csv", "first.json", "--update", "--time", "50%")[0] == 0
    frame = gate.read(tmp_path / "speed.csv")
    assert dict(zip(frame["metric"], frame["value"], strict=True)) == {"test_one": 2.0, "test_two": 4.0}
    (tmp_path / "slower.json").write_text(json.dumps(bench(test_calibration=1.5, test_one=3.0, test_two=6.0)))
    assert here("check", "speed.csv", "slower.json")[0] == 0
    (tmp_path / "slipped.json").write_text(json.dumps(bench(test_calibration=0.5, test_one=1.6, test_two=2.0)))
    code, printed, _ = here("check", "speed.csv", "slipped.json")
    assert code == 1
    assert "test_one" in printed
    assert "+1.2" in printed
    (tmp_path / "gone.json").write_text(json.dumps(bench(test_calibration=0.5, test_one=1.0)))
    assert here("check", "speed.csv", "gone.json")[0] == 2
    (tmp_path / "none.json").write_text(json.dumps(bench(test_one=1.0)))
    code, _, printed = here("check", "speed.csv", "none.json")
    assert code == 2
    assert "has no benchmark called 'test_calibration'" in printed
    (tmp_path / "bad.json").write_text("{")
    assert "can't be read as what pytest --benchmark-json writes" in here("check", "speed.csv", "bad.json")[2]


def test_ratios_by_hand():
    """The fastest round of each run and of the reference of the same data; shares of a round without evaluation."""
    columns = ["run", "cuts", "seed", "seconds_create", "seconds_train", "seconds_merge", "seconds_refresh"]
    rows = [
        ["f0", False, 0, 0.0, 4.0, 0.0, 0.0],
        ["f1", False, 1, 0.0, 8.0, 0.0, 0.0],
        ["p0", True, 0, 0.5, 1.0, 0.25, 0.25],
        ["p0", True, 0, 9.0, 9.0, 9.0, 9.0],
        ["p0", True, 0, 0.5, 1.0, 0.25, 0.25],
        ["p1", True, 1, 0.0, 1.0, 0.0, 0.0],
    ]
    labels = {"data": "d", "model": "m", "partition": "p", "settings": ""}
    times = gate._times(pd.DataFrame(rows, columns=columns).assign(**labels))
    assert times["train_time"].tolist() == pytest.approx([float("nan"), float("nan"), 0.25, 0.25], nan_ok=True)
    assert times["overhead"].tolist() == [0, 0, 0.5, 0]


def test_a_tolerance():
    assert gate.allowed(50, "2") == 2
    assert gate.allowed(50, "10%") == 5
    with pytest.raises(BadInput, match="x: needs a number"):
        gate.allowed(50, "inf", "x")


@real
def test_real_results_have_not_slipped(here, monkeypatch):
    """Accuracy and costs of the five methods on FEMNIST; times are the business of `tox`, which runs alone."""
    monkeypatch.setenv("PRISM_BENCH_DATA", str(REAL))
    assert here("run", "ci_femnist", "--out", "now")[0] == 0
    code, printed, _ = here("check", str(Path(__file__).parents[1] / "results/baselines/ci_femnist.csv"), "now")
    assert code == 0, printed
