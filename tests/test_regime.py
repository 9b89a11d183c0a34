"""Regimes: the numbers that decide whether sub-models can be sampled, worked out by hand."""

from __future__ import annotations

import json
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from frames import rank_of, rounds_of, write_results

from prism_bench.analysis import regime as said
from prism_bench.analysis.report import rendering, sheets
from prism_bench.analysis.report.cells import Sheet
from prism_bench.analysis.report.page import page
from prism_bench.engine import identity
from prism_bench.engine.local import LocalTrainer
from prism_bench.engine.regime import Regime, known_of, of_run, of_runs, total_decay
from prism_bench.engine.sections import Training
from prism_bench.engine.spec import Run
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.results import Results
from prism_bench.harness.runner import manifest
from prism_bench.harness.runner import run as run_experiment

PAPER = {"rounds": 1000, "active": 20, "epochs": 2, "batch": 32, "lr": 0.1, "momentum": 0.9, "decay": 2e-4}
ENTRY = {
    "keep": "0.2", "steps": 32.0, "holders": 4.0, "kernels": [13, 39.0, 103], "channels": [13, 39.0, 103],
    "decay": 3.2032, "passes": 400.0,
}  # fmt: skip
LINE = (
    "32 local steps per round, 4 clients hold a kernel, layers keep 13-103 kernels (median 39), total decay 3.2, "
    "400 passes over the data"
)


def resolved(algorithm="prism", keep=0.2, partition=None, model="resnet18", data="cifar10", capacity=None, **training):
    return Run.resolve(
        {
            "data": data, "partition": partition or "iid", "model": model, "algorithm": algorithm,
            "capacity": capacity or {"keep": keep}, "training": PAPER | training,
        }
    )  # fmt: skip


def of(run):
    told = known_of(run)
    return of_run(run, told.samples, told.signature)


# From settings ----------------------------------------------------------------------------------------------------


def test_the_papers_resnet18():
    """500 samples are 16 batches of 32; cosine: Σ lr = 0.1·1001/2 = 50.05, times 32 steps, 2e-4 and 1/0.1.

    Four layers each of 64, 128, 256 and 512 kernels, of which 0.2× keeps 13, 26, 52 and 103.
    """
    spread = (13, (26 + 52) / 2, 103)
    expected = Regime(32, 4, spread, spread, 50.05 * 32 * 2e-4 / 0.1, 1000 * 20 * 2 / 100)
    assert of(resolved()) == expected
    assert (expected.decay, expected.passes) == (pytest.approx(3.2032), 400)


def test_femnist_is_known_with_its_writers():
    """2,260 images a client are 71 batches; without the data only what needs no samples is known."""
    run = resolved(
        {"name": "prism", "kappa": 2.5}, partition={"name": "femnist", "clients": 100, "each": 10},
        model="cnn", data="femnist", rounds=100, lr=0.01,
    )  # fmt: skip
    assert of(run) == Regime(None, 4, (13, 13, 13), (13, 13, 13), None, 100 * 20 * 2 / 100)
    found = of_run(run, np.full(100, 2260), run.model.settings.usual)
    assert (found.steps, found.decay) == (142, pytest.approx(0.01 * 50.5 * 142 * 2e-4 / 0.1))
    cut = of_run(resolved(rounds=100, steps=10), np.full(100, 2260), None)
    assert (cut.steps, cut.passes) == (10, pytest.approx(100 * 20 * 10 / 71 / 100, abs=1e-6))


def test_a_mix_is_held_by_the_shares_and_shown_at_its_smallest():
    found = of(resolved(capacity={"keep": [0.4, 0.2], "share": [0.4, 0.6]}))
    assert found.holders == 5.6  # 40% of 20 at 0.4 and 60% at 0.2: 3.2 + 2.4
    assert found.kernels == (13, 39, 103)


def test_the_median_client_counts():
    """32, 33 and 100 samples: 1, 2 and 4 batches; in two epochs 2, 4 and 8 steps."""
    assert of_run(resolved(), np.array([32, 33, 100]), None).steps == 4
    assert of_run(resolved(steps=3), np.array([32, 33, 100]), None).steps == 3


def test_steps_that_cut_nothing_are_none():
    assert of(resolved(steps=1000)) == of(resolved())


def test_steps_of_unknown_clients_are_unknown():
    found = of_run(resolved(steps=10), None, None)
    assert (found.steps, found.decay, found.passes) == (None, None, None)


@pytest.mark.parametrize("schedule", get_args(Training.model_fields["schedule"].annotation))
@pytest.mark.parametrize("rounds", [1, 7, 60])
def test_the_decay_is_what_the_rounds_rates_add_up_to(schedule, rounds):
    run = resolved(schedule=schedule, rounds=rounds)
    trainer = LocalTrainer.__new__(LocalTrainer)
    trainer.run = run
    rates = sum(trainer.learning_rate(round) for round in range(rounds))
    assert total_decay(run.training, 32) == pytest.approx(rates * 32 * 2e-4 / 0.1, rel=1e-5)


def test_a_constant_rate_decays_twice_as_much():
    assert of(resolved(schedule="constant")).decay == pytest.approx(0.1 * 1000 * 32 * 2e-4 / 0.1) == 6.4


def test_full_model_training_keeps_all():
    found = of(resolved("fedavg"))
    assert (found.holders, found.kernels, found.channels) == (20, None, None)


def test_methods_without_kernels_have_channels():
    found = of(resolved("origdrop"))
    assert (found.kernels, found.channels) == (None, (13, 39, 103))


def test_what_a_budget_keeps_is_not_known():
    found = of(resolved(capacity={"budget": {"macs": "20%"}}))
    assert (found.holders, found.kernels, found.steps) == (None, None, 32)


def test_samples_are_those_of_the_settings_or_of_the_data_set():
    each = [
        ("cifar10", "iid", 500),
        ("cifar10", {"name": "iid", "clients": 50, "samples": 200}, 200),
        ("imdb", "iid", 375),
        ("imdb", "imdb", 375),
        ({"name": "imdb", "split": "original"}, "iid", None),
        ({"name": "noise", "train": 2000}, "iid", 20),
        ({"name": "cifar10", "validation": 0.1}, "iid", 450),
        ("femnist", "femnist", None),
    ]
    for data, partition, samples in each:
        assert known_of(resolved(data=data, partition=partition)).samples == samples, data
    digits = known_of(resolved(data="digits", partition={"name": "iid", "clients": 20}, model="smallcnn"))
    assert digits.samples.tolist() == [1347 // 20] * 20
    assert digits.signature.shape == (1, 8, 8)


def test_a_method_that_can_not_be_built_is_left_to_its_run(monkeypatch):
    run = resolved()

    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(run.algorithm.kind, "build", broken)
    assert of(run).kernels is None


def test_an_experiments_regimes_are_those_of_its_keep_ratios():
    experiment = Experiment.load("homogeneous_resnet18", size="paper")
    found = of_runs(experiment.runs, known_of)
    assert [entry["keep"] for entry in found] == ["0.8", "0.6", "0.4", "0.2"], "one each, whatever the partition"
    assert json.loads(json.dumps(found[-1])) == ENTRY
    full = of_runs([run for run in experiment.runs if run.algorithm.name == "fedavg"], known_of)
    assert [entry["holders"] for entry in full] == [20]


def test_kernels_are_those_of_the_method_that_has_some():
    runs = [resolved("splitmix"), resolved("origdrop"), resolved("prism"), resolved("fedavg")]
    [found] = of_runs(runs, known_of)
    assert found["kernels"] == found["channels"] == (13, 39, 103)


def test_no_run_depends_on_it():
    files = {file.name for file in identity.closure("prism_bench.engine.federation")}
    assert "local.py" in files
    assert "regime.py" not in files


# In results -------------------------------------------------------------------------------------------------------


def test_the_manifest_has_it_and_the_papers():
    experiment = Experiment.load("homogeneous_resnet18", seeds=1)
    about = _manifest(experiment)
    assert {(e["keep"], e["steps"], e["holders"], e["passes"]) for e in about["own"]} == {("0.2", 32, 4, 120)}
    # SplitMix has a rate of its own, and its atoms are no cut of an axis.
    assert {(e["kernels"], e["channels"]) for e in about["own"]} == {((7, 13, 26), (7, 13, 26)), (None, None)}
    assert sorted(e["decay"] for e in about["own"]) == pytest.approx([0.968016, 3.22672, 9.68016])  # lr 0.03, 0.1, 0.3
    assert json.loads(json.dumps(about["paper"]))[-1] == ENTRY
    assert _manifest(Experiment.load("homogeneous_resnet18", size="paper"))["paper"] == []
    assert _manifest(Experiment.load("quickstart"))["paper"] == []


def _manifest(experiment):
    class Folder:
        path, parts = type("Path", (), {"name": "x"}), ("run", "data", "code")

    return manifest(experiment, [Folder] * len(experiment.runs))["regime"]


def test_a_run_writes_it_with_its_own_clients(tmp_path):
    """20 clients of 67 digits: 5 batches of 16; 2 rounds of 2 epochs with 4 of 20."""
    partition = {"name": "iid", "clients": 20}
    tree = {
        "data": "digits", "partition": partition, "model": {"name": "smallcnn", "width": 10}, "seeds": 1,
        "algorithm": "prism", "capacity": {"keep": 0.2},
        "training": {"rounds": 2, "active": 4, "epochs": 2, "batch": 16},
    }  # fmt: skip
    run_experiment(tree, out=tmp_path)
    [own] = json.loads((tmp_path / "experiment.json").read_text())["regime"]["own"]
    assert (own["steps"], own["holders"], own["passes"]) == (10, 0.8, 0.8)
    assert own["decay"] == pytest.approx(0.1 * 1.5 * 10 * 2e-4 / 0.1)


def full(accuracies, **labels):
    return rounds_of(("fedavg", "1", 0, accuracies), **labels)


def test_whether_full_model_training_has_levelled_off():
    """8 rounds: what came after the sixth. Other methods don't count, nor do rounds that were not evaluated."""
    curve = [10, 20, 30, 40, 50, 60, 61, 62.5]
    [row] = said.gains(full(curve)).to_dict("records")
    assert (row["points"], row["share"]) == (2.5, 0.25)
    rarely = [np.nan, 20, np.nan, np.nan, 50, np.nan, np.nan, 62.5]
    [row] = said.gains(full(rarely)).to_dict("records")
    assert (row["points"], row["share"]) == (12.5, 0.375), "from the fifth, as the sixth was not evaluated"
    both = pd.concat([full(curve), rounds_of(("prism", "0.2", 0, curve)), full([50] * 8, partition="q")])
    assert said.gains(both)["points"].tolist() == [2.5, 0]
    assert said.gained(both) == "full-model training gained 0.0 to 2.5 points in the last 25% of its rounds"
    assert said.gained(full([np.nan, 50])) == said.gained(rounds_of(("prism", "0.2", 0, curve))) == ""


def test_seeds_are_averaged():
    seeds = rounds_of(("fedavg", "1", 0, [1, 2, 3, 4]), ("fedavg", "1", 1, [1, 2, 3, 6]))
    assert said.gained(seeds) == "full-model training gained 2.0 points in the last 25% of its rounds"


def test_how_far_the_effective_rank_fell():
    """Layers of 8, 8 and 16 kernels with 8, 8, 16 at first and a third of that in round 3; the seed 1 has one more."""
    left = said.ranks_left(rank_of())
    assert left.tolist() == [pytest.approx((1 / 3 + (8 / 3 + 1) / 9) / 2)]
    assert said.fell(rank_of()) == "the effective rank fell to 37% of its first value"
    assert said.fell(rank_of(rounds=1)) == said.fell(pd.DataFrame()) == ""


def test_a_rank_that_did_not_fall():
    grown = rank_of(seeds=1).assign(value=lambda frame: frame["round"] * 1.0)
    assert said.fell(grown) == "the effective rank went to 300% of its first value"


def results(tmp_path, rounds=None, **about):
    curve = full([10, 20, 30, 40, 50, 60, 60, 60.3]) if rounds is None else rounds
    return Results.open(write_results(tmp_path / "small", curve, **about))


def test_the_line_below_a_table(tmp_path):
    scaled = ENTRY | {"steps": 7.0, "kernels": [4, 7.0, 13], "decay": 0.0427, "passes": 12.0, "holders": 2.0}
    wider = ENTRY | {"keep": "0.8", "holders": 16.0}
    found = results(tmp_path, regime={"own": [scaled], "paper": [wider, ENTRY]})
    rank_of().to_csv(found.folder / "rank.csv", index=False)
    rank = pd.read_csv(found.folder / "rank.csv").assign(run=found.about["runs"][0]["labels"]["run"])
    rank.to_csv(found.folder / "rank.csv", index=False)
    line = (
        "Regime: 7 local steps per round, 2 clients hold a kernel, layers keep 4-13 kernels (median 7), total decay "
        "0.0427, 12 passes over the data; full-model training gained 0.3 points in the last 25% of its rounds; the "
        f"effective rank fell to 37% of its first value. Paper: {LINE}."
    )
    assert said.of_results(found) == line
    sheet = sheets.with_regime(Sheet("t", ["a"], [], "Caption.", 1), found)
    assert sheet.caption == f"Caption. {line}"
    assert "0.3 points in the last 25\\% of its rounds" in rendering.latex(sheet)
    assert f"<dt>Regime</dt><dd>{line.removeprefix('Regime: ')}</dd>" in page([found])


def test_several_are_a_range():
    more = ENTRY | {"keep": "0.4", "holders": 8.0, "kernels": [26, 77.5, 205]}
    assert said.sentence([ENTRY, more]) == LINE.replace("4 clients", "4-8 clients").replace(
        "13-103 kernels (median 39)", "13-205 kernels (median 39-77.5)"
    )


def test_only_what_is_known_is_said():
    unknown = ENTRY | {"steps": None, "decay": None, "kernels": None}
    assert said.sentence([unknown]) == (
        "4 clients hold a kernel, layers keep 13-103 channels (median 39), 400 passes over the data"
    )
    assert said.sentence([]) == ""


def test_older_results_say_what_follows_from_their_rounds(tmp_path):
    line = "Regime: full-model training gained 0.3 points in the last 25% of its rounds."
    assert said.of_results(results(tmp_path)) == line
    assert said.of_results(results(tmp_path, rounds_of(("prism", "0.2", 0, [1, 2, 3, 4])))) == ""


def test_what_trains_nothing_has_no_regime(tmp_path):
    idle = ENTRY | {"steps": 0.0}
    assert said.of_results(results(tmp_path, full([1]), regime={"own": [idle], "paper": []})) == ""


def test_tables_of_the_command_have_it(tmp_path, here):
    found = results(tmp_path, regime={"own": [ENTRY], "paper": []})
    for form in ("text", "markdown", "latex"):
        code, printed, _ = here("table", str(found.folder), "--format", form)
        assert code == 0
        assert "13-103 kernels" in printed, form
    assert "Regime" not in here("table", str(found.folder), "--format", "csv")[1]


# In `prism-bench list` ----------------------------------------------------------------------------------------------


def test_list_shows_both_sizes_without_the_data(here):
    code, printed, _ = here("list", "homogeneous_resnet18")
    assert code == 0
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    for line in (
        "homogeneous_resnet18: ResNet-18 on CIFAR-10, all clients of one capacity, five methods, iid and skewed labels",
        "seeds 3",
        "runs 21 (scaled), 153 (paper)",
        "grid partition: [iid, {name: dirichlet, alpha: 1}, {name: dirichlet, alpha: 0.1}]",
        "capacity.keep: [0.8, 0.6, 0.4, 0.2]",
        "regime scaled paper",
        "local steps per client and round 32 32",
        "clients that hold a kernel, at 0.8 16",
        "clients that hold a kernel, at 0.2 4 4",
        "kernels that a layer keeps, at 0.2 7-26 (median 13) 13-103 (median 39)",
        "total decay, Σ lr·λ/(1-momentum) 0.968-9.68 3.2",
        "passes over the data 120 400",
    ):
        assert any(line in " ".join(lines[i : i + 2]) for i in range(len(lines))), line


def test_what_needs_the_data_is_a_dash_and_says_how_to_get_it(here):
    code, printed, _ = here("list", "homogeneous_cnn")
    assert code == 0
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert "local steps per client and round - -" in lines
    assert "passes over the data 41.2 40" in lines
    assert "prism-bench data prepare femnist" in " ".join(lines)
