"""Every result of the paper is an experiment, in two sizes, with the paper's values beside it."""

from __future__ import annotations

import pandas as pd
import pytest
from frames import rounds_of

from prism_bench.analysis.report import tables
from prism_bench.analysis.report.cells import Form
from prism_bench.base import registry
from prism_bench.base.errors import BadInput
from prism_bench.engine.regime import of_run
from prism_bench.engine.sections import Training
from prism_bench.harness import paper
from prism_bench.harness.experiment import Experiment, known
from prism_bench.harness.results import Results
from prism_bench.harness.run_folder import RunFolder
from prism_bench.harness.runner import _beside, carry_out, manifest
from prism_bench.views import clients

RESULTS = {
    "homogeneous_resnet18", "homogeneous_cnn", "homogeneous_lstm", "homogeneous_deit", "heterogeneous",
    "sampling_ablation", "local_epochs", "active_clients", "vgg11_centralised", "cost_table", "time_breakdown",
    "sampling_profile", "rank", "orthogonal_features",
}  # fmt: skip
PUBLISHED = {
    "heterofl_cifar10", "heterofl_cifar10_skewed", "depthfl_cifar100", "fiarse_cifar10", "fiarse_cifar100",
    "heflwr_cifar10",
}  # fmt: skip
"""Results of other publications."""
FEDERATED = RESULTS - {"cost_table", "vgg11_centralised", "time_breakdown", "orthogonal_features"}


def test_every_result_has_a_file():
    assert set(known()) >= RESULTS | PUBLISHED


@pytest.mark.parametrize("name", sorted(PUBLISHED | RESULTS - {"cost_table"}))
def test_both_sizes_are_valid_and_the_smaller_says_what_was_scaled(name):
    large, small = (Experiment.load(name, size=size) for size in ("paper", "scaled"))
    assert (large.name, small.name) == (f"{name}-paper", f"{name}-scaled")
    assert Experiment.load(name).name == small.name, "the size for a small machine is the default"
    assert Experiment.load(large.name).name == large.name
    assert large.note == ""
    assert len(small.note) > 40
    assert large.about.reference
    assert not {run.identity for run in large.runs} & {run.identity for run in small.runs}


@pytest.mark.parametrize("name", sorted(FEDERATED))
def test_the_papers_setting(name):
    """Appendix A of the paper."""
    runs = Experiment.load(name, size="paper").runs
    rounds = {"homogeneous_cnn": 100, "homogeneous_lstm": 300, "homogeneous_deit": 400}.get(name, 1000)
    lr = 0.01 if name == "homogeneous_cnn" else 0.1
    for run in runs:
        assert run.partition.settings.clients == 100
        if name == "local_epochs":
            assert run.training.rounds * run.training.epochs == 2000
        else:
            assert (run.training.rounds, run.training.epochs) == (rounds, 2)
        assert run.training.active == 20 or name == "active_clients"
        assert run.training == Training(
            rounds=run.training.rounds, epochs=run.training.epochs, active=run.training.active,
            batch=32, lr=lr, schedule="cosine", momentum=0.9, decay=2e-4,
        )  # fmt: skip


def values(name, size="paper", **wanted):
    """The paper's columns of the runs with these labels."""
    experiment = Experiment.load(name, size=size, seeds=1)
    found = [
        _beside(run, experiment.about)
        for run in experiment.runs
        if all(experiment.labels(run)[key] == value for key, value in wanted.items())
    ]
    assert len(found) == 1, wanted
    return found[0]


@pytest.mark.parametrize("size", ["paper", "scaled"])
def test_values_by_hand(size):
    hetero = values("heterogeneous", size, algorithm="orthdrop", partition="dirichlet alpha=0.1")
    assert hetero == {"paper_accuracy": 78.37, "paper_std": 0.99, "paper_source": "tab:hetero"}
    assert "paper_std" not in values("heterogeneous", size, algorithm="fedavg", partition="iid")
    assert values("heterogeneous", size, algorithm="splitmix", partition="iid") == {}
    softmax = values("sampling_ablation", size, variant="sampling=softmax", partition="dirichlet alpha=1.0")
    assert softmax["paper_accuracy"] == 83.19
    assert values("homogeneous_deit", size, algorithm="prism", keep="0.6", partition="iid")["paper_accuracy"] == 91.36
    bound = {"paper_source": "text: less than 1% below the full model"}
    assert (
        values("homogeneous_cnn", size, algorithm="prism", keep="0.2", variant="kappa=2.5" if size == "paper" else "")
        == bound
    )
    assert values("time_breakdown", size)["paper_seconds_train"] == 36.82
    assert values("homogeneous_resnet18", size, algorithm="origdrop", keep="0.2", partition="iid") == {}


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("heterogeneous", {"capacity": {"keep": 0.8}}),
        ("heterogeneous", {"model": "smallcnn"}),
        ("sampling_ablation", {"algorithm.channels": "all"}),
        ("sampling_ablation", {"capacity.keep": 0.8}),
        ("time_breakdown", {"capacity.keep": 0.8}),
    ],
)
def test_another_setting_is_not_the_papers(name, overrides):
    experiment = Experiment.load(name, overrides, seeds=1)
    cutting = [run for run in experiment.runs if run.algorithm.kind.cuts]
    assert all(_beside(run, experiment.about) == {} for run in cutting)


def test_the_note_says_what_was_changed_besides():
    note = Experiment.load("time_breakdown", {"training.rounds": 1, "execution.threads": 1}).note
    assert note.endswith("Changed besides: training.rounds=1.")


def test_every_row_of_the_papers_values_belongs_to_a_run():
    for name in RESULTS - {"cost_table"}:
        experiment = Experiment.load(name, size="paper", seeds=1)
        if experiment.about.values is None:
            continue
        found = {tuple(sorted(_beside(run, experiment.about).items())) for run in experiment.runs} - {()}
        assert len(found) == len(paper.values(experiment.about.values)), name


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_every_published_row_of_a_method_that_there_is_belongs_to_a_run(name):
    for size in ("paper", "scaled"):
        experiment = Experiment.load(name, size=size, seeds=1)
        found = {tuple(sorted(_beside(run, experiment.about).items())) for run in experiment.runs} - {()}
        rows = paper.values(name)
        assert len(found) == rows["algorithm.name"].isin(registry.find("algorithms")).sum(), size


@pytest.mark.parametrize(
    ("name", "clients", "rounds", "active", "steps"),
    [
        ("heterofl_cifar10", 100, 400, 100, 250),
        ("heterofl_cifar10_skewed", 100, 800, 100, 250),
        ("depthfl_cifar100", 100, 1000, 10, 50),
        ("fiarse_cifar10", 100, 800, 10, 100),
        ("fiarse_cifar100", 100, 800, 10, 100),
        ("heflwr_cifar10", 4, 50, 4, 391),
    ],
)
def test_the_settings_of_other_publications(name, clients, rounds, active, steps):
    for run in Experiment.load(name, size="paper").runs:
        assert (run.partition.settings.clients, run.training.rounds, run.training.active) == (clients, rounds, active)
        assert of_run(run, 50_000 // clients, None).steps == steps


def row(name, algorithm, **settings):
    """The published values of an algorithm at the settings of an experiment's runs, whether it is installed or not."""
    run = Experiment.load(name, size="paper", seeds=1).runs[-1].as_dict()
    return paper.beside(run | {"algorithm": {"name": algorithm, **settings}}, name)


def test_published_values_by_hand():
    assert row("depthfl_cifar100", "heterofl")["paper_accuracy"] == 57.61
    assert row("depthfl_cifar100", "depthfl", distillation=0.0)["paper_accuracy"] == 72.67
    assert row("depthfl_cifar100", "depthfl", distillation=1.0)["paper_accuracy"] == 76.06
    assert row("depthfl_cifar100", "depthfl", distillation=0.5) == {}
    assert row("heterofl_cifar10", "heterofl")["paper_accuracy"] == 76.53, "the last are at 1/16"
    assert row("heterofl_cifar10_skewed", "heterofl")["paper_accuracy"] == 48.29
    assert row("heterofl_cifar10", "fedrolex") == {}, "which its table doesn't have"
    assert row("fiarse_cifar10", "fedrolex")["paper_accuracy_sizes"] == 65.98
    assert row("fiarse_cifar100", "fiarse")["paper_accuracy_sizes"] == 38.63
    assert row("heflwr_cifar10", "fjord")["paper_accuracy_sizes"] == 40.2, "the last are not iid"
    assert values("heflwr_cifar10", algorithm="fedavg", partition="iid")["paper_accuracy_sizes"] == 86.14
    mixes = {run.capacity.keep: run for run in Experiment.load("heterofl_cifar10").runs if run.capacity.redraw}
    assert sorted(map(len, mixes)) == [2, 5], "dynamic: a client has another width each round"


def test_the_mean_of_sizes_stands_beside_the_published_one():
    """Two sizes of 40% and 60% under seed 0, of 50% and 70% under seed 1: 55% on average, 5 more than published."""
    rounds = rounds_of(("method", "1 + 0.5", 0, [60.0]), ("method", "1 + 0.5", 1, [70.0]), best=70.0)
    rounds = rounds.assign(accuracy_client_1=[60.0, 70.0], accuracy_client_2=[40.0, 50.0], accuracy_worst=1.0)
    runs = rounds.assign(paper_accuracy_sizes=50.0, paper_source="somewhere")
    (cell,) = tables.table(runs).to_dict("records")
    assert (cell["accuracy_sizes"], cell["paper_accuracy_sizes"], cell["paper_sizes_difference"]) == (55, 50, 5)
    shown = clients.sheet(tables.table(runs), Form("mine", paper=True))
    assert shown.columns[-3:] == ["mean of sizes", "paper", "difference"]
    assert [cell.text for cell in shown.rows[0][-3:]] == ["55.0", "50.0", "+5.0"]
    assert "(somewhere)" in shown.caption
    assert "mean of sizes" not in clients.sheet(tables.table(runs), Form("mine")).columns


def test_values_that_are_not_there():
    with pytest.raises(BadInput, match=r"the paper has none called 'hetero'\. Did you mean 'heterogeneous'"):
        Experiment.load("quickstart", {"values": "hetero"})


def test_the_cost_table_shows_ours_and_the_papers(tmp_path):
    """Full size, nothing trained: the convention gives what the paper prints."""
    overrides = {"algorithm": ["fedavg", "prism"], "capacity.keep": 0.2}
    carry_out(Experiment.load("cost_table", overrides), tmp_path)
    runs = Results.open(tmp_path).runs().set_index("algorithm")
    assert runs.loc["prism", "paper_params_M"] == 0.5
    assert runs.loc["prism", "convention_params_M"] == pytest.approx(0.50, abs=0.005)
    assert runs.loc["fedavg", "parameters"] == pytest.approx(11.174e6, rel=1e-3)
    assert runs.loc["prism", "parameters"] == pytest.approx(0.514e6, rel=1e-3)


def test_probes(tmp_path):
    """Rank, sampling, features and sub-models as frames, also when only the CSVs are left."""
    tree = {
        "data": "digits",
        "partition": {"name": "iid", "clients": 4},
        "model": {"name": "smallcnn", "width": 5},
        "capacity": {"keep": 0.4},
        "training": {"rounds": 2, "active": 3, "epochs": 1},
        "evaluation": {"probes": ["rank", "sampling", "features", "parts"]},
        "grid": {"algorithm": ["fedavg", "prism", "splitmix"]},
    }
    carry_out(Experiment.load(tree), tmp_path)
    results = Results.open(tmp_path)
    rank = results.probe("rank")
    assert set(rank["algorithm"]) == {"fedavg", "prism"}, "an ensemble is no single network"
    assert set(rank["layer"]) == {"convs.1", "convs.2"}
    assert ((rank["value"] >= 1) & (rank["value"] <= rank["kernels"] + 1e-6)).all()
    sampling = results.probe("sampling")
    assert set(sampling["algorithm"]) == {"prism"}
    held = sampling.groupby(["round", "layer"])["clients"].sum()
    assert (held == 3 * 4).all(), "three clients with ceil(0.4 · 10) kernels each"
    features = results.probe("features")
    assert set(features["round"]) == {2}
    assert set(features["kernel"]) == {-1, 0, 1, 2, 3, 4}
    assert features["value"].between(0, 255).all()
    parts = results.probe("parts")
    assert parts.groupby(["algorithm", "round"]).size().unstack().loc["prism"].tolist() == [3, 3]
    whole = results.rounds().query("algorithm == 'fedavg'").set_index("round")["accuracy"]
    theirs = parts.query("algorithm == 'fedavg'")
    assert (theirs["accuracy"] == theirs["round"].map(whole)).all(), "a client is sent the whole model"
    for path in (tmp_path / "runs").iterdir():
        path.rename(tmp_path / path.name)
    (tmp_path / "runs").rmdir()
    again = Results.open(tmp_path)
    pd.testing.assert_frame_equal(again.probe("rank"), rank, check_dtype=False)
    pd.testing.assert_frame_equal(again.probe("features"), features, check_dtype=False)
    assert again.runs()["accuracy"].tolist() == results.rounds().groupby("run", sort=False)["accuracy"].last().tolist()


def test_the_manifest_says_what_the_runs_share(tmp_path):
    experiment = Experiment.load("heterogeneous", seeds=2)
    about = manifest(
        experiment, [RunFolder(tmp_path / f"{number}-data-code") for number in range(len(experiment.runs))]
    )
    assert about["settings"]["model"] == {
        "name": "resnet18",
        "width": 16,
        "blocks": [1, 1, 1],
        "stride": 1,
        "recompute": False,
    }
    assert "seed" not in about["settings"]
    assert "name" not in about["settings"]["partition"]
    assert about["settings"]["partition"]["clients"] == 50
    assert about["size"] == "scaled"
    assert len(about["runs"]) == 5 * 3 * 2
