"""Tuning: settings chosen on validation data by successive halving, and runs that use them."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest
import yaml

import prism_bench
from prism_bench.base.errors import BadInput
from prism_bench.data.dataset import Split
from prism_bench.data.digits import Digits
from prism_bench.harness import tuned, tuning
from prism_bench.harness.callbacks import Callback
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.results import Results
from prism_bench.harness.runner import Outcome, carry_out

SMALL = {
    "name": "small",
    "data": "digits",
    "partition": {"name": "iid", "clients": 6},
    "model": {"name": "smallcnn", "width": 5},
    "training": {"rounds": 4, "active": 2, "epochs": 1, "batch": 16},
    "grid": {"algorithm": ["fedavg", "prism", {"name": "prism", "kappa": 3}], "capacity.keep": [0.2, 0.4]},
    "tune": {"training.lr": [0.05, 0.1, 0.2], "training.clip": [None, 5], "algorithm.kappa": [2.5, 4]},
}
TINY = SMALL | {"grid": {"algorithm": ["fedavg", "prism"], "capacity.keep": 0.4}, "tune": {"training.lr": [0.05, 0.2]}}


def planned(tree=SMALL, **options):
    return tuning.plan(Experiment.load(tree, seeds=1), **options)


def numbers(frame):
    return frame.drop(columns=[column for column in frame if column.startswith("seconds")])


def choices_of(folder):
    return yaml.safe_load((folder / "tuned.yaml").read_text())


# What is tried ----------------------------------------------------------------------------------------------------


def test_every_cell_has_the_same_number_of_tries():
    search = planned()
    # FedAvg has no capacity and so is one cell; the others are one cell per keep ratio.
    assert [cell.name for cell in search.cells] == [
        "fedavg", "prism at 0.2", "prism at 0.4", "prism kappa=3.0 at 0.2", "prism kappa=3.0 at 0.4",
    ]  # fmt: skip
    assert [len(cell.tries) for cell in search.cells] == [6] * 5, "3 learning rates × 2 clips, which all have"
    fedavg, prism, _, given, _ = search.cells
    assert set(fedavg.tries[0]) == set(given.tries[0]) == {"training.lr", "training.clip"}, "κ is said by the grid"
    for key, values in SMALL["tune"].items():
        drawn = [values.index(one[key]) for one in prism.tries]
        assert {drawn.count(place) for place in range(len(values))} == {6 // len(values)}, "each value as often"
    assert prism.tries == search.cells[2].tries


def test_other_numbers_of_tries():
    fewer = planned(tries=3)
    assert [sorted(one["training.lr"] for one in cell.tries) for cell in fewer.cells] == [[0.05, 0.1, 0.2]] * 5
    more = planned(tries=20)
    assert [len(cell.tries) for cell in more.cells] == [6, 12, 12, 6, 6]
    assert tuning.Found(more, pd.DataFrame(), {}).fewer() == [cell.name for cell in more.cells], "20 are more than any"
    own = planned(SMALL | {"tune": {"algorithm.kappa": [2, 3, 4]}})
    assert [len(cell.tries) for cell in own.cells] == [1, 3, 3, 1, 1], "where all share nothing, the most that one has"


@pytest.mark.parametrize(
    ("rounds", "rungs", "expected"),
    [(100, 3, [25, 50, 100]), (8, 3, [2, 4, 8]), (10, 3, [3, 5, 10]), (1, 3, [1, 1, 1]), (60, 1, [60])],
)
def test_rounds_of_the_rungs(rounds, rungs, expected):
    assert planned(rungs=rungs, rounds=rounds).cells[0].rounds == expected
    assert planned(SMALL | {"training": {"rounds": rounds, "active": 2}}, rungs=rungs).cells[0].rounds == expected


def test_a_try_sees_validation_data_and_no_probes():
    probed = SMALL | {"evaluation": {"probes": ["rank"], "every": 2}}
    search = planned(probed)
    [run] = search.attempts(search.cells[1], 0, rung=1)
    assert (run.data.settings.validation, run.evaluation.on, run.evaluation.probes) == (0.1, "validation", ())
    assert (run.training.rounds, run.evaluation.every) == (2, 2)
    assert planned(validation=0.3).validation == 0.3
    assert planned(SMALL | {"data": {"name": "digits", "validation": 0.2}}).validation == 0.2


def test_what_is_tuned_can_be_changed():
    scaled = SMALL | {"scaled": {"note": "fewer", "set": {"tune.training.lr": [0.3, 0.4]}}}
    assert Experiment.load(scaled).tune["training.lr"] == [0.3, 0.4]
    assert Experiment.load(scaled, {"tune.training.lr": 0.5}).tune["training.lr"] == [0.5]
    assert Experiment.load(SMALL, {"tune": {"training": {"decay": [0, 1e-3]}}}).tune == {"training.decay": [0, 1e-3]}
    plain = {key: value for key, value in SMALL.items() if key != "tune"}
    same = [[run.identity for run in Experiment.load(tree).runs] for tree in (SMALL, plain)]
    assert same[0] == same[1], "a run has nothing to do with it"


# The search -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "half", "best"),
    [
        ([1, 2, 3, 4], [2, 3], [3]),
        ([4, 3, 2, 1, 0], [0, 1, 2], [0]),
        ([5, 7, 7, 5, 5, 5], [0, 1, 2], [1]),
        ([-math.inf, 1, -math.inf, -math.inf], [1], [1]),
        ([-math.inf, -math.inf], [], []),
        ([3], [0], [0]),
    ],
)
def test_the_better_half(scores, half, best):
    assert tuning.better_half(scores) == half
    assert tuning.better_half(scores, last=True) == best


class Stub:
    """Carries nothing out: each run has the accuracies that a function of it says, or fails where that is a text."""

    def __init__(self, accuracies):
        self.accuracies, self.asked = accuracies, []

    def __call__(self, experiment, place):
        self.asked.append((place.name, experiment.runs))
        said = {run: self.accuracies(run) for run in experiment.runs}
        failed = {experiment.label(run): text for run, text in said.items() if isinstance(text, str)}
        rows = [
            {"run": run.identity, "round": number, "accuracy": accuracy}
            for run, values in said.items()
            if not isinstance(values, str)
            for number, accuracy in enumerate(values, start=1)
        ]
        return Outcome(pd.DataFrame(rows, columns=["run", "round", "accuracy"]), failed)


LRS = {"training.lr": [0.01, 0.02, 0.04, 0.08, 0.16]}
ALONE = SMALL | {"grid": {"algorithm": ["prism"], "capacity.keep": 0.4}, "tune": LRS}


def test_halving_by_hand(tmp_path):
    """After one round 0.16, 0.08 and 0.01 lead; after two rounds 0.08 and 0.01; in the end 0.01 has more than 0.08."""
    scores = {1: {0.01: 30, 0.02: 10, 0.04: 20, 0.08: 40, 0.16: 50}, 2: {0.01: 60, 0.08: 70, 0.16: 50}, 4: {}}
    scores[4] = {0.01: 90, 0.08: 80}
    stub = Stub(lambda run: [99, scores[run.training.rounds][run.training.lr]])
    found = tuning.tune(planned(ALONE), tmp_path, stub)
    asked = [(name, [run.training.lr for run in runs]) for name, runs in stub.asked]
    assert asked == [("rung-0", LRS["training.lr"]), ("rung-1", [0.01, 0.08, 0.16]), ("rung-2", [0.01, 0.08])]
    assert found.best == {0: (0, 90, "")}, "what a run ended with, not the 99 that it once had"
    assert found.edges() == ["prism at 0.4: training.lr 0.01 is the smallest that was tried"]
    assert found.tries[["rung", "rounds", "training.lr", "accuracy", "kept"]].values.tolist()[-2:] == [
        [2, 4, "0.01", 90, True], [2, 4, "0.08", 80, False],
    ]  # fmt: skip


def test_seeds_are_averaged(tmp_path):
    search = tuning.plan(Experiment.load(ALONE, seeds=[3, 5]), rungs=1)
    scores = {(0.01, 3): 90, (0.01, 5): 10, (0.02, 3): 60, (0.02, 5): 60}
    stub = Stub(lambda run: [scores.get((run.training.lr, run.seed), 0)])
    found = tuning.tune(search, tmp_path, stub)
    assert found.best == {0: (1, 60, "")}
    assert found.edges() == []
    assert tuning.choices(found).seeds == (3, 5)
    lost = Stub(lambda run: "diverged; a smaller training.lr may help" if run.seed == 5 else [50])
    assert tuning.tune(search, tmp_path, lost).lost == ["prism at 0.4"], "one seed that is lost loses the try"


def test_failures_are_results(tmp_path):
    """0.16 diverges, and 0.08 crashes; the cell that loses all is named and the other one is written."""
    search = planned(ALONE | {"grid": {"algorithm": ["prism", "origdrop"], "capacity.keep": 0.4}})

    def accuracies(run):
        if run.algorithm.name == "origdrop" or run.training.lr == 0.16:
            return "weights are not finite after round 1; a smaller training.lr may help. (log: x)"
        return "OSError: disk" if run.training.lr == 0.08 else [50]

    found = tuning.tune(search, tmp_path, Stub(accuracies))
    assert found.lost == ["origdrop at 0.4"]
    assert found.best == {0: (0, 50, "")}, "of equal ones the earlier"
    first = found.tries[(found.tries["rung"] == 0) & (found.tries["algorithm"] == "prism")]
    assert first["status"].tolist() == ["done"] * 3 + ["failed", "diverged"]
    assert first["accuracy"].isna().tolist() == [False] * 3 + [True] * 2
    assert [cell.algorithm for cell in tuning.choices(found).cells] == ["prism"]
    nothing = tuning.tune(search, tmp_path, Stub(lambda run: "OSError: disk"))
    assert tuning.choices(nothing) is None
    assert [file.name for file in tuning.write(nothing, tmp_path)] == ["tuned.csv"]


def test_who_is_alone_trains_once(tmp_path):
    search = planned(SMALL | {"tune": {"algorithm.kappa": [2, 4]}})
    stub = Stub(lambda run: [50])
    found = tuning.tune(search, tmp_path, stub)
    assert [len(runs) for _, runs in stub.asked] == [4, 5], "κ of plain PriSM, twice; at the end one of each cell"
    assert len(found.best) == 5
    assert tuning.choices(found).cells[0].set == {}


# From end to end --------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY, sort_keys=False))
    return tmp_path


def test_the_command_and_a_run_that_uses_it(file, here):
    code, printed, progress = here("tune", "tiny.yaml")
    assert code == 0, progress
    folder = file / "results" / "tune" / "small"
    assert sorted(path.name for path in folder.iterdir()) == [
        "rung-0", "rung-2", "tuned.csv", "tuned.png", "tuned.yaml",
    ], "with two tries one of them is alone in the second rung"  # fmt: skip
    assert "chosen on validation data" in printed
    assert "est that was tried: its list should go on" in progress
    assert "2 cells, 2 tries each of training.lr; rounds 1 → 2 → 4" in progress
    written = choices_of(folder)
    assert written["command"] == "prism-bench tune tiny.yaml"
    assert (written["over"], written["validation"], written["rounds"]) == ({"training.lr": [0.05, 0.2]}, 0.1, [1, 2, 4])
    assert [(cell["algorithm"], cell.get("capacity"), cell["tries"]) for cell in written["cells"]] == [
        ("fedavg", None, 2), ("prism", {"keep": 0.4}, 2),
    ]  # fmt: skip
    tries = pd.read_csv(folder / "tuned.csv")
    assert tries.groupby("rung").size().to_dict() == {0: 4, 2: 2}
    last = tries[tries["rung"] == 2]
    assert [round(one, 3) for one in last["accuracy"]] == [cell["accuracy"] for cell in written["cells"]]
    curves = pd.read_csv(folder / "rung-2" / "rounds.csv")
    assert len(curves) == 2 * 4, "the learning curve of each"
    assert curves.groupby("run")["accuracy"].last().to_dict() == dict(zip(last["run"], last["accuracy"], strict=True))

    code, printed, progress = here("run", "tiny.yaml", "--tuned", "results/tune/small/tuned.yaml", "--seeds", "2")
    assert code == 0, progress
    assert "Tuned per method and capacity on validation data: learning rate; 2 tries" in " ".join(printed.split())
    results = Results.open(file / "results" / "small")
    assert results.about["tuned"]["validation"] == 0.1
    assert results.about["tuned"]["tries"] == 2
    runs, lrs = results.runs(), [cell["set"]["training.lr"] for cell in written["cells"]]
    assert runs["tuned"].tolist() == [f"lr {lr}; 2 tries" for lr in lrs for _ in range(2)]
    assert set(runs["settings"]) == {""}, "pairs of methods go by it"
    table = pd.read_csv(file / "results" / "small" / "table.csv")
    assert table["tuned"].tolist() == [f"lr {lr}; 2 tries" for lr in lrs]
    assert table["drop_n"].tolist() == [0, 2]


def test_a_tuned_run_is_the_one_with_the_same_settings_by_hand(tmp_path):
    chosen = {"fedavg": {"training.lr": 0.2}, "prism": {"training.lr": 0.05, "algorithm.kappa": 4}}
    file = write_choices(tmp_path, *({"algorithm": name, "set": values} for name, values in chosen.items()))
    ours = prism_bench.run(TINY, seeds=2, tuned=file)
    for name, values in chosen.items():
        by_hand = prism_bench.run(TINY, seeds=2, overrides={"algorithm": name, **values})
        mine = ours[ours["algorithm"] == name].reset_index(drop=True)
        labels = ["tuned", "variant"]
        pd.testing.assert_frame_equal(
            numbers(mine).drop(columns=labels), numbers(by_hand).drop(columns=labels), check_exact=True
        )
    assert ours["variant"].eq("").all(), "a method is called what the grid calls it"


def test_tuning_never_looks_at_test_data(tmp_path, monkeypatch):
    load = Digits.load

    def corrupt(self):
        data = load(self)
        return replace(data, test=Split(data.test.inputs.flip(0), (data.test.labels + 1) % 10))

    frames = []
    for name, loads in (("true", load), ("corrupt", corrupt)):
        monkeypatch.setattr(Digits, "load", loads)
        found = tuning.tune(planned(TINY), tmp_path / name)
        tuning.write(found, tmp_path / name)
        curves = [numbers(pd.read_csv(tmp_path / name / f"rung-{rung}" / "rounds.csv")) for rung in (0, 2)]
        frames.append([found.tries, *curves])
    for one, other in zip(*frames, strict=True):
        pd.testing.assert_frame_equal(one, other, check_exact=True)
    assert choices_of(tmp_path / "true") == choices_of(tmp_path / "corrupt")
    tested = [carry_out(Experiment.load(TINY, seeds=1)).rounds["accuracy"].tolist()]
    monkeypatch.setattr(Digits, "load", load)
    tested.append(carry_out(Experiment.load(TINY, seeds=1)).rounds["accuracy"].tolist())
    assert tested[0] != tested[1], "and the test data did differ"


def test_a_killed_tune_goes_on_where_it_was(tmp_path):
    whole = tuning.tune(planned(TINY), tmp_path / "whole")

    class Stop(Callback):
        def round_done(self, number, record):
            if record["round"] == 3:
                raise KeyboardInterrupt

    class Count(Callback):
        kept = 0

        def run_done(self, number, label, summary, reused, error):
            Count.kept += reused

    def told(callback):
        return lambda experiment, place: carry_out(experiment, place, callbacks=[callback])

    with pytest.raises(KeyboardInterrupt):
        tuning.tune(planned(TINY), tmp_path / "killed", told(Stop()))
    resumed = tuning.tune(planned(TINY), tmp_path / "killed", told(Count()))
    assert Count.kept == 4, "the first rung"
    pd.testing.assert_frame_equal(resumed.tries, whole.tries, check_exact=True)
    assert tuning.choices(resumed) == tuning.choices(whole)


def test_divergence_for_real(file, here):
    code, _, progress = here("tune", "tiny.yaml", "--set", "tune.training.lr=[0.1,1.0e+30]", "--rungs", "1")
    assert code == 0, progress
    assert "2 of 4 runs diverged" in progress
    folder = file / "results" / "tune" / "small"
    assert pd.read_csv(folder / "tuned.csv")["status"].tolist() == ["done", "diverged"] * 2
    assert {cell["set"]["training.lr"] for cell in choices_of(folder)["cells"]} == {0.1}
    code, _, progress = here("tune", "tiny.yaml", "--set", "tune.training.lr=[1.0e+29,1.0e+30]")
    assert code == 1
    assert "nothing was found for fedavg: none of its tries came to the end" in progress
    assert not (folder / "tuned.yaml").exists()


# A file of choices ------------------------------------------------------------------------------------------------


def write_choices(folder, *cells, **more):
    usual = {"accuracy": 90, "tries": 3}
    full = [({} if cell["algorithm"] == "fedavg" else {"capacity": {"keep": 0.4}}) | usual | cell for cell in cells]
    about = {"experiment": "small", "over": {}, "validation": 0.1, "tries": 3}
    file = folder / "chosen.yaml"
    file.write_text(yaml.safe_dump(about | {"cells": full} | more))
    return file


BOTH = {"algorithm": "fedavg", "set": {"training.lr": 0.3}}, {"algorithm": "prism", "set": {"training.lr": 0.4}}


def lrs(tree, **options):
    return [run.training.lr for run in Experiment.load(tree, **options).runs]


def test_where_the_file_is_named(tmp_path, monkeypatch):
    chosen = write_choices(tmp_path, *BOTH)
    assert lrs(TINY, tuned=chosen) == [0.3, 0.4]
    (tmp_path / "deep").mkdir()
    own = tmp_path / "deep" / "own.yaml"
    own.write_text(yaml.safe_dump(TINY | {"tuned": "../chosen.yaml"}))
    monkeypatch.chdir("/")
    assert lrs(own) == [0.3, 0.4], "from where the experiment's file is"
    assert lrs(own, tuned="none") == [0.1, 0.1]
    assert lrs(own, overrides={"training.lr": 0.7}) == [0.7, 0.7], "--set beats the file"
    assert lrs(own, overrides={"training": {"lr": 0.7, "active": 2}}) == [0.7, 0.7]
    assert lrs(own, overrides={"grid.training.lr": [0.7, 0.8]}) == [0.7, 0.8, 0.7, 0.8]
    monkeypatch.setattr(tuned, "shipped", lambda: {"ours": chosen})
    assert lrs(TINY | {"tuned": "ours"}) == [0.3, 0.4]
    with pytest.raises(BadInput, match=r"tuned our: no file is called that. Did you mean 'ours'\?"):
        lrs(TINY | {"tuned": "our"})


def test_a_method_s_own_setting_given_by_hand(tmp_path):
    chosen = write_choices(tmp_path, BOTH[0], {"algorithm": "prism", "set": {"algorithm.kappa": 5, "training.lr": 0.4}})
    _, prism = Experiment.load(TINY, {"algorithm.kappa": 2}, tuned=chosen).runs
    assert (prism.algorithm.settings.kappa, prism.training.lr) == (2, 0.4)
    with pytest.raises(BadInput, match=r"has nothing for prism channels=all at 0\.4"):
        Experiment.load(TINY, {"algorithm.channels": "all"}, tuned=chosen)


def test_cells_are_told_apart_by_what_differs(tmp_path):
    """Two partitions and numbers of epochs; every cell chooses its own learning rate, and its own run gets it."""
    grid = {
        "algorithm": ["fedavg", {"name": "prism", "channels": "all"}],
        "capacity": [{"keep": [0.4, 0.2], "share": [0.5, 0.5]}, {"budget": {"macs": "50%"}}],
        "partition": [{"name": "iid", "clients": 6}, {"name": "dirichlet", "clients": 6, "alpha": 1}],
        "training.epochs": [1, 2],
    }
    tree = SMALL | {"grid": grid, "tune": {"training.lr": [0.001 * number for number in range(1, 13)]}}
    search = planned(tree, rungs=1)
    assert len(search.cells) == (1 + 2) * 2 * 2
    place = {cell.name: number for number, cell in enumerate(search.cells)}
    wanted = iter(range(144))
    stub = Stub(lambda run: [100.0 if next(wanted) % 13 == 0 else 0.0])
    found = tuning.tune(search, tmp_path, stub)
    assert found.best == {number: (number, 100, "") for number in place.values()}
    tuning.write(found, tmp_path)
    first = choices_of(tmp_path)["cells"][-1]
    assert first["partition"] == {"name": "dirichlet", "alpha": 1.0}
    assert first["settings"] == {"training.epochs": 2}
    assert first["capacity"] == {"budget": {"macs": "50%"}}
    assert "model" not in first
    again = Experiment.load(tree, tuned=tmp_path / "tuned.yaml")
    assert [run.training.lr for run in again.runs] == tree["tune"]["training.lr"]
    before = Experiment.load(tree)
    plain = [{k: v for k, v in before.labels(run).items() if k not in ("run", "tuned")} for run in before.runs]
    labels = [{k: v for k, v in again.labels(run).items() if k not in ("run", "tuned")} for run in again.runs]
    assert labels == plain, "tables call a tuned run what they call the other"


def test_two_that_become_one_are_said(tmp_path):
    grid = {"algorithm": ["prism", {"name": "prism", "kappa": 3}], "capacity.keep": 0.4}
    given = {"algorithm": {"name": "prism", "kappa": 3}, "set": {}}
    file = write_choices(tmp_path, {"algorithm": "prism", "set": {"algorithm.kappa": 3}}, given)
    with pytest.warns(
        UserWarning, match=r"'prism kappa=3\.0 at 0\.4, seed 0' was tuned to the same settings as 'prism"
    ):
        assert len(Experiment.load(SMALL | {"grid": grid}, tuned=file).runs) == 1


def test_results_from_before_there_was_tuning(tmp_path):
    carry_out(Experiment.load(TINY, {"training.rounds": 1}, seeds=1), tmp_path)
    rounds = pd.read_csv(tmp_path / "rounds.csv", keep_default_na=False)
    assert set(rounds["tuned"]) == {""}
    assert "tuned" not in prism_bench.table(rounds)
    (tmp_path / "old").mkdir()
    rounds.drop(columns="tuned").to_csv(tmp_path / "old" / "rounds.csv", index=False)
    assert len(Results.open(tmp_path / "old").runs()) == 2


def test_a_setting_of_other_methods_is_no_error():
    """So that --set algorithm=... can tune any of them with the lists that an experiment has."""
    lists = {"tune": {"training.lr": [0.1, 0.2], "algorithm.deploy": ["full", "trained"]}}
    loaded = Experiment.load(TINY | lists, {"algorithm": ["origdrop"]})
    assert list(loaded.tune) == ["training.lr"]
    assert list(Experiment.load(TINY | lists, {"algorithm": ["origdrop", "prism"]}).tune) == list(lists["tune"])


# Bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "tune.training.lrr=[1]"], "tiny.yaml: tune.training.lrr: there is no such setting. Did you mean"),
        (["--set", "tune.training.lr=[-1]"], "tiny.yaml: tune.training.lr: Input should be greater than 0 (got -1)."),
        (["--set", "tune.training.lr=[]"], "tiny.yaml: tune.training.lr: needs at least one value."),
        (["--set", "tune.training.lr=[0.1,0.1]"], "tiny.yaml: tune.training.lr: has 0.1 twice."),
        (["--set", "tune.algorithm.kapa=[1]"], "tune.algorithm.kapa: none of fedavg, prism has this setting. Did you"),
        (["--set", "tune.trainin.lr=[1]"], "tune.trainin.lr: there is no such setting to tune; keys are such as train"),
        (["--set", "tune.data.test_share=[0.1]"], "tune.data.test_share: is what is compared;"),
        (["--set", "tune.training.rounds=[1]"], "tune.training.rounds: can't be tuned"),
        (["--set", "tune=3"], "tiny.yaml: tune: needs settings with a list of values each (got 3)."),
        (["--set", "tune={}"], "tiny.yaml: has no section 'tune', so there is nothing to choose from."),
        (["--set", "grid.training.lr=[0.1,0.2]"], "tune.training.lr: the grid varies it; leave it out of one of them."),
        (["--set", "tune.algorithm.kappa=[1]", "--set", "algorithm.kappa=4"], "each method that has it says its value"),
        (["--set", "evaluation.on=test"], "settings are chosen on validation data alone"),
        (["--validation", "1.5"], "--validation 1.5: needs a share between 0 and 1"),
        (["--seeds", "two"], "--seeds two: needs a number such as 3"),
        (["--fresh", "--accept", "all"], "--accept: is for runs that are kept"),
        (["--out", "tiny.yaml/x"], "tiny.yaml is not a folder"),
    ],
)  # fmt: skip
def test_bad_input(file, here, arguments, message):
    code, _, printed = here("tune", "tiny.yaml", *arguments)
    assert code == 2, printed
    assert message in printed
    assert [path.name for path in file.iterdir()] == ["tiny.yaml"], "nothing left behind"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2", "chosen.yaml: can't be read as a file of choices"),
        ("3", "chosen.yaml: holds no choices; `prism-bench tune` writes such a file."),
        ("experiment: small", "chosen.yaml: cells: is missing."),
        ({"validation": 2}, "chosen.yaml: validation: Input should be less than 1 (got 2)"),
        ({"cels": []}, "chosen.yaml: cels: there is no such setting. Did you mean 'cells'?"),
        ({"cells": []}, "chosen.yaml: cells: "),
        ([{**BOTH[0], "set": {"training.lrr": 1}}, BOTH[1]], "cells 0: set: training.lrr: there is no such setting."),
        ([{**BOTH[0], "set": {"training.lr": -1}}, BOTH[1]], "cells 0: set: training.lr: Input should be greater"),
        ([{**BOTH[0], "set": {"data.name": 1}}, BOTH[1]], "cells 0: set: data.name: only training and algorithm setti"),
        ([*BOTH, {"algorithm": "prims", "set": {}}], "cells 2: there is no algorithm called 'prims'. Did you mean"),
        ([*BOTH, BOTH[1]], "cells 1 and 2 are both about 'prism at 0.4, seed 0'"),
        ([{**BOTH[0], "capacity": {"kep": 1}}, BOTH[1]], "chosen.yaml: capacity.kep: there is no such setting."),
        (BOTH[:1], "tiny.yaml: chosen.yaml: has nothing for prism at 0.4. `prism-bench tune` chooses"),
        ([{"algorithm": "orthdrop", "set": {}}], "is about 'small' and has nothing at all for fedavg; prism at 0.4."),
    ],
)  # fmt: skip
def test_a_bad_file_of_choices(file, here, text, message):
    if isinstance(text, str):
        (file / "chosen.yaml").write_text(text)
    elif isinstance(text, dict):
        write_choices(file, *BOTH, **text)
    else:
        write_choices(file, *text)
    code, _, printed = here("run", "tiny.yaml", "--tuned", "chosen.yaml")
    assert code == 2, printed
    assert message in printed
    assert not (file / "results").exists()


def test_no_such_file_of_choices(file, here):
    code, _, printed = here("run", "tiny.yaml", "--tuned", "nothere.yaml")
    assert code == 2
    assert "tiny.yaml: tuned nothere.yaml: no file is called that." in printed
    assert "needs the name of a file" in here("run", "tiny.yaml", "--set", "tuned=[1]")[2]


def test_help_teaches(here):
    code, printed, _ = here("tune", "--help")
    assert code == 0
    words = " ".join(printed.replace("│", " ").split())
    for said in ("training.lr: [0.01, 0.03, 0.1]", "Test data is never looked at", "run my.yaml --tuned results/tune"):
        assert said in words


# Which of a method's models counts --------------------------------------------------------------------------------


def test_what_is_deployed_is_chosen_on_the_same_runs(tmp_path):
    """Each try is trained once and judged by the better of its two models; the file says which, and a run obeys."""
    tree = SMALL | {
        "grid": {"algorithm": ["origdrop", "prism"]},
        "tune": {"training.lr": [0.02, 0.1], "algorithm.deploy": ["full", "trained"]},
    }
    search = planned(tree, rungs=1)
    assert [len(cell.tries) for cell in search.cells] == [2, 2], "no more tries than without"
    found = tuning.tune(search, tmp_path)
    tuning.write(found, tmp_path)
    prism = found.tries[found.tries["algorithm"] == "prism"]
    rounds = pd.read_csv(tmp_path / "rung-0" / "rounds.csv")
    last = rounds.groupby("run").last()
    for row in prism.to_dict("records"):
        both = last.loc[row["run"], ["accuracy_full", "accuracy_trained"]]
        assert row["accuracy"] == both.max()
        assert row["algorithm.deploy"] == ("full" if both["accuracy_full"] >= both["accuracy_trained"] else "trained")
    assert (found.tries.loc[found.tries["algorithm"] == "origdrop", "algorithm.deploy"] == "").all()
    best = prism.loc[prism["accuracy"].idxmax()]
    runs = Experiment.load(tree, tuned=tmp_path / "tuned.yaml").runs
    assert [run.algorithm.settings.deploy for run in runs if run.algorithm.name == "prism"] == [
        best["algorithm.deploy"]
    ]


def test_only_models_that_every_run_has_can_be_deployed():
    tree = SMALL | {"grid": {"algorithm": ["prism"]}, "tune": {"algorithm.deploy": ["full", "expected"]}}
    with pytest.raises(BadInput, match=r"tune.algorithm.deploy: 'full' and 'trained' can be chosen from"):
        planned(tree)
