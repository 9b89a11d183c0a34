"""The command line as a person uses it: its exit code, what it prints and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys

import pandas as pd
import pytest
import yaml

FILE = {
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 10, "alpha": 0.5},
    "model": {"name": "smallcnn", "width": 5},
    "algorithm": "prism",
    "capacity": {"keep": 0.4},
    "training": {"rounds": 2, "active": 3, "epochs": 1},
}


def call(*arguments, cwd, **environment):
    command = [sys.executable, "-m", "prism_bench", *arguments]
    env = os.environ | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(FILE))
    return tmp_path


def left_behind(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_users_own_file(file):
    arguments = ["run", "mine.yaml", "--set", "algorithm.kappa=4", "--out", "here", "--device", "cpu", "--seeds", "3"]
    done = call(*arguments, cwd=file)
    assert done.returncode == 0, done.stderr
    expected = ["curves.png", "experiment.json", "rounds.csv", "runs", "table.csv"]
    assert left_behind(file / "here") == expected
    rounds, result = (pd.read_csv(file / "here" / name) for name in ("rounds.csv", "table.csv"))
    assert len(rounds) == 3 * 2
    assert result[["algorithm", "variant", "keep", "n"]].values.tolist() == [["prism", "kappa=4.0", 0.4, 3]]
    assert {"parameters_%", "macs_%", "activation_bytes_%", "transfer_bytes_%"} <= set(result)
    assert "here/table.csv" in done.stdout
    again = call(*arguments, cwd=file)
    assert again.stderr.count("kept from an earlier start") == 3
    fresh = call(*arguments, "--fresh", cwd=file)
    assert "kept" not in fresh.stderr
    same = pd.read_csv(file / "here" / "table.csv")
    pd.testing.assert_frame_equal(same.drop(columns="seconds"), result.drop(columns="seconds"), check_exact=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "algorithm.name=prims"], "mine.yaml: algorithm.name: there is no algorithm called 'prims'. Did"),
        (["--set", "capacity.keep=0"], "mine.yaml: capacity.keep: a keep ratio must be above 0 and at most 1 (got"),
        (["--set", "capacity.keep=1.2"], "mine.yaml: capacity.keep: a keep ratio must be above 0 and at most 1 (got"),
        (["--set", "training.active=11"], "mine.yaml: training.active: 11 active clients per round, but partition."),
        (["--set", "partition.clients=5000"], "5000 clients with at least one sample each need 5000 samples"),
        (["--set", "partition.clientss=5"], "mine.yaml: partition.clientss: there is no such setting. Did you mean"),
        (["--set", "training.rounds"], "--set training.rounds: needs KEY=VALUE"),
        (["--set", "training.rounds=[1"], "--set training.rounds=[1: the value is not valid YAML"),
        (["--set", "trainin.rounds=1"], "trainin.rounds: there is no such setting. Did you mean 'training'?"),
        (["--set", "--fresh=1"], "mine.yaml: --fresh: there is no such setting"),
        (["--seeds", "--fresh"], "--seeds --fresh: needs a number such as 3"),
        (["--track"], "Option '--track' requires an argument"),
        (["--seeds", "two"], "--seeds two: needs a number such as 3"),
        (["--device", "tpu"], "execution.device: must be auto, cpu, cuda, cuda:0, cuda:1, ... or mps (got"),
        (["--set", "algorithm.factorise=convs.9"], "mine.yaml: algorithm.factorise: no layer is called 'convs.9'"),
        (["--out", "mine.yaml/x"], "mine.yaml is not a folder"),
        (["--set", "algorithm={name: splitmix, atom: 0.9}", "--set", "capacity.keep=.1"], "mine.yaml: algorithm.atom:"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_error(file, here, arguments, message):
    code, _, printed = here("run", "mine.yaml", *arguments)
    assert code == 2, printed
    assert message in printed
    assert left_behind(file) == ["mine.yaml"], "no folder left behind"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("traning: {rounds: 1}", "bad.yaml: traning: there is no such setting. Did you mean 'training'?"),
        ("a: [1, 2", "bad.yaml: is not valid YAML"),
        ("data: digits\ndata: digits", "'data' is given twice"),
        ("- 1\n- 2", "bad.yaml: needs settings such as"),
        ("", "bad.yaml: needs settings such as"),
        ("data: digits", "bad.yaml: partition: is missing."),
        ("\x00", "bad.yaml: is not valid YAML"),
    ],
)
def test_a_bad_file_is_named(tmp_path, here, text, message):
    (tmp_path / "bad.yaml").write_text(text)
    code, _, printed = here("run", "bad.yaml")
    assert code == 2, printed
    assert message in printed
    assert left_behind(tmp_path) == ["bad.yaml"]


def test_no_such_experiment(tmp_path, here):
    code, _, printed = here("run", "quikstart")
    assert code == 2
    assert "quikstart: no experiment and no YAML file is called that. Did you mean 'quickstart'?" in printed
    assert "nothere.yaml: there is no such file" in here("run", "nothere.yaml")[2]
    assert left_behind(tmp_path) == []


def test_bad_input_in_a_process_of_its_own(file):
    done = call("run", "mine.yaml", "--set", "algorithm=prims", cwd=file)
    assert done.returncode == 2
    assert "Did you mean 'prism'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_diverges_is_reported_and_exits_1(file, here):
    code, _, printed = here("run", "mine.yaml", "--set", "training.lr=1e30")
    assert code == 1
    assert "a smaller training.lr may help" in printed


def test_list_names_every_plugin(here):
    code, printed, _ = here("list")
    assert code == 0
    for name in ("quickstart", "fedavg", "prism", "orthdrop", "origdrop", "splitmix", "iid", "dirichlet", "writers"):
        assert f"  {name} " in printed, name
    for name in ("digits", "cifar10", "femnist", "imdb", "cnn", "resnet18", "smallcnn"):
        assert f"  {name} " in printed, name


def test_list_explains_a_plugin_and_a_section(here):
    code, printed, _ = here("list", "prism")
    assert code == 0
    for words in ("kappa", "prefix | kernels | rolling | random | all", "smooth factor κ"):
        assert words in printed
    assert "clients drawn each round" in here("list", "training")[1]
    code, _, printed = here("list", "prims")
    assert code == 2
    assert "Did you mean 'prism'?" in printed


def test_brackets_are_not_taken_for_markup(file, here):
    code, _, progress = here("run", "mine.yaml", "--set", "algorithm.factorise=[convs.1]")
    assert code == 0
    assert "factorise=('convs.1',)" in progress
    assert "'algorithm=[prism,orthdrop]'" in " ".join(here("run", "--help")[1].replace("│", " ").split())


def test_help_does_not_wait_for_torch(tmp_path):
    code = "import sys; sys.argv = ['prism-bench', 'run', '--help']\nfrom prism_bench.cli.app import app\n"
    code += "try: app()\nfinally: assert 'torch' not in sys.modules and 'pandas' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--seeds" in done.stdout


def test_nothing_connects_to_a_network(file):
    """Importing everything and running must not open a socket to another machine."""
    code = """
import socket, sys
def refuse(*a, **k): raise AssertionError(f"network: {a}")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = refuse
sys.argv = ["prism-bench", "run", "mine.yaml"]
from prism_bench.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=file, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
