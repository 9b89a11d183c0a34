"""The regression gate in all three outcomes: as recorded, moved, can't compare."""

from __future__ import annotations

import importlib.metadata
import json
import math
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
import torch
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
    "evaluation": {"every": 3},
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
    assert "base.csv: 59 numbers" in " ".join(printed.split())
    return tmp_path / "base.csv"


def changed(baseline, metric, value, round="3", elsewhere=False):
    """The baseline with one of prism's numbers replaced by what ``value`` makes of it, of another machine maybe."""
    frame = gate.read(baseline)
    row = (frame["metric"] == metric) & (frame["algorithm"] == "prism")
    row &= frame["seed"].isin(["", "1"]) & frame["round"].isin(["", round])
    assert row.sum() == 1
    frame.loc[row, "value"] = frame.loc[row, "value"].map(value)
    if elsewhere:
        frame["made_with"] = frame["made_with"].str.replace("torch 2", "torch 1")
    frame.to_csv(baseline, index=False)


def test_what_a_baseline_records(baseline):
    """Two algorithms × two seeds: a loss per round, accuracies in the last one, costs; then times per cell."""
    frame = gate.read(baseline)
    costs = ["parameters", "macs", "activation_bytes", "training_bytes", "transfer_bytes"]
    one = frame[(frame["algorithm"] == "prism") & (frame["seed"] == "1")]
    each = ["train_loss", "accuracy", "accuracy_full", "accuracy_trained", "accuracy_client_1", "accuracy_worst"]
    assert one[one["round"] == "2"]["metric"].tolist() == ["train_loss"], "evaluated in the last round only"
    assert one[one["round"] == "3"]["metric"].tolist() == [*each, "test_loss"]
    assert one[one["round"] == ""]["metric"].tolist() == costs
    assert frame[frame["seed"] == ""]["metric"].tolist() == ["overhead", "train_time", "overhead"]
    higher = frame[frame["better"] == "higher"]["metric"]
    assert higher.str.startswith("accuracy").all()
    assert len(higher) == 4 * 5
    assert frame[frame["metric"].isin(costs)]["tolerance"].unique().tolist() == ["0"]
    [made_with] = frame[frame["seed"] != ""]["made_with"].unique()
    assert f"torch {torch.__version__}" in made_with
    assert "threads 1" in made_with


def test_nothing_moved(baseline, results, here):
    code, printed, _ = here("check", "base.csv", str(results))
    assert code == 0
    assert "59 within tolerance, 59 of them unchanged; 56 had to be." in printed


UP, DOWN = (lambda v: math.nextafter(v, math.inf)), (lambda v: math.nextafter(v, 0))


@pytest.mark.parametrize(
    ("metric", "value", "here_says", "elsewhere_says"),
    [
        ("accuracy", lambda v: v + 2.5, "slipped", "slipped"),
        ("accuracy", lambda v: v + 1.5, "rounding", None),
        ("accuracy", lambda v: v - 2.5, "better", "better"),
        ("test_loss", UP, "rounding", None),
        ("test_loss", DOWN, "rounding", None),
        ("train_loss", lambda v: v * 1.1, "better", "better"),
        ("train_loss", lambda v: v / 1.1, "slipped", "slipped"),
        ("macs", lambda v: v + 1, "better", "better"),
        ("macs", lambda v: v - 1, "slipped", "slipped"),
    ],
)
def test_a_number_that_moved(baseline, results, here, metric, value, here_says, elsewhere_says):
    """By the last digit it counts where machine and torch are the recorded ones; costs count everywhere, both ways."""
    content = baseline.read_text()
    for elsewhere, word in ((False, here_says), (True, elsewhere_says)):
        baseline.write_text(content)
        changed(baseline, metric, value, elsewhere=elsewhere)
        code, printed, _ = here("check", "base.csv", str(results))
        assert code == (1 if word else 0), printed
        [line] = [line for line in printed.splitlines() if f" {metric} " in line]
        assert (word or "within") in line
        assert ("56 had to be" in printed) is not elsewhere
        tolerant, again, _ = here("check", "base.csv", str(results), "--tolerant")
        assert tolerant == (1 if elsewhere_says else 0), again


@pytest.mark.parametrize(
    ("metric", "value", "code", "word"),
    [
        ("train_time", lambda v: v / 2.5, 1, "slipped"),
        ("train_time", lambda v: v / 1.5, 0, "within"),
        ("train_time", lambda v: v * 9, 0, "within"),
        ("overhead", lambda v: v - 0.2, 1, "slipped"),
        ("overhead", lambda v: v + 0.2, 0, "better"),
    ],
)
def test_a_time_may_get_better(baseline, results, here, metric, value, code, word):
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
    assert "30 missing: no such number in the results" in printed
    assert "28 new: not in the baseline" in printed
    assert "nan" not in printed.lower()
    assert "not all of the baseline can be compared" in errors
    frame.assign(identity="0" * 12).to_csv(baseline, index=False)
    code, printed, _ = here("check", "base.csv", str(results))
    assert code == 2
    assert "59 other: the settings or seeds are not those of the baseline" in printed


def test_an_older_baseline_says_how_to_renew_it(baseline, results, here):
    frame = gate.read(baseline).drop(columns=["seed", "round", "made_with"])
    frame.to_csv(baseline, index=False)
    for more in ((), ("--update",)):
        code, _, errors = here("check", "base.csv", str(results), *more)
        assert code == 2
        assert "it may be of an older version" in errors
        assert "Remove it, and prism-bench check base.csv RESULTS --update writes one" in " ".join(errors.split())


def test_a_tolerance_follows_from_another_rounding(baseline, results, tmp_path, here):
    """Four times the largest change over methods, seeds and losses up to that round; never less than a floor."""
    frame = gate.read(baseline)
    loss = frame["metric"].str.endswith("_loss")
    other = frame.copy()
    prism = (frame["metric"] == "train_loss") & (frame["algorithm"] == "prism")
    other.loc[prism & (frame["seed"] == "1") & (frame["round"] == "2"), "value"] *= 1.001
    numbers = gate.rounding_of(frame, [frame, other])
    found = numbers[loss].groupby("round")["tolerance"].unique().map(list).to_dict()
    assert found == {"1": ["0.001%"], "2": ["0.4%"], "3": ["0.4%"]}
    rest = numbers[~loss & (frame["seed"] != "")].groupby("metric")["tolerance"].unique().map(list)
    assert rest["accuracy"] == ["1"]
    assert rest["macs"] == ["0"]
    with pytest.raises(BadInput, match="needs results of the same settings and seeds"):
        gate.rounding_of(frame, [frame[frame["seed"] != "1"]])
    carry_out(Experiment.load(SMALL, overrides={"execution.at_once": 1}), tmp_path / "one")
    assert here("check", "base.csv", str(results), "--update", "--no-times", "--rounding", "one")[0] == 0
    assert here("check", "base.csv", "one", "--tolerant")[0] == 0
    losses = gate.read(baseline).query("metric == 'test_loss'")["tolerance"]
    assert all(float(text.removesuffix("%")) < 1 for text in losses), "rounding is far below the default"
    assert "--rounding: goes with --update" in here("check", "base.csv", str(results), "--rounding", "one")[2]


def test_what_ci_systems_read(baseline, results, here):
    changed(baseline, "accuracy", lambda v: v + 2.5)
    code, printed, _ = here("check", "base.csv", str(results), "--format", "json")
    found = json.loads(printed)
    assert (code, found["passed"], found["counts"]) == (1, False, {"within": 58, "slipped": 1})
    [moved] = [row for row in found["moved"] if row["fails"]]
    assert (moved["algorithm"], moved["seed"], moved["round"], moved["metric"]) == ("prism", "1", "3", "accuracy")
    assert moved["change"] == pytest.approx(-2.5)
    code, printed, _ = here("check", "base.csv", str(results), "--format", "junit")
    suite = ElementTree.fromstring(printed)
    assert (code, suite.get("tests"), suite.get("failures")) == (1, str(len(suite)), "1")
    [case] = [case for case in suite if len(case)]
    assert (case.get("classname"), case.get("name")) == ("prism 0.4", "accuracy")
    assert case[0].get("message").startswith("slipped: seed 1 round 3: accuracy ")
    code, printed, _ = here("check", "base.csv", str(results), "--format", "github")
    first, last = printed.splitlines()
    assert code == 1
    assert first.startswith("::error file=base.csv,title=prism 0.4%3A accuracy::slipped: seed 1 round 3: accuracy ")
    assert last.endswith("against base.csv: 58 within, 1 slipped")
    code, _, errors = here("check", "base.csv", str(results), "--format", "xml")
    assert code == 2
    assert "--format xml: must be one of text, json, junit, github" in errors


def test_a_number_that_is_gone_is_null(baseline, results, here):
    frame = gate.read(baseline)
    pd.concat([frame, frame.tail(1).assign(metric="gone\n100%")]).to_csv(baseline, index=False)
    code, printed, _ = here("check", "base.csv", str(results), "--format", "json")
    [row] = [row for row in json.loads(printed)["moved"] if row["fails"]]
    assert (code, row["now"], row["change"]) == (2, None, None)
    printed = here("check", "base.csv", str(results), "--format", "github")[1]
    assert "gone%0A100%25" in printed.splitlines()[0]
    assert "nan" not in printed.lower()


def test_exported_results_are_equal_to_the_last_digit(baseline, results, tmp_path, here):
    shutil.copytree(results, tmp_path / "exported", ignore=shutil.ignore_patterns("runs"))
    _, printed, _ = here("check", "base.csv", "exported", "--format", "json")
    assert [row for row in json.loads(printed)["moved"] if row["metric"] not in ("train_time", "overhead")] == []


NOT_IN_CI: dict[str, str] = {}
"""Registered algorithms of this distribution that `ci` leaves out, each with a reason."""


def test_every_algorithm_of_this_distribution_is_in_ci():
    """A new method that the gate does not hold would not be guarded: put it into ci.yaml, and renew the baseline."""
    points = importlib.metadata.distribution("prism-bench").entry_points.select(group="prism_bench.algorithms")
    runs = {run.algorithm.name for run in Experiment.load("ci").runs}
    assert {point.name for point in points} == runs | NOT_IN_CI.keys()
    assert not runs & NOT_IN_CI.keys()


def test_the_recorded_baseline_is_of_ci_as_it_is():
    """Else the gate compares nothing: prism-bench run ci, and check --update."""
    recorded = gate.read(Path(__file__).parents[1] / "results/baselines/ci.csv")
    each = recorded[recorded["seed"] != ""]
    assert set(each["identity"]) == {run.identity for run in Experiment.load("ci").runs}


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
        (
            ",".join(gate.COLUMNS) + "\ns,d,m,p,a,v,k,x,0,1,accuracy,90,lots,higher,i,w\n",
            "line 2: tolerance: needs a number",
        ),
        (
            ",".join(gate.COLUMNS) + "\ns,d,m,p,a,v,k,x,0,1,accuracy,90,-1,higher,i,w\n",
            "line 2: tolerance: needs a number",
        ),
        (
            ",".join(gate.COLUMNS) + "\ns,d,m,p,a,v,k,x,0,1,accuracy,90,1,up,i,w\n",
            "line 2: needs a value, and 'higher'",
        ),
        (
            ",".join(gate.COLUMNS) + "\ns,d,m,p,a,v,k,x,0,1,accuracy,ninety,1,higher,i,w\n",
            "can't be read as a baseline",
        ),
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
    """What is not recorded is not guarded."""
    gate.read(baseline).iloc[:6].to_csv(baseline, index=False)
    code, printed, _ = here("check", "base.csv", str(results))
    assert code == 1
    assert "50 new: not in the baseline: --update adds it" in printed


def test_tolerances_of_times_that_somebody_set_stay(baseline, results, here):
    frame = gate.read(baseline)
    frame.loc[frame["metric"].isin(["accuracy", "overhead"]), "tolerance"] = "7"
    frame.to_csv(baseline, index=False)
    assert here("check", "base.csv", str(results), "--update", "--accuracy", "3%")[0] == 0
    again = gate.read(baseline).drop_duplicates("metric").set_index("metric")["tolerance"]
    assert (again["overhead"], again["accuracy"]) == ("7", "3%")


def test_times_can_be_left_out(baseline, results, here):
    assert here("check", "base.csv", str(results), "--update", "--no-times")[0] == 0
    assert not gate.timed(gate.read(baseline)).any()
    code, printed, _ = here("check", "base.csv", str(results))
    assert code == 0
    assert "56 within tolerance" in printed


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
