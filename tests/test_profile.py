"""Where a round's time goes: the table adds up, counts what was trained, and says what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys

import pandas as pd
import pytest
import torch
import yaml

from prism_bench.analysis.profile import matrix_product, time_rounds
from prism_bench.analysis.report import sheets
from prism_bench.engine import costs
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.jobs import Shelf
from prism_bench.harness.results import LABELS
from prism_bench.testing import federation

FILE = {
    "data": "digits",
    "partition": {"name": "iid", "clients": 10, "samples": 50},
    "model": {"name": "smallcnn", "width": 5},
    "capacity": {"keep": 0.4},
    "seeds": 2,
    "training": {"rounds": 20, "active": 3, "epochs": 2, "batch": 16},
    "evaluation": {"every": 20, "probes": ["rank"]},
    "execution": {"threads": 1, "at_once": 2, "device": "cpu"},
    "grid": {"algorithm": ["fedavg", "prism", "splitmix"]},
}
STAGES = ["create", "train", "merge", "refresh", "evaluate", "other", "round"]


@pytest.fixture(scope="module")
def measured():
    said = []
    frame = time_rounds(Experiment.load(FILE), Shelf(lambda *_: None), 2, said.append)
    assert said == ["fedavg, seed 0", "prism at 0.4, seed 0", "splitmix at 0.4, seed 0"], "the first seed only"
    return frame


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(FILE))
    return tmp_path


def test_stages_and_other_are_the_round(measured):
    for _, run in measured.groupby("run", sort=False):
        assert run["stage"].tolist() == STAGES
        seconds = run.set_index("stage")["seconds"]
        assert seconds[STAGES[:-1]].sum() == pytest.approx(seconds["round"], rel=1e-9)
        assert (seconds[["create", "train", "merge", "evaluate", "other"]] > 0).all(), "evaluated every round"
        assert run["share"].tolist() == pytest.approx((100 * seconds / seconds["round"]).tolist())
        assert run["seconds_client"].tolist() == pytest.approx((seconds / 3).tolist())
        assert run["seconds_sample"].tolist() == pytest.approx((seconds / (3 * 50 * 2)).tolist())


def test_training_is_three_passes_of_the_counted_macs(measured):
    data = Experiment.load(FILE).runs[0].data.settings.load()
    for algorithm, keep in (("fedavg", 1.0), ("prism", 0.4), ("splitmix", 0.4)):
        one = federation(algorithm, model=FILE["model"], keep=keep, data=data)
        macs = costs.of_client(one.algorithm, keep, data.signature, 16).macs
        row = measured[(measured["algorithm"] == algorithm) & (measured["stage"] == "train")].iloc[0]
        assert 1e9 * row["train_gflops"] * row["seconds"] == pytest.approx(2 * 3 * macs * 3 * 50 * 2)
        assert row["peak_share"] == pytest.approx(100 * row["train_gflops"] / row["peak_gflops"])
        assert (row["threads"], row["at_once"], row["device"], row["torch"]) == (1, 2, "cpu", torch.__version__)


def test_a_matrix_product_is_fast():
    assert matrix_product(torch.device("cpu"), tries=2) > 1e8


def test_a_row_a_stage_below_its_run(measured):
    sheet = sheets.profile(measured, sheets.Form("mine"))
    assert sheet.columns == ["algorithm", "keep", "stage", "a round", "a client", "a sample", "FLOP/s"]
    assert [row[0].text for row in sheet.rows] == ["fedavg", *6 * [""], "prism", *6 * [""], "splitmix", *6 * [""]]
    assert [bool(row[-1].text) for row in sheet.rows[:7]] == [stage == "train" for stage in STAGES]
    assert sheet.rows[6][3].more == "100%"
    assert "Threads 1, clients at once 2, cpu, torch" in sheet.caption


def test_the_command(file, here):
    arguments = ["--set", "algorithm=[prism]", "--rounds", "1", "--out", "new/p.csv", "--trace", "new/round.json"]
    code, printed, progress = here("profile", "mine.yaml", *arguments)
    assert code == 0, progress
    assert "evaluate" in printed
    assert "new/p.csv" in printed
    assert "reading digits" in progress
    assert "prism at 0.4" in progress
    frame = pd.read_csv(file / "new" / "p.csv")
    assert list(frame) == [
        *(label for label in LABELS if label != "code"), "stage", "seconds", "share", "seconds_client",
        "seconds_sample", "clients", "samples",
        "train_gflops", "peak_gflops", "peak_share", "threads", "at_once", "device", "torch",
    ]  # fmt: skip
    assert frame["stage"].tolist() == STAGES
    names = {event.get("name") for event in json.loads((file / "new" / "round.json").read_text())["traceEvents"]}
    assert {"create", "train", "merge", "refresh", "evaluate"} <= names
    assert sorted(path.name for path in file.iterdir()) == ["mine.yaml", "new"], "nothing else is kept"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["quikstart"], "quikstart: no experiment and no YAML file is called that. Did you mean 'quickstart'?"),
        (["mine.yaml", "--set", "training.active=11"], "mine.yaml: training.active: 11 active clients per round"),
        (["mine.yaml", "--set", "algorithm.atom=0.9"], "mine.yaml: algorithm.atom:"),
        (["mine.yaml", "--set", "training.lr=1e30", "--set", "algorithm=fedavg"], "a smaller training.lr may help"),
        (["mine.yaml", "--rounds", "0"], "--rounds"),
        (["mine.yaml", "--out", "."], "--out .: is a folder; a file such as profile.csv is needed."),
        (["mine.yaml", "--trace", "mine.yaml/x"], "--trace mine.yaml: mine.yaml is not a folder"),
        (["mine.yaml", "--device", "tpu"], "execution.device: must be auto, cpu, cuda, cuda:0"),
        (["mine.yaml", "--size", "paper"], "--size paper: this experiment has one size only"),
    ],
)  # fmt: skip
def test_bad_input(file, here, arguments, message):
    code, _, printed = here("profile", *arguments)
    assert code == 2, printed
    assert message in " ".join(printed.replace("│", " ").split())
    assert [path.name for path in file.iterdir()] == ["mine.yaml"]


def test_help_teaches_and_does_not_wait_for_torch():
    code = "import sys; sys.argv = ['prism-bench', 'profile', '--help']\nfrom prism_bench.cli.app import app\n"
    code += "try: app()\nfinally: assert 'torch' not in sys.modules and 'pandas' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "prism-bench profile time_breakdown --out profile.csv" in done.stdout
